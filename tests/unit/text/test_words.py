"""Events in words: what a person at a shell reads, and what a program reads from ``--json``."""

import json
from typing import Any

import msgspec
import pytest

from distconsole.cli.main import exit_code_of
from distconsole.formats.figures import bytes_text, number_text
from distconsole.model import requests as ask
from distconsole.model.events import CheckEnded, Narration
from distconsole.model.findings import Cure, Finding, HostCure, Proof, Severity
from distconsole.model.names import ranks_text
from distconsole.model.reports import (
    CheckOutcome,
    CheckReport,
    ChoiceReport,
    HostReport,
    NetworkReport,
    PairReport,
    ProfileLine,
    ProfileReport,
    TargetHost,
    TargetReport,
)
from distconsole.model.run_events import (
    EndState,
    GpuSample,
    LinkChanged,
    LogLine,
    Metric,
    NodeSample,
    PlanMade,
    PlannedHost,
    RankChanged,
    RankState,
    RunEnded,
    RunFinding,
    RunRestarted,
    Window,
)
from distconsole.model.run_summary import FirstFailure
from distconsole.text import run
from distconsole.text.check import made_text
from distconsole.text.run import note_text
from distconsole.text.tables import table
from fakes.blank import blank
from suite.printing import print_events

RUN = "digits-1121-a3f9"


def plan(world: int = 2) -> PlanMade:
    hosts = tuple(
        blank(PlannedHost, host=f"node{rank + 1}", ranks=(rank,)) for rank in range(world)
    )
    return blank(PlanMade, t=1.0, run=RUN, launcher="torch", world_size=world, hosts=hosts)


def rank_is(rank: int, state: RankState, **fields: int) -> RankChanged:
    where = {"host": f"node{rank + 1}", "pid": 1}
    return blank(RankChanged, t=2.0, run=RUN, rank=rank, state=state, **where, **fields)


def ended(state: EndState, exit_code: int, **fields: Any) -> RunEnded:
    return RunEnded(t=9.0, run=RUN, state=state, exit_code=exit_code, seconds=8.0, **fields)


def shown(request: ask.Request, report: CheckReport, **changed: Any) -> str:
    """Return what is written of a report that differs in some fields."""
    event = CheckEnded(report=msgspec.structs.replace(report, **changed))
    return print_events(request, event)[0]


RUN_IT = ask.Run(script="t.py")
FAILURE = FirstFailure(rank=1, host="node2", exit_code=3, error="ValueError: boom")


def test_what_ranks_print_goes_to_the_stream_they_printed_it_to() -> None:
    out, err = print_events(
        ask.Run(script="train.py"),
        LogLine(t=1.0, run=RUN, host="node1", rank=0, stream="out", line="hello"),
        LogLine(t=1.0, run=RUN, host="node2", rank=1, stream="err", line="oh"),
    )
    assert out == "[0 node1] hello\n"
    assert err == "[1 node2] oh\n"


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (RUN_IT, True),
        (ask.Rerun(run="last"), True),
        (ask.Run(script="t.py", detach=True), False),  # which says so where it leaves
        (ask.Run(script="t.py", dry_run=True), False),
        (ask.Attach(run="last"), False),
        (ask.Demo(), False),
    ],
)
def test_who_starts_a_run_in_a_shell_is_told_how_to_watch_it(
    request_: ask.Request, told: bool
) -> None:
    words = f"\nwatch it: distconsole attach {RUN}\n"
    assert words not in print_events(request_, plan())[1]  # it may be refused
    rank = rank_is(0, RankState.STARTING)
    assert print_events(request_, plan(), rank, rank)[1].count(words) == told


def test_a_progress_bar_leaves_no_lines_in_a_pipe() -> None:
    line = LogLine(t=1.0, run=RUN, host="n", rank=0, stream="err", line="50%|##", transient=True)
    assert print_events(RUN_IT, line, line) == ("", "")


def test_progress_that_has_not_changed_is_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PROGRESS_SECONDS", 0.0)
    rank, sample = rank_is(0, RankState.EXITED), blank(NodeSample, t=3.0, run=RUN, host="node1")
    failed = rank_is(0, RankState.FAILED, exit_code=1)
    said = print_events(RUN_IT, plan(1), rank, *[sample] * 3, failed, *[sample] * 2)[1]
    assert said.count("\nall ranks have ended") == 1
    assert said.count("\nrank 0 failed: ") == 1


def test_the_end_names_the_rank_that_failed_first() -> None:
    end = ended(EndState.FAILED, 3, first_failure=FAILURE)
    out, err = print_events(RUN_IT, plan(), end)
    assert (out, exit_code_of(end)) == ("", 3)
    assert "failed after 8.0 s, exit code 3" in err
    assert "first failure: rank 1 on node2: ValueError: boom" in err


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("", "node node2 lost: no word"),
        ("", "ranks disagree in a collective; rank 1 on node2 noticed it: 64 vs 32"),
        ("", "mpirun's daemon on node2 killed by SIGKILL"),
        ("node2: ", "mpirun exited with code 1"),
        ("node2: ", "srun was killed by SIGKILL"),
        ("node2: ", "torchrun killed by SIGKILL"),
    ],
)
def test_the_end_blames_no_rank_for_its_host_or_its_launcher(place: str, error: str) -> None:
    first = FirstFailure(rank=1, host="node2", exit_code=1, error=error)
    end = ended(EndState.FAILED, 1, first_failure=first)
    _, err = print_events(RUN_IT, plan(), end)
    assert f"first failure: {place}{error}\n" in err
    words = f"failed after 8.0 s, 5 steps, exit code 1; {place}{error}"
    assert note_text(end, "5 steps") == f"{RUN} {words}"


def test_a_finding_shows_its_traceback_and_its_hint() -> None:
    said = {"summary": "rank 1 failed", "seen": "Traceback\n  line 1", "hint": "look here"}
    fail = {"check": "run.first_failure", "severity": Severity.FAIL, **said}
    finding = RunFinding(t=2.0, run=RUN, **fail)
    lines = "FAIL rank 1 failed\n     Traceback\n       line 1\n     hint: look here\n"
    assert print_events(RUN_IT, finding)[1] == lines


def test_a_lost_host_that_ends_the_run_is_one_finding() -> None:
    def finding(check: str, summary: str, hint: str) -> RunFinding:
        said = {"check": check, "severity": Severity.FAIL, "summary": summary, "hint": hint}
        return RunFinding(t=2.0, run=RUN, hosts=("node2",), **said)

    stopped = "node node2 has not answered node1 for 120 s; the run was stopped"
    lost = finding("run.node_lost", stopped, "see whether node2 is up")
    first = finding("run.first_failure", "node node2 lost", "logs")
    _, err = print_events(RUN_IT, plan(), lost, first)
    failures = [line for line in err.splitlines() if line.startswith("FAIL")]
    assert failures == [f"FAIL {lost.summary}"]
    of_rank = msgspec.structs.replace(first, rank=1, summary="rank 1 failed")
    _, err = print_events(RUN_IT, plan(), lost, of_rank)
    assert "FAIL rank 1 failed" in err


def test_a_rank_that_exits_with_a_code_is_marked() -> None:
    ends = [rank_is(rank, RankState.EXITED, exit_code=code) for rank, code in ((0, 0), (1, 2))]
    _, err = print_events(RUN_IT, plan(), *ends)
    assert err.splitlines()[-1] == "rank 1 on node2: exited with exit code 2"
    assert "rank 0 on" not in err


def test_a_check_says_how_many_checks_passed_of_how_many() -> None:
    cells = {"a": {"x.a": "pass", "x.b": "skipped"}, "b": {"x.a": "warn", "x.b": "timed_out"}}
    told = made_text(msgspec.structs.replace(report(ok=True), cells=cells))
    assert told == "1 of 4 checks passed, 1 warned, 1 timed out, 1 skipped"


def test_a_restart_is_told_and_so_is_when_all_ranks_run_again() -> None:
    running = [rank_is(rank, RankState.RUNNING) for rank in (0, 1)]
    starting = [rank_is(rank, RankState.STARTING) for rank in (0, 1)]
    again = RunRestarted(t=3.0, run=RUN, restart=1, of=3, checkpoint="/c/step-4.pt")
    end = ended(EndState.SUCCEEDED, 0, restarts=1)
    _, err = print_events(RUN_IT, plan(), *running, again, *starting, *running, end)
    told = err.splitlines()
    assert told[-4:] == [
        "all 2 ranks run",
        "restart 1 of 3",
        "all 2 ranks run",
        "succeeded after 8.0 s, 1 restart",
    ]


def test_the_end_of_a_run_says_nothing_of_the_one_that_slurm_requeued() -> None:
    metric = blank(Metric, t=3.0, run=RUN, name="loss", step=7, value=0.5)
    window = blank(Window, t=3.0, run=RUN, rank=0, step=7, steps=8)
    first = (plan(), rank_is(0, RankState.RUNNING), window, metric, ended(EndState.FAILED, 143))
    never_begun = msgspec.structs.replace(ended(EndState.STOPPED, 130), run="digits-2")
    _, err = print_events(ask.Run("train.py"), *first, never_begun)
    assert err.count("8 steps") == err.count("loss 0.5 at") == 1
    assert err.endswith("stopped after 8.0 s, exit code 130\n")


@pytest.mark.parametrize(("launcher", "times"), [("single", 1), ("torchrun", 2)])
def test_ranks_that_a_script_spawns_are_not_announced_again(launcher: str, times: int) -> None:
    """With an inner torchrun both numbers of the plan begin again, and more ranks follow."""
    planned = msgspec.structs.replace(plan(), launcher=launcher)
    began = [
        RankChanged(t=2.0, run=RUN, rank=rank, state=state, host=host, local_rank=0, pid=pid)
        for pid in (1, 2)
        for state in (RankState.STARTING, RankState.RUNNING)
        for rank, host in enumerate(("node1", "node2"))
    ]
    _, err = print_events(ask.Run(script="t.sh"), planned, *began)
    assert err.splitlines().count("all 2 ranks run") == times


def test_a_lost_host_is_told_and_its_return_too() -> None:
    _, err = print_events(
        RUN_IT,
        LinkChanged(t=1.0, run=RUN, host="node1", connected=False, reason="timed out"),
        LinkChanged(t=2.0, run=RUN, host="node1", connected=True),
    )
    assert "node1: connection lost (timed out); the run goes on" in err
    assert "node1: connected again" in err


def test_json_has_one_event_a_line_with_the_fields_of_the_contract() -> None:
    window = blank(
        Window, t=2.0, run=RUN, step=9, steps=10, step_ms_mean=1.5, metrics={"loss": 0.5}
    )
    rank = rank_is(0, RankState.RUNNING)
    metric = blank(Metric, t=2.0, run=RUN, name="loss", step=9, value=1.0, ranks=2)
    out, err = print_events(
        ask.Run(script="t.py", json=True), plan(), rank, window, metric, Narration(text="told")
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["event"] for line in lines] == ["plan", "rank", "window", "metric"]
    assert all({"t", "run", "event"} <= line.keys() for line in lines)
    assert {"launcher", "why", "world_size", "hosts"} <= lines[0].keys()
    assert "exit_code" not in lines[1]
    assert lines[2]["step_ms_p95"] is None
    assert lines[3]["samples"] is None
    assert err == "told\n"


def report(*, ok: bool, reachable: bool = True) -> CheckReport:
    finding = Finding(
        check="os.hostname_bindable",
        severity=Severity.FAIL,
        hosts=("node1",),
        summary="its name is 127.0.1.1",
        seen="getaddrinfo",
        expected="an address of node1",
        hint="edit /etc/hosts",
    )
    return CheckReport(
        ok=ok,
        outcome=CheckOutcome.HEALTHY if ok else CheckOutcome.FAILED,
        hosts={"node1": HostReport(reachable=reachable, facts={"os": {}})},
        findings=() if ok else (finding,),
        network=NetworkReport(
            pairs=(PairReport(source="a", target="b", rtt_us=9.0, gbit_s=None),)
        ),
        collectives=(),
        seconds=1.25,
        cells={"node1": {"os.hostname_bindable": "pass" if ok else "fail"}},
        uncovered=("GPUs: there are none",),
        stage_seconds={"local facts": 0.25, "os.peer_names": 0.01, "coll.init": 0.9},
    )


def test_a_report_in_words_has_the_culprit_the_evidence_the_cure_and_what_it_does_not_cover() -> (
    None
):
    out, _ = print_events(ask.Check(details=True), CheckEnded(report=report(ok=False)))
    assert out.splitlines()[:4] == [
        "FAIL node1: its name is 127.0.1.1 [os.hostname_bindable]",
        "       seen: getaddrinfo",
        "       expected: an address of node1",
        "       hint: edit /etc/hosts",
    ]
    assert "not healthy: 1 of 1 host reachable, 0 of 1 check passed, 1 failed, 1.2 s" in out
    assert "time: coll.init 0.9 s, local facts 0.2 s\nnot covered: GPUs: there are none" in out


def test_a_report_of_a_launch_begins_with_what_would_be_launched() -> None:
    hosts = tuple(
        TargetHost(host=name, ranks=(rank,), address=f"10.0.0.{rank + 1}", interface="eth0")
        for rank, name in enumerate("ab")
    )
    target = TargetReport(
        command=("train.py",),
        script="/w/train.py",
        launcher="torch",
        why="the script uses torch.distributed",
        world_size=2,
        hosts=hosts,
        port=29511,
        fixed_by="MASTER_PORT",
        notes=("one thing",),
    )
    out = shown(ask.Check(), report(ok=True), target=target)
    assert out.splitlines()[:3] == [
        "launch: /w/train.py: 2 ranks on 2 hosts by torch: the script uses torch.distributed",
        "        meeting at 10.0.0.1 over eth0, port 29511 (MASTER_PORT)",
        "        note: one thing",
    ]
    refused = msgspec.structs.replace(target, world_size=0, refused="no")
    out = shown(ask.Check(), report(ok=False), target=refused)
    assert out.startswith("launch: /w/train.py: run would refuse it\n")


def test_a_report_is_a_line_a_finding_worst_first_with_what_to_type_first() -> None:
    (bad,) = report(ok=False).findings
    proof = Proof(ran="gloo", before="no answer in 15 s", after="0.2 s", cured=True, seconds=16)
    told = (
        msgspec.structs.replace(bad, severity=Severity.INFO, summary="node1: by the way"),
        msgspec.structs.replace(
            bad, hosts=tuple(f"n{n}" for n in range(9)), hint="one\ntwo\nthree", proof=proof
        ),
    )
    event = CheckEnded(report=msgspec.structs.replace(report(ok=False), findings=told))
    out, err = print_events(ask.Check(), event)
    assert out.splitlines()[:4] == [
        "FAIL n0,n1,n2,n3,n4 and 4 more: its name is 127.0.1.1 [os.hostname_bindable]",
        "       cured: no answer in 15 s -> 0.2 s",
        "       hint: one  (and 2 more)",
        "info node1: by the way [os.hostname_bindable]",
    ]
    assert "--details" in err
    assert "interfaces" not in out


def test_what_was_written_into_the_configuration_is_told_with_its_proof() -> None:
    line = ProfileLine(
        table=["hosts", "node2"],
        key="setup",
        value="module load x\nulimit -n 9000",
        check="lim.nofile",
        before="EMFILE after 396",
        after="640 files are open at once",
    )
    profile = ProfileReport(
        file="distconsole.toml",
        written=(line,),
        there=("[hosts.node1] nic",),
        left={"net.iface_matrix": "names the network"},
    )
    out = shown(ask.Check(), report(ok=False), profile=profile)
    assert out.splitlines()[-5:] == [
        "written to distconsole.toml:",
        "  [hosts.node2] setup = module load x; ulimit -n 9000",
        "    lim.nofile: EMFILE after 396 -> 640 files are open at once",
        "  there already: [hosts.node1] nic",
        "  not for net.iface_matrix: `run` names the network",
    ]


def test_a_cure_that_was_tried_is_told_in_the_line_and_in_full() -> None:
    (bad,) = report(ok=False).findings
    proof = Proof(ran="gloo", before="refused", after="exact sums", cured=True, seconds=3.0)
    cure = Cure(hosts={"node1": HostCure(env={"GLOO_SOCKET_IFNAME": "eth0"})})
    tried = msgspec.structs.replace(bad, proof=proof, cure=cure)
    out = shown(ask.Check(), report(ok=False), findings=(tried, tried))
    words = "cured by `on node1: export GLOO_SOCKET_IFNAME=eth0`: refused -> exact sums"
    assert out.count(words) == 2
    full = shown(ask.Check(details=True), report(ok=False), findings=(tried, tried))
    assert full.count("before: refused (gloo)") == full.count("after: exact sums: cured") == 2


def choice(host: str, *, meets: bool, start: str = "hand") -> ChoiceReport:
    return ChoiceReport(
        engine="Gloo",
        start=start,
        host=host,
        interface="eth0" if meets else "lo",
        address="10.0.0.1" if meets else "127.0.1.1",
        how="its own name",
        meets=meets,
        why="" if meets else "it is loopback",
    )


def test_the_interfaces_taken_are_told_where_hosts_do_not_meet_and_when_asked_for() -> None:
    well = tuple(choice(host, meets=True) for host in ("a", "b", "c"))
    run = tuple(choice(host, meets=True, start="run") for host in ("a", "b", "c", "d"))
    red = (*well, choice("d", meets=False), *run)
    for request, choices, told in (
        (ask.Check(), (*well, *run[:3]), False),
        (ask.Check(details=True), (*well, *run[:3]), True),
        (ask.Check(level=ask.Level.FULL), (*well, *run[:3]), True),
        (ask.Check(), red, True),
    ):
        out = shown(request, report(ok=True), choices=choices)
        assert ("interfaces with `distconsole run`" in out) == told
    assert out.splitlines()[2:5] == [
        "        d           a and 2 more",
        "  Gloo  eth0 · ✗lo  eth0",
        "  ✗ by hand, Gloo on d: lo 127.0.1.1 (its own name): it is loopback",
    ]


def test_a_report_in_json_is_one_object_with_the_fields_of_the_contract() -> None:
    out, _ = print_events(ask.Check(json=True), CheckEnded(report=report(ok=True)))
    (line,) = out.splitlines()
    fields = json.loads(line)
    assert {"ok", "hosts", "findings", "network", "collectives", "seconds"} <= fields.keys()
    assert fields["network"]["pairs"][0]["from"] == "a"
    assert msgspec.json.decode(line.encode(), type=CheckReport) == report(ok=True)


@pytest.mark.parametrize(
    ("ok", "reachable", "code"), [(True, True, 0), (False, True, 1), (False, False, 3)]
)
def test_a_check_exits_by_health_and_by_reach(ok: bool, reachable: bool, code: int) -> None:
    assert exit_code_of(CheckEnded(report=report(ok=ok, reachable=reachable))) == code


def test_top_prints_empty_cells_where_nothing_is_known() -> None:
    node = blank(NodeSample, t=1.0, host="n")
    gpu = blank(GpuSample, t=1.0, host="n")
    out, _ = print_events(ask.Top(once=True), node, gpu)
    assert out.splitlines()[1] == "n"
    assert out.splitlines()[-1] == "n     0"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (ranks_text([0, 1, 2, 5, 7, 8]), "0-2,5,7-8"),
        (ranks_text([]), ""),
        (bytes_text(None), ""),
        (bytes_text(1536), "2K"),
        (bytes_text(3 * 1024**3), "3.0G"),
        (number_text(0.1234), "0.12"),
        (number_text(0.00020291), "0.000203"),
        (number_text(0.0), "0.00"),
        (number_text(-1e308, " ms"), "-1e+308 ms"),
        (number_text(999_999_999.0), "999,999,999"),
        (number_text(1234.5, "W"), "1,234W"),
    ],
)
def test_figures_are_short(made: str, text: str) -> None:
    assert made == text


def test_a_table_is_aligned() -> None:
    assert table(("a", "n"), [("x", "1"), ("long", "100")], right=(1,)) == [
        "a       n",
        "x       1",
        "long  100",
    ]
