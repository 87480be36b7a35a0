"""Every check judges facts as the cases of ``cases/`` say; each check of the catalogue has one."""

from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import msgspec
import pytest

from distconsole.checks import rules
from distconsole.checks.engine.catalogue import CATALOGUE, find_rule
from distconsole.checks.engine.rule import Rule, Verdicts, judge
from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.evidence import HostEvidence, View
from distconsole.checks.facts.node import convert
from distconsole.model.cluster import Host
from distconsole.model.expectation import Expectation
from distconsole.model.findings import Severity
from distconsole.model.names import HostName
from suite.check_cases import (
    CASES,
    expand,
    findings_of,
    healthy_hosts,
    hosts_of,
    load,
    load_cases,
    merge,
    nest,
)

KINDS = {kind.group: kind for rule in CATALOGUE for kind in (*rule.needs, *rule.after)}
LOADED = load_cases()
HEALTHY = load(CASES / "healthy.yaml")


def judge_case(case: dict[str, Any], rule: Rule) -> Verdicts:
    folders = case.get("node_dirs", {})
    hosts = []
    for name, groups in case["hosts"].items():
        host = HostEvidence(Host(HostName(name), node_dir=folders.get(name)))
        for group, facts in groups.items():
            unknown = facts.keys() - set(KINDS[group].__struct_fields__)
            assert not unknown, f"{KINDS[group].__name__} has no such field"
            host.add_facts(convert(KINDS[group], facts))
        hosts.append(host)
    launch = msgspec.convert(case["launch"], Launch) if "launch" in case else None
    expected = msgspec.convert(case.get("expected", {}), dict[str, Expectation])
    names = tuple(host.name for host in hosts)
    verdicts = Verdicts()
    judge(rule, hosts, View(tuple(hosts), names, launch=launch, expected=expected), verdicts)
    return verdicts


@pytest.mark.parametrize("case", LOADED, ids=lambda case: f"{case['rule']}: {case['case']}")
def test_a_check_judges_facts_as_the_case_says(case: dict[str, Any]) -> None:
    rule = find_rule(case["rule"])
    assert rule is not None
    verdicts = judge_case(expand(case, HEALTHY), rule)
    found = [(each.severity.value, list(each.hosts)) for each in verdicts.findings]
    claims = findings_of(case)
    assert found == [(claim.severity, claim.hosts) for claim in claims]
    for finding, claim in zip(verdicts.findings, claims, strict=True):
        assert finding.check == case["rule"]
        for words in claim.says:
            assert words in f"{finding.summary}\n{finding.seen}", finding
        assert claim.hint in finding.hint if claim.hint is not None else not finding.hint, finding
        if finding.severity is Severity.FAIL and not finding.check.startswith("ssh."):
            assert finding.hint, "a failure says what to do"
    for host, outcome in case.get("cells", {}).items():
        assert verdicts.cells[host][case["rule"]].outcome == outcome


def test_every_rule_of_a_module_is_in_the_catalogue() -> None:
    modules = [
        import_module(each.name)
        for each in walk_packages(rules.__path__, f"{rules.__name__}.")
        if not each.ispkg
    ]
    made = {each.id for module in modules for each in vars(module).values() if type(each) is Rule}
    assert made
    assert made - {rule.id for rule in CATALOGUE} == set(), (
        "MODULES of the catalogue lack its module"
    )


def test_every_check_that_can_fail_has_a_case() -> None:
    covered = {case["rule"] for case in LOADED}
    assert {rule.id for rule in CATALOGUE} - covered <= {"net.other_networks"}


@pytest.mark.parametrize("kind", ["cpu", "gpu", "two gpus", "eight gpus", "slurm"])
def test_no_check_finds_fault_with_healthy_hosts(kind: str) -> None:
    case = {"hosts": healthy_hosts(kind, ("a", "b", "c"), HEALTHY)}
    assert [found for rule in CATALOGUE for found in judge_case(case, rule).findings] == []


@pytest.mark.parametrize(
    ("facts", "change", "changed"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a.b": 3}, {"a": {"b": 3, "c": 2}}),
        ({"a": {"b": 1}}, {"a.b": None}, {"a": {}}),
        ({"a": {}}, {"a": {"10.0.0.1": None}}, {"a": {"10.0.0.1": None}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        (
            {"g": [{"index": 0}, {"index": 1}]},
            {"g.1.x": 2},
            {"g": [{"index": 0}, {"index": 1, "x": 2}]},
        ),
        (
            {"g": [{"index": 0}, {"index": 1}]},
            {"g": {"0": None, "+": [{"index": 7}]}},
            {"g": [{"index": 1}, {"index": 7}]},
        ),
        (
            {
                "e": [
                    {"target": "b", "port": 1},
                    {"target": "b", "port": 2},
                    {"target": "c", "port": 1},
                ]
            },
            {"e": {"b/2 c": {"ok": False}}},
            {
                "e": [
                    {"target": "b", "port": 1},
                    {"target": "b", "port": 2, "ok": False},
                    {"target": "c", "port": 1, "ok": False},
                ]
            },
        ),
    ],
)
def test_a_difference_changes_what_it_names(facts: Any, change: Any, changed: Any) -> None:
    assert merge(facts, nest(change)) == changed


def test_hosts_may_be_a_range() -> None:
    assert list(hosts_of("a n0..n2")) == ["a", "n0", "n1", "n2"]
