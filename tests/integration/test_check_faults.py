"""``check`` on real hosts: each fault is one finding about the right host, and a healthy bed has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from distconsole.checks import run_check
from distconsole.model.events import CheckEnded, CheckReport, Event, FindingMade, PairProgress
from distconsole.model.findings import Finding, Severity
from distconsole.model.requests import Check, Level, Where
from distconsole.session import open_session
from suite.obstacles import obstacle
from testbed import Testbed, missing
from testbed.switch import ip_batch

pytestmark = pytest.mark.testbed

OPEN_RULE = 700


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Three hosts for the tests of this file."""
    if reason := missing():
        pytest.skip(reason)
    tmp_path_factory.getbasetemp()
    with Testbed(hosts=3, prefix="chk") as bed:
        yield bed


@pytest.fixture
def hosts(three: Testbed, nothing_left: None) -> Iterator[Testbed]:
    """The same three, healthy; what a test broke is mended afterwards."""
    yield three
    for host in three.hosts:
        host.heal()


def check(bed: Testbed, **asked: Any) -> CheckReport:
    """Check the hosts of ``bed`` at level quick unless asked otherwise; return the report.

    What was told of pairs while it went on must be what the report says of them.
    """
    where = Where(hosts=bed.names, ssh_config=str(bed.ssh_config))
    request = Check(where=where, **{"level": Level.QUICK, **asked})
    with open_session(where) as session:
        events = list(run_check(request, session))
    ended = events[-1]
    assert isinstance(ended, CheckEnded)
    made = {
        (event.finding.check, event.finding.hosts, event.finding.summary): event.finding
        for event in events
        if isinstance(event, FindingMade)
    }
    assert list(made.values()) == list(ended.report.findings)
    assert_pairs_were_told(events, ended.report)
    return ended.report


def assert_pairs_were_told(events: Sequence[Event], report: CheckReport) -> None:
    reached: dict[tuple[str, str], bool] = {}
    rates: dict[tuple[str, str], float | None] = {}
    for event in events:
        for pair in event.pairs if isinstance(event, PairProgress) else ():
            if event.stage == "bandwidth":
                rates[pair.source, pair.target] = pair.gbit_s
            else:
                reached[pair.source, pair.target] = pair.reachable
    assert reached == {(p.source, p.target): p.reachable for p in report.network.pairs}
    whole = {(p.source, p.target): p.gbit_s for p in report.network.pairs}
    assert rates == ({pair: rate for pair, rate in whole.items() if pair in rates})


def trouble(report: CheckReport) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return what is wrong: severity, check and hosts."""
    return [
        (finding.severity.value, finding.check, finding.hosts)
        for finding in report.findings
        if finding.severity in (Severity.WARN, Severity.FAIL)
    ]


def the_finding(report: CheckReport, check_id: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.check == check_id]
    return found


def test_healthy_hosts_have_no_finding_and_every_cell_an_outcome(hosts: Testbed) -> None:
    report = check(hosts)
    assert trouble(report) == []
    assert report.ok
    assert all(host.reachable for host in report.hosts.values())
    checks = {check_id for cells in report.cells.values() for check_id in cells}
    for name, cells in report.cells.items():
        assert set(cells) == checks
        unknown = {c for c, outcome in cells.items() if outcome not in ("pass", "skipped")}
        assert not unknown
        skipped = {c for c, outcome in cells.items() if outcome == "skipped"}
        assert skipped == set(report.why[name])
    assert len(report.network.pairs) == 6
    assert all(pair.rtt_us is not None and pair.rtt_us > 0 for pair in report.network.pairs)
    facts = report.hosts["chk2"].facts
    assert {"ssh", "os", "python", "torch", "horovod", "mpi", "gpu", "net", "clock", "env"} <= set(
        facts
    )
    assert report.uncovered


def test_debians_hosts_line_is_found_with_the_way_around(hosts: Testbed) -> None:
    second = hosts.hosts[1]
    second.wrong_etc_hosts()
    report = check(hosts)
    assert trouble(report) == [("fail", "os.hostname_bindable", ("chk2",))]
    found = the_finding(report, "os.hostname_bindable")
    assert "getaddrinfo('chk2')" in found.seen
    assert "127.0.1.1" in found.seen
    assert f"{second.address} chk2" in found.hint
    assert "export GLOO_SOCKET_IFNAME=eth0" in found.hint


def test_a_name_that_one_host_does_not_know_is_found_with_the_line_for_it(hosts: Testbed) -> None:
    first, _, third = hosts.hosts
    lines = first.right_etc_hosts.read_text().splitlines(keepends=True)
    first.wrong_etc_hosts("".join(line for line in lines if "chk3" not in line))
    report = check(hosts, level=Level.STANDARD, only=("os.peer_names",))
    assert trouble(report) == [("warn", "os.peer_names", ("chk1",))]
    assert f"on chk1, in /etc/hosts: {third.address} chk3" in report.findings[0].hint


def test_ssh_between_hosts_is_nothing_all_or_a_finding_and_mpirun_by_it_is_tried(
    hosts: Testbed,
) -> None:
    def told() -> tuple[CheckReport, list[str]]:
        report = check(hosts, level=Level.STANDARD, only=("ssh.between", "mpi.ssh"))
        return report, [cells["mpi.ssh"] for cells in report.cells.values()]

    report, started = told()
    assert trouble(report) == []
    assert "no host can ssh to another" in the_finding(report, "ssh.between").summary
    assert started == ["skipped"] * 3

    for host in hosts.hosts:
        host.let_out()
    known = hosts.hosts[0].path(f"{hosts.hosts[0].home}/.ssh/known_hosts")
    report, started = told()
    assert report.findings == ()
    assert started == ["skipped" if obstacle("mpi") else "pass"] * 3

    hosts.hosts[2].keep_in()
    without_second = b"".join(known.read_bytes().splitlines(keepends=True)[::2])
    known.write_bytes(without_second)
    report, started = told()
    assert trouble(report) == [
        ("warn", "ssh.between", ("chk1", "chk2")),
        ("warn", "ssh.between", ("chk3",)),
    ]
    unknown, no_key = report.findings
    assert "on chk3: ssh-copy-id chk1" in no_key.hint
    assert "ssh-keyscan chk2" in unknown.hint
    assert started == ["skipped"] * 3
    assert known.read_bytes() == without_second
    for host in hosts.hosts:
        host.keep_in()


def test_a_dropped_port_range_is_one_finding_about_one_host(hosts: Testbed) -> None:
    hosts.hosts[2].drop_ports(40000, 45000)
    report = check(hosts)
    assert trouble(report) == [("fail", "net.port_ephemeral", ("chk3",))]
    lost = the_finding(report, "net.port_ephemeral").seen.splitlines()[0]
    ports = [int(word) for word in lost.replace(",", " ").split() if word.isdigit()]
    assert ports
    assert all(40000 <= port <= 45000 for port in ports)


def test_a_blocked_fixed_port_is_found(hosts: Testbed) -> None:
    hosts.hosts[0].drop_ports(29500, 29500)
    report = check(hosts)
    assert trouble(report) == [("fail", "net.port_ephemeral", ("chk1",))]
    assert "29500" in the_finding(report, "net.port_ephemeral").seen


def test_a_host_that_gets_nothing_out_is_blamed_for_one_direction(hosts: Testbed) -> None:
    hosts.hosts[2].drop_ports(32768, 60999)
    report = check(hosts)
    assert trouble(report) == [("fail", "net.asymmetric", ("chk3",))]
    assert "nothing gets out of chk3" in the_finding(report, "net.asymmetric").summary


def test_a_host_dead_on_the_network_is_one_finding_though_ssh_works(hosts: Testbed) -> None:
    first, second, third = hosts.hosts
    rules = [f"pref {OPEN_RULE} to {other.address} blackhole" for other in (first, third)]
    ip_batch(second.pid, *(f"rule add {rule}" for rule in rules))
    try:
        report = check(hosts)
    finally:
        ip_batch(second.pid, *(f"rule del {rule}" for rule in rules))
    assert trouble(report) == [("fail", "net.reach_tcp", ("chk2",))]
    assert {(pair.source, pair.target) for pair in report.network.pairs if not pair.reachable} == {
        ("chk1", "chk2"),
        ("chk2", "chk1"),
        ("chk2", "chk3"),
        ("chk3", "chk2"),
    }


def test_two_hosts_that_cannot_reach_each_other_are_named_together(hosts: Testbed) -> None:
    first, second, _ = hosts.hosts
    rule = f"pref {OPEN_RULE} to {first.address} blackhole"
    ip_batch(second.pid, f"rule add {rule}")
    try:
        report = check(hosts)
    finally:
        ip_batch(second.pid, f"rule del {rule}")
    assert trouble(report) == [("fail", "net.reach_tcp", ("chk1", "chk2"))]


def test_docker0_on_every_host_is_one_warning_with_the_network_to_use(hosts: Testbed) -> None:
    for host in hosts.hosts:
        host.add_docker_bridge()
    report = check(hosts)
    assert trouble(report) == [("warn", "net.iface_matrix", ("chk1", "chk2", "chk3"))]
    assert report.ok
    hint = the_finding(report, "net.iface_matrix").hint
    network = hosts.hosts[0].address.rpartition(".")[0] + ".0/24"
    assert f"--mca btl_tcp_if_include {network}" in hint
    assert not check(hosts, strict=True, only=("net.iface",)).ok


def test_an_mtu_black_hole_is_found_before_anything_hangs_in_it(hosts: Testbed) -> None:
    for host in hosts.hosts:
        host.mtu_black_hole("mgmt")
    try:
        report = check(hosts)
    finally:
        for host in hosts.hosts:
            host.mend_mtu("mgmt")
    assert trouble(report) == [("fail", "net.mtu", ("chk1", "chk2", "chk3"))]


def test_a_second_network_that_is_broken_is_a_warning(hosts: Testbed) -> None:
    hosts.hosts[2].link_down("train")
    report = check(hosts, level=Level.STANDARD, only=("net",))
    assert trouble(report) == [("warn", "net.other_networks", ("chk3",))]


def test_a_slow_host_is_named_and_not_its_peers(hosts: Testbed) -> None:
    hosts.hosts[2].cap_bandwidth("8mbit", "mgmt")
    try:
        report = check(hosts, level=Level.FULL, only=("net.bw_pair",))
    finally:
        hosts.hosts[2].uncap_bandwidth("mgmt")
    assert trouble(report) == [("warn", "net.bw_pair", ("chk3",))]
    rates = {(p.source, p.target): p.gbit_s for p in report.network.pairs}
    assert all((rate or 0) < 0.1 for pair, rate in rates.items() if "chk3" in pair)


def test_a_noisy_shell_fails_alone_and_holds_up_nobody(hosts: Testbed) -> None:
    hosts.hosts[1].bashrc("echo welcome\n")
    report = check(hosts)
    assert trouble(report) == [("fail", "ssh.clean_shell", ("chk2",))]
    assert report.cells["chk2"]["ssh.auth"] == "pass"
    assert report.cells["chk2"]["ssh.agent"] == "skipped"
    assert report.cells["chk2"]["os.user"] == "could_not_run"
    assert report.cells["chk1"]["net.reach_tcp"] == "pass"


def test_a_denied_key_is_an_ssh_finding(hosts: Testbed) -> None:
    hosts.hosts[2].deny_keys()
    report = check(hosts, only=("ssh",))
    assert trouble(report) == [("fail", "ssh.auth", ("chk3",))]


def test_a_budget_is_kept_and_what_it_cost_is_said(hosts: Testbed) -> None:
    report = check(hosts, level=Level.STANDARD, budget_seconds=3.5)
    assert {found[:2] for found in trouble(report)} == {("warn", "check.incomplete")}
    assert report.cells["chk1"]["coll.correct"] == "timed_out"
    assert report.seconds < 10


def test_no_listener_is_left_after_a_check(hosts: Testbed) -> None:
    check(hosts, only=("net",))
    for host in hosts.hosts:
        listening = host.exec(["ss", "-Htln"]).stdout.splitlines()
        assert {line.split()[3].rpartition(":")[2] for line in listening} == {"22"}


def test_a_power_cut_is_one_finding_and_leaves_nothing_unsaid(hosts: Testbed) -> None:
    third = hosts.hosts[2]
    third.power_cut()
    try:
        report = check(hosts, level=Level.STANDARD, only=("ssh", "net", "os"))
    finally:
        third.power_on()
    assert trouble(report) == [("fail", "ssh.connect", ("chk3",))]
    assert not report.hosts["chk3"].reachable
    assert set(report.cells["chk3"]) == set(report.cells["chk1"])
    assert report.cells["chk1"]["net.reach_tcp"] == "pass"
