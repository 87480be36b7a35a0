"""What the ranks of a check's short jobs get to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from distconsole.checks.facts.jobs import CollFacts
from distconsole.checks.facts.network import NetAddress, NetFacts
from distconsole.checks.facts.node import Facts, ImportFacts, SshFacts, TorchFacts
from distconsole.checks.gather.context import CheckContext
from distconsole.checks.gather.engine_jobs import TORCH, EngineAnswer, EngineJob, run_engine
from distconsole.checks.gather.local_facts import serving
from distconsole.config.schema import Config
from distconsole.errors import PlanError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Check, Level
from distconsole.rpc.link import NodeLink
from distconsole.session import Session

NEEDED: frozenset[type[Facts]] = frozenset({CollFacts, ImportFacts})


@pytest.mark.parametrize(("level", "forked"), [(Level.STANDARD, True), (Level.FULL, False)])
def test_ranks_are_forked_only_where_a_process_with_torch_stays(
    level: Level, forked: bool
) -> None:
    host, jobs = Host(HostName("a"), slots=1), []

    def start(_session: Session, job: EngineJob) -> EngineAnswer:
        jobs.append(job)
        raise PlanError("it is not started here")

    address = NetAddress(iface="eth0", address="10.0.0.1", prefix=24)
    with Session(Config(), Cluster((host,))) as session:
        context = CheckContext(Check(level=level), session, NEEDED)
        context.links[host.name] = cast("NodeLink", SimpleNamespace(connected=True))
        for facts in (
            SshFacts(reached_at="10.0.0.1"),
            NetFacts(addresses=(address,)),
            TorchFacts(present=True),
        ):
            context.hosts[host.name].add_facts(facts)
        assert list(run_engine(context, TORCH, start, None, 1)) == ["a"]
    assert [("preloaded" in job.work, bool(serving(context))) for job in jobs] == [
        (forked, forked)
    ]


def test_a_process_with_torch_stays_for_no_negative_time() -> None:
    with Session(Config(), Cluster((Host(HostName("a")),))) as session:
        request = Check(budget_seconds=1.0)
        context = CheckContext(request, session, NEEDED)
        context.began -= 5.0
    assert serving(context)["serve_seconds"] == 0.0
