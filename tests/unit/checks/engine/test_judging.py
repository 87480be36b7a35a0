"""Judging very many hosts: the work grows with the hosts, and not with their pairs."""

import json
import re
import sys
from types import FrameType
from typing import Any

import pytest

from distconsole.checks.engine.catalogue import CATALOGUE
from distconsole.checks.engine.rule import Verdicts, judge
from distconsole.checks.facts.evidence import HostEvidence, Outcome, View
from distconsole.checks.facts.node import Facts, convert
from distconsole.checks.gather import addresses
from distconsole.model.cluster import Host
from distconsole.model.findings import Severity
from distconsole.model.names import HostName
from distconsole.model.requests import Level
from suite.check_cases import CASES, healthy_hosts, load, merge, nest

KINDS: dict[str, type[Facts]] = {
    kind.group: kind for rule in CATALOGUE for kind in (*rule.needs, *rule.after)
}
HEALTHY = load(CASES / "healthy.yaml")
QUICK = [rule for rule in CATALOGUE if rule.level is Level.QUICK]
FEW, MANY = 32, 128

SICK: dict[str, Any] = {
    "os.memory": {"available": 1 << 30, "total": 1 << 38},
    "os.resolution.addresses": [{"address": "127.0.1.1"}],
    "proc.processes": [{"name": "orted", "role": "daemon", "uid": 1000, "age_seconds": 900}],
    "horovod.against": {"pytorch": "1.0"},
    "env.variables": {"GLOO_SOCKET_IFNAME": "ens9", "NCCL_SOCKET_IFNAME": "ens9"},
}
"""What is wrong on every sick host."""


def facts_of(place: int, count: int) -> dict[str, Any]:
    """Return the facts of a healthy host that tries the one before it and the one behind it."""
    text = json.dumps(healthy_hosts("gpu", ("@0", "@1", "@2"), HEALTHY)["@1"])
    others = [(place + step) % count for step in (-1, 0, 1)]
    text = re.sub(r"@([012])", lambda found: f"n{others[int(found[1])]}", text)
    text = re.sub(
        r"10\.0\.0\.([123])\b", lambda found: f"10.0.1.{others[int(found[1]) - 1]}", text
    )
    facts: dict[str, Any] = json.loads(text.replace("10.0.0.0/24", "10.0.0.0/16"))
    facts["net"]["addresses"][1]["prefix"] = 16
    return facts


def cluster_of(count: int, change: dict[str, Any], *, dead: int) -> list[HostEvidence]:
    """Return hosts with a difference from healthy ones; nobody reaches the last ``dead``."""
    lost = {f"n{number}" for number in range(count - dead, count)}
    hosts = []
    for place in range(count):
        facts = merge(facts_of(place, count), nest(change))
        for edge in facts["reach"]["edges"]:
            edge["ok"] = not {edge["source"], edge["target"]} & lost
        host = HostEvidence(Host(HostName(f"n{place}")))
        for group, each in facts.items():
            host.add_facts(convert(KINDS[group], each))
        hosts.append(host)
    return hosts


def judge_all(hosts: list[HostEvidence]) -> Verdicts:
    verdicts = Verdicts()
    view = View(tuple(hosts), tuple(host.name for host in hosts))
    for rule in QUICK:
        judge(rule, hosts, view, verdicts)
    return verdicts


def count_calls(hosts: list[HostEvidence]) -> int:
    calls = 0

    def count(_frame: FrameType, event: str, _of: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        judge_all(hosts)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize(("change", "dead_share"), [({}, 0.0), (SICK, 0.25)])
def test_the_work_of_judging_grows_with_the_hosts_and_not_with_their_square(
    change: dict[str, Any], dead_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "ALL_PAIRS_HOSTS", 8)
    few, many = (
        count_calls(cluster_of(count, change, dead=int(count * dead_share)))
        for count in (FEW, MANY)
    )
    assert many < 1.15 * few * MANY / FEW


def test_the_same_healthy_hosts_are_healthy_however_many_they_are() -> None:
    assert judge_all(cluster_of(MANY, {}, dead=0)).findings == []


def test_a_cell_is_of_the_first_of_the_worst_findings_on_its_host() -> None:
    hosts = cluster_of(4, SICK, dead=0)
    verdicts = judge_all(hosts)
    for host in hosts:
        for check, cell in verdicts.cells[host.name].items():
            mine = [f for f in verdicts.findings if f.check == check and host.name in f.hosts]
            worst = max((found.severity.order for found in mine), default=0)
            told = [found.summary for found in mine if found.severity.order == worst]
            if cell.outcome in (Outcome.WARN, Outcome.FAIL):
                assert cell.why == told[0]
            else:
                assert not {found.severity for found in mine} & {Severity.WARN, Severity.FAIL}
