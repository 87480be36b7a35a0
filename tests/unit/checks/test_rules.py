"""Every check judges facts as the cases of ``cases/`` say; each check of the catalogue has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distconsole.checks.catalogue import CATALOGUE, rule_called
from distconsole.checks.evidence import HostEvidence, View
from distconsole.checks.facts import convert
from distconsole.checks.groups import GROUP_NAMES
from distconsole.checks.judge import Verdicts, judge
from distconsole.checks.target import Launch
from distconsole.model.cluster import Host
from distconsole.model.expectation import Expectation
from distconsole.model.names import HostName

KINDS = {name: kind for kind, name in GROUP_NAMES.items()}
CASES: list[dict[str, Any]] = [
    case
    for path in sorted(Path(__file__).with_name("cases").glob("*.json"))
    for case in json.loads(path.read_text())
]


def evidence(name: str, groups: dict[str, Any], node_dir: str | None = None) -> HostEvidence:
    host = HostEvidence(Host(HostName(name), node_dir=node_dir))
    for group, facts in groups.items():
        host.learn(convert(KINDS[group], facts))
    return host


def judged(case: dict[str, Any]) -> Verdicts:
    folders = case.get("node_dirs", {})
    hosts = tuple(
        evidence(name, groups, folders.get(name)) for name, groups in case["hosts"].items()
    )
    rule = rule_called(case["rule"])
    assert rule is not None
    verdicts = Verdicts()
    launch = msgspec.convert(case["launch"], Launch) if "launch" in case else None
    wanted = {
        name: msgspec.convert(each, Expectation) for name, each in case.get("expected", {}).items()
    }
    names = tuple(host.name for host in hosts)
    view = View(hosts, names, launch=launch, expected=wanted)
    judge(rule, hosts, view, verdicts)
    return verdicts


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['rule']}: {case['name']}")
def test_a_check_judges_facts_as_the_case_says(case: dict[str, Any]) -> None:
    verdicts = judged(case)

    found = [(each.severity.value, list(each.hosts)) for each in verdicts.findings]
    assert found == [(each["severity"], each["hosts"]) for each in case["expect"]]
    for finding, expected in zip(verdicts.findings, case["expect"], strict=True):
        assert finding.check == case["rule"]
        for word in expected["words"]:
            assert word in f"{finding.summary}\n{finding.seen}", finding
        assert expected.get("hint", "") in finding.hint
        if "cure" in expected:
            assert msgspec.to_builtins(finding.cure) == expected["cure"]
    for host, outcome in case.get("cells", {}).items():
        assert verdicts.cells[host][case["rule"]].outcome == outcome


def test_every_check_that_can_fail_has_a_case() -> None:
    covered = {case["rule"] for case in CASES}
    assert {rule.id for rule in CATALOGUE} - covered <= {"net.other_networks"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['rule']}: {case['name']}")
def test_failures_say_what_to_do(case: dict[str, Any]) -> None:
    for finding in judged(case).findings:
        if finding.severity.value == "fail" and not finding.check.startswith("ssh."):
            assert finding.hint, finding
