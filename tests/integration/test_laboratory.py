"""Every fault of the laboratory is found, with the right culprit, and nothing else is; a healthy cluster has no finding.

The faults and what must be found are ``testbed.faults``. After each test nothing of the checker is
left on any host.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from distconsole.checks.engine.run import run_check
from distconsole.checks.gather import collective
from distconsole.checks.gather.engine_jobs import EngineAnswer, EngineJob
from distconsole.checks.gather.short_run import short_run
from distconsole.errors import UnavailableError
from distconsole.model.events import CheckEnded, CheckProgress, Event, FindingMade, PairProgress
from distconsole.model.findings import Severity
from distconsole.model.reports import CheckReport
from distconsole.model.requests import Check, LauncherName, Level, Where
from distconsole.rpc import conversation
from distconsole.session import Session, open_session
from suite.obstacles import obstacle
from suite.remains import gone, names
from testbed import Testbed, missing
from testbed.faults import BY_NAME, FAULTS, THREE_AT_ONCE, Fault, Found, Laboratory
from testbed.host import Host
from testbed.slurm import SLURM_ENVIRONMENT, laboratory_slurm

pytestmark = pytest.mark.testbed

MARKS = {"horovod": [pytest.mark.horovod], "slurm": [pytest.mark.slurm]}


def cases(*, slurm: bool) -> list[Any]:
    """Return the faults as parameters, marked by what they need."""
    return [
        pytest.param(fault, id=fault.name, marks=MARKS.get(fault.needs, []))
        for fault in FAULTS
        if (fault.needs == "slurm") is slurm
    ]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, lean: dict[str, str]) -> Iterator[Laboratory]:
    """Three hosts for the tests of this file."""
    if reason := missing():
        pytest.skip(reason)
    tmp_path_factory.getbasetemp()
    with Testbed(hosts=3, prefix="lab", environment=lean) as bed:
        yield Laboratory(bed)


@pytest.fixture
def laboratory(three: Laboratory, nothing_left: None) -> Iterator[Laboratory]:
    """The same three, healthy; nothing of a check may be left on them."""
    yield from left_clean(three)


@pytest.fixture
def slurm_laboratory(nothing_left: None) -> Iterator[Laboratory]:
    """Two nodes of Slurm's and a login host."""
    with Testbed(3, environment=SLURM_ENVIRONMENT) as bed, laboratory_slurm(bed) as slurm:
        yield from left_clean(Laboratory(bed, slurm))


def left_clean(laboratory: Laboratory) -> Iterator[Laboratory]:
    before = {host.name: temporary(host) for host in laboratory.bed.hosts}
    yield laboratory
    hosts = laboratory.bed.hosts
    assert gone(*hosts) == []
    assert {host.name: temporary(host) - before[host.name] for host in hosts} == {
        host.name: set() for host in hosts
    }


def temporary(host: Host) -> set[str]:
    """Return what lies in a host's temporary folders, but for its agent's own and what all hosts share."""
    mounts = Path(f"/proc/{host.pid}/mountinfo").read_text().splitlines()
    shared = {line.split()[4].removesuffix("//deleted") for line in mounts}
    folders = ("/tmp", "/dev/shm")
    found = {f"{folder}/{name}" for folder in folders for name in names(host.path(folder))}
    return {each for each in found - shared if "/distconsole-" not in each}


def events_of(laboratory: Laboratory, **asked: Any) -> Iterator[Event]:
    bed = laboratory.bed
    where = Where(hosts=bed.names, ssh_config=str(bed.ssh_config))
    with open_session(where) as session:
        request = Check(where=where, **{"level": Level.QUICK, **asked})
        yield from run_check(request, session, start=torch_alone)


def torch_alone(session: Session, job: EngineJob) -> EngineAnswer:
    """Start torch's jobs; the other engines have tests of their own."""
    if job.launcher is not LauncherName.TORCH:
        raise UnavailableError("not tried here")
    return short_run(session, job)


def check(laboratory: Laboratory, **asked: Any) -> CheckReport:
    """Check the hosts at level quick unless asked otherwise; return the report."""
    events = list(events_of(laboratory, **asked))
    report = report_of(events)
    assert_pairs_were_told(events, report)
    return report


def report_of(events: list[Event]) -> CheckReport:
    """Return the report; what was told while it went on must be what it says."""
    ended = events[-1]
    assert isinstance(ended, CheckEnded)
    made = {
        (event.finding.check, event.finding.hosts, event.finding.summary): event.finding
        for event in events
        if isinstance(event, FindingMade)
    }
    assert list(made.values()) == list(ended.report.findings)
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


def trouble(report: CheckReport) -> list[Found]:
    """Return what is wrong: severity, check and hosts, in order."""
    return sorted(
        (finding.severity.value, finding.check, finding.hosts)
        for finding in report.findings
        if finding.severity in (Severity.WARN, Severity.FAIL)
    )


def check_for(laboratory: Laboratory, fault: Fault) -> CheckReport:
    return check(laboratory, level=Level(fault.level), only=fault.only)


def assert_exactly(report: CheckReport, fault: Fault, laboratory: Laboratory) -> None:
    """All that must be found is, in the words that it must be, and nothing else."""
    assert trouble(report) == fault.found(laboratory), report.findings
    for expected in fault.expected:
        about = expected.found(laboratory, fault.culprit)[1:]
        (found,) = [each for each in report.findings if (each.check, each.hosts) == about]
        told = "\n".join((found.summary, found.seen, found.hint))
        assert [word for word in expected.words if word not in told] == [], told


@pytest.mark.parametrize("fault", cases(slurm=False))
def test_a_fault_is_found_and_nothing_else(fault: Fault, laboratory: Laboratory) -> None:
    with fault.inject(laboratory, fault.culprit):
        report = check_for(laboratory, fault)
    assert_exactly(report, fault, laboratory)


@pytest.mark.parametrize("fault", cases(slurm=True))
def test_a_fault_of_slurms_is_found_and_nothing_else(
    fault: Fault, slurm_laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fault.inject(slurm_laboratory, fault.culprit), ExitStack() as stack:
        if fault.in_allocation:
            for name, value in stack.enter_context(
                slurm_laboratory.running_slurm.allocation()
            ).items():
                monkeypatch.setenv(name, value)
        report = check_for(slurm_laboratory, fault)
    assert_exactly(report, fault, slurm_laboratory)


def test_six_healthy_hosts_have_no_finding_and_three_faults_are_three(
    nothing_left: None, lean: dict[str, str]
) -> None:
    with Testbed(hosts=6, prefix="big", environment=lean) as bed:
        laboratory = Laboratory(bed)
        assert trouble(check(laboratory)) == []
        with ExitStack() as stack:
            for name, culprit in THREE_AT_ONCE.items():
                stack.enter_context(BY_NAME[name].inject(laboratory, culprit))
            report = check(laboratory)
        expected = [BY_NAME[n].found(laboratory, culprit) for n, culprit in THREE_AT_ONCE.items()]
        assert trouble(report) == sorted(found for each in expected for found in each)
        assert gone(*bed.hosts) == []


def test_healthy_hosts_have_no_finding_and_every_cell_an_outcome(laboratory: Laboratory) -> None:
    report = check(laboratory)
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
    facts = report.hosts["lab2"].facts
    wanted = {"ssh", "os", "python", "torch", "horovod", "mpi", "gpu", "net", "clock", "env"}
    assert wanted <= set(facts)
    assert report.uncovered


def test_a_way_that_breaks_while_a_job_goes_on_is_the_pairs_fault(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "JOIN_SECONDS", 4.0)
    fault = BY_NAME["a-lost-way-and-only-jobs-asked-for"]
    seen: list[Event] = []
    with ExitStack() as stack:
        for event in events_of(laboratory, level=Level.STANDARD, only=fault.only):
            seen.append(event)
            began = isinstance(event, CheckProgress) and (event.host, event.outcome) == (
                "",
                "running",
            )
            if began and event.check == "coll.init":
                stack.enter_context(fault.inject(laboratory, fault.culprit))
    report = report_of(seen)
    assert_exactly(report, fault, laboratory)
    assert {cells["coll.init"] for cells in report.cells.values()} == {"could_not_run"}


def test_a_shell_that_talks_holds_up_nobody(laboratory: Laboratory) -> None:
    with BY_NAME["noisy-shell"].inject(laboratory, 2):
        report = check(laboratory)
    assert report.cells["lab2"]["ssh.auth"] == "pass"
    assert report.cells["lab2"]["ssh.agent"] == "skipped"
    assert report.cells["lab2"]["os.user"] == "could_not_run"
    assert report.cells["lab1"]["net.reach_tcp"] == "pass"


def test_ssh_between_hosts_is_nothing_all_or_a_finding_and_mpirun_by_it_is_tried(
    laboratory: Laboratory,
) -> None:
    def told() -> tuple[CheckReport, list[str]]:
        report = check(laboratory, level=Level.STANDARD, only=("ssh.between", "mpi.ssh"))
        return report, [cells["mpi.ssh"] for cells in report.cells.values()]

    hosts = laboratory.bed.hosts
    report, started = told()
    assert [each.check for each in report.findings] == ["check.incomplete"]
    assert {cells["ssh.between"] for cells in report.cells.values()} == {"skipped"}
    assert started == ["skipped"] * 3

    for host in hosts:
        host.let_out()
    known = hosts[0].path(f"{hosts[0].home}/.ssh/known_hosts")
    report, started = told()
    unmade = ["check.incomplete"] if obstacle("mpi") else []
    assert [each.check for each in report.findings] == unmade
    assert started == ["skipped" if obstacle("mpi") else "pass"] * 3

    hosts[2].keep_in()
    without_second = b"".join(known.read_bytes().splitlines(keepends=True)[::2])
    known.write_bytes(without_second)
    report, started = told()
    assert trouble(report) == [
        ("warn", "check.incomplete", ("lab1", "lab2", "lab3")),
        ("warn", "ssh.between", ("lab1", "lab2")),
        ("warn", "ssh.between", ("lab3",)),
    ]
    unknown, no_key, _ = report.findings
    assert "on lab3: ssh-copy-id lab1" in no_key.hint
    assert "ssh-keyscan lab2" in unknown.hint
    assert started == ["skipped"] * 3
    assert known.read_bytes() == without_second
    for host in hosts:
        host.keep_in()


def test_warnings_fail_when_strict(laboratory: Laboratory) -> None:
    with BY_NAME["docker0-twice"].inject(laboratory, 1):
        assert check(laboratory, only=("net.iface",)).ok
        assert not check(laboratory, strict=True, only=("net.iface",)).ok


def test_a_budget_is_kept_and_what_it_cost_is_said(laboratory: Laboratory) -> None:
    report = check(laboratory, level=Level.STANDARD, budget_seconds=3.5)
    assert {found[:2] for found in trouble(report)} == {("warn", "check.incomplete")}
    assert report.cells["lab1"]["coll.correct"] == "timed_out"
    assert report.seconds < 10


def dying(laboratory: Laboratory, is_now: Callable[[Event], bool], **asked: Any) -> CheckReport:
    """Check while the third host loses its power at the moment of an event, and switch it on again."""
    events: list[Event] = []
    third = laboratory.host(3)
    try:
        for event in events_of(laboratory, **asked):
            events.append(event)
            if third.is_on and is_now(event):
                third.power_cut()
    finally:
        third.power_on()
    return report_of(events)


def begins(stage: str) -> Callable[[Event], bool]:
    return lambda event: (
        isinstance(event, CheckProgress) and (event.check, event.host) == (stage, "")
    )


@pytest.mark.parametrize(
    ("stage", "level", "only"),
    [
        ("net.reach_tcp", Level.QUICK, ("ssh", "os", "net")),
        ("coll.init", Level.STANDARD, ("ssh.lost", "coll.")),
    ],
)
def test_a_host_that_dies_meanwhile_is_one_finding_and_costs_the_others_nothing(
    stage: str,
    level: Level,
    only: tuple[str, ...],
    laboratory: Laboratory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversation, "PING_SECONDS", 1.0)
    monkeypatch.setattr(conversation, "LOST_SECONDS", 4.0)
    report = dying(laboratory, begins(stage), level=level, only=only)
    assert trouble(report) == [("fail", "ssh.lost", ("lab3",))], report.findings
    assert set(report.cells["lab3"]) == set(report.cells["lab1"])
    for cells in (report.cells["lab1"], report.cells["lab2"]):
        assert "fail" not in cells.values()
        assert cells["ssh.lost"] == "pass"
