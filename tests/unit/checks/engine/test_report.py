"""The report of a check whose facts are there."""

from __future__ import annotations

import pytest

from distconsole.checks.engine.judge import Verdicts
from distconsole.checks.engine.report import make_report
from distconsole.checks.facts.evidence import Outcome
from distconsole.checks.facts.jobs import CollFacts, RankReport
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.gather.nodes import Gathering
from distconsole.config.schema import Config
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Check, Level
from distconsole.session import Session


@pytest.mark.parametrize(
    ("budget", "sweeping", "outcome"),
    [(60.0, False, "incomplete"), (None, False, "healthy"), (60.0, True, "healthy")],
)
def test_collectives_that_the_budget_left_out_make_a_check_incomplete(
    budget: float | None, sweeping: bool, outcome: str
) -> None:
    host = Host(HostName("a"))
    with Session(Config(), Cluster((host,))) as session:
        request = Check(level=Level.FULL, budget_seconds=budget)
        gathering = Gathering(request, session, frozenset({CollFacts}))
        evidence = gathering.hosts[host.name]
        evidence.learn(SshFacts())
        said = ({"left_out": [["all_reduce", "float32", 1 << 24]]},)
        evidence.learn(CollFacts(ranks=(RankReport(rank=0, said=said),)))
        verdicts = Verdicts()
        verdicts.cell(host.name, "coll.correct", Outcome.PASS)
        report = make_report(gathering, verdicts, (), 1.0, sweeping=sweeping)
    assert report.outcome == outcome
    assert report.left_out == ("torch all_reduce of 16777216 float32",)
