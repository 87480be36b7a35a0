from __future__ import annotations

import pytest

from distconsole.checks.engine.catalogue import find_rule
from distconsole.checks.facts.evidence import HostEvidence, View
from distconsole.checks.facts.network import EnvFacts
from distconsole.checks.facts.node import HorovodFacts, ImportFacts
from distconsole.checks.rules.software.short_jobs import RUN_WAITS_SECONDS
from distconsole.launch.launchers.horovod import GLOO_TIMEOUT_SECONDS
from distconsole.model.cluster import Host
from distconsole.model.findings import Finding
from distconsole.model.names import HostName


def test_what_run_waits_is_what_it_tells_the_ranks() -> None:
    assert RUN_WAITS_SECONDS == GLOO_TIMEOUT_SECONDS


@pytest.mark.parametrize(("seconds", "by_run"), [(20.0, "waits 120 s for the ranks"), (50.0, "")])
def test_the_cure_says_whether_run_needs_it(seconds: float, by_run: str) -> None:
    host = HostEvidence(Host(HostName("a")))
    host.add_facts(EnvFacts())
    host.add_facts(HorovodFacts(present=True))
    host.add_facts(ImportFacts(present=True, seconds=seconds))
    rule = find_rule("horovod.timeouts")
    assert rule is not None
    said = rule.judge(View((host,), (HostName("a"),)))
    (finding,) = (each for each in said if isinstance(each, Finding))
    assert finding.cure is not None
    assert finding.cure.by_run == by_run
    wanted = {20.0: "60", 50.0: "150"}[seconds]
    assert set(finding.cure.env.values()) == {wanted}
