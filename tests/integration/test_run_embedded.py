"""Runs on embedded nodes: real SSH on loopback, real agents, ordinary Python as ranks."""

import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from distconsole.cli.main import perform_headless
from distconsole.errors import ConsoleError, PlanError, RunNotFoundError, UnreachableError
from distconsole.model.events import Narration, RunListed, RunShown, TextMade
from distconsole.model.requests import (
    Attach,
    Export,
    ExportFormat,
    Logs,
    Rerun,
    Run,
    Runs,
    Show,
    Stop,
    Top,
    Where,
)
from distconsole.model.run_events import (
    EndState,
    LogLine,
    Metric,
    NodeSample,
    PlanMade,
    RankChanged,
    RankState,
    RunFinding,
    RunRestarted,
)
from distconsole.operations import SessionSource, StopReason, perform
from distconsole.session import Session
from distconsole.ssh.embedded import EmbeddedCluster
from suite.driving import Operator, answered, write_job

HANG = "print('up', flush=True)\ntime.sleep(300)"


def test_a_run_succeeds_on_two_nodes_and_is_kept(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    text = "print('rank', rank, 'of', os.environ['WORLD_SIZE'], *sys.argv[1:])"
    request = Run(write_job(tmp_path, text), ("a b",), nproc="2", name="first")
    with Operator(request, standing_sessions) as run:
        end = run.ended()
        assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0)
        assert sorted(run.lines()) == [f"rank {rank} of 4 a b" for rank in range(4)]
        (plan,) = run.of(PlanMade)
        assert [(host.host, host.ranks) for host in plan.hosts] == [
            ("node1", (0, 1)),
            ("node2", (2, 3)),
        ]
        exits = [event for event in run.of(RankChanged) if event.state is RankState.EXITED]
        assert sorted((event.rank, event.exit_code) for event in exits) == [
            (rank, 0) for rank in range(4)
        ]
        assert run.events[-1] is end
    (shown,) = answered(Show("first"), standing_sessions).of(RunShown)
    assert (shown.summary.state, shown.summary.world_size) == ("succeeded", 4)
    with Operator(Attach("last"), standing_sessions) as again:
        replayed = again.finish()
    assert replayed[0] == plan
    assert (again.end().exit_code, again.end().seconds) == (end.exit_code, end.seconds)
    assert sorted(again.lines()) == sorted(run.lines())


class AtHand:
    """Sessions of a front end that has one open anyway."""

    at_hand = True

    def __init__(self, sessions: SessionSource) -> None:
        self._sessions = sessions

    def __call__(self, where: Where, /) -> AbstractContextManager[Session]:
        return self._sessions(where)


def test_hosts_at_hand_are_asked_for_a_run_that_was_started_elsewhere(
    sessions: SessionSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Operator(Run(write_job(tmp_path, HANG), nproc="1", name="distant"), sessions) as run:
        run.see(LogLine, lambda line: line.line == "up")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another"))
        with pytest.raises(RunNotFoundError, match="there is no run distant"):
            list(perform(Attach("distant"), sessions))
        own = AtHand(sessions)
        (shown,) = [each for each in perform(Show("distant"), own) if isinstance(each, RunShown)]
        assert shown.summary.state == "running"
        (listed,) = [each for each in perform(Runs(), own) if isinstance(each, RunListed)]
        assert listed.summary.state == "running"
        with pytest.raises(RunNotFoundError) as caught:
            list(perform(Stop("distnat"), own))
        assert "did you mean distant?" in caught.value.hint
        list(perform(Stop("distant", grace_seconds=1.0), own))
        assert run.end().state is EndState.STOPPED


@pytest.mark.parametrize(
    ("reason", "exit_code"), [(StopReason.INTERRUPT, 130), (StopReason.TERMINATE, 143)]
)
def test_a_run_that_hangs_is_stopped(
    standing_sessions: SessionSource, tmp_path: Path, reason: StopReason, exit_code: int
) -> None:
    with Operator(Run(write_job(tmp_path, HANG), nproc="1"), standing_sessions) as run:
        run.see(LogLine, lambda line: line.line == "up")
        run.control.stop(reason)
        end = run.end()
    assert (end.state, end.exit_code) == (EndState.STOPPED, exit_code)
    killed = [each for each in run.of(RankChanged) if each.state is RankState.KILLED]
    assert [(each.signal, each.stopped) for each in killed] == [(15, True)] * 2


def test_a_run_that_ignores_the_stop_is_killed_by_the_second_wish(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    text = f"signal.signal(signal.SIGTERM, lambda *_: print('not me', flush=True))\n{HANG}"
    request = Run(write_job(tmp_path, text), nproc="1", grace_seconds=200)
    with Operator(request, standing_sessions) as run:
        run.see(LogLine, lambda line: line.line == "up" and line.rank == 0)
        run.see(LogLine, lambda line: line.line == "up" and line.rank == 1)
        run.control.stop()
        run.see(LogLine, lambda line: line.line == "not me")
        run.control.kill()
        assert run.end().exit_code == 130


def test_a_run_that_was_left_goes_on_and_is_stopped_by_name(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    text = "for number in range(10000):\n    print(number, flush=True)\n    time.sleep(0.01)"
    with Operator(
        Run(write_job(tmp_path, text), nproc="1", name="long"), standing_sessions
    ) as run:
        run.see(LogLine, lambda line: line.line == "20")
        run.control.leave()
        run.finish()
    with Operator(Attach("long"), standing_sessions) as attached:
        attached.see(LogLine, lambda line: line.line == "120" and line.rank == 0)
        attached.see(LogLine, lambda line: line.line == "120" and line.rank == 1)
        answered(Stop("long"), standing_sessions)
        end = attached.end()
    assert (end.state, end.exit_code) == (EndState.STOPPED, 143)
    for rank in (0, 1):
        lines = [each for each in attached.of(LogLine) if not each.transient]
        seen = [int(line.line) for line in lines if line.rank == rank]
        assert seen == list(range(len(seen)))


def test_a_detached_run_is_found_on_its_hosts_from_elsewhere(
    sessions: SessionSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "print('done', rank)"
    run = answered(Run(write_job(tmp_path, text), nproc="1", detach=True), sessions)
    assert [event.text for event in run.of(TextMade)] == [run.run]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another-machine"))
    with Operator(Attach(run.run), sessions) as lost, pytest.raises(RunNotFoundError):
        lost.finish()
    where = Where(hosts="node1,node2")
    with Operator(Attach(run.run, where=where), sessions) as found:
        assert found.end().exit_code == 0
    assert sorted(found.lines()) == ["done 0", "done 1"]
    listed = [e.summary for e in answered(Runs(where=where), sessions).of(RunListed)]
    assert [(each.run, each.state) for each in listed] == [(run.run, "succeeded")]


def test_logs_are_filtered_cut_and_followed(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    text = f"for n in range(5): print(rank, n, flush=True)\nif rank == 1:\n    {HANG[24:]}"
    request = Run(write_job(tmp_path, text), nproc="1", name="chatty", detach=True)
    answered(request, standing_sessions)
    with Operator(Logs("chatty", follow=True), standing_sessions) as followed:
        followed.see(LogLine, lambda line: line.line == "1 4")
        followed.see(LogLine, lambda line: line.line == "0 4")
        tail = answered(Logs("chatty", ranks=((1, 1),), tail=2), standing_sessions)
        assert tail.lines() == ["1 3", "1 4"]
        answered(Stop("chatty"), standing_sessions)
        followed.finish()
    assert sorted(followed.lines()) == sorted(f"{r} {n}" for r in (0, 1) for n in range(5))
    stored = answered(Logs("chatty", host="node1"), standing_sessions)
    assert stored.lines() == [f"0 {number}" for number in range(5)]


def test_a_run_is_exported_and_run_again(standing_sessions: SessionSource, tmp_path: Path) -> None:
    text = (
        "from distconsole_training import report\n"
        "for step in range(30):\n    report(loss=10 - step / 10 + rank, step=step, samples=4)\n"
        "time.sleep(1.5)"
    )
    with Operator(Run(write_job(tmp_path, text), nproc="1"), standing_sessions) as run:
        run.ended()
    metrics = [metric for metric in run.of(Metric) if metric.name == "loss"]
    assert metrics[-1].ranks == 2
    assert metrics[-1].value == pytest.approx(10 - metrics[-1].step / 10 + 0.5)
    texts = [e.text for e in answered(Export("last"), standing_sessions).of(TextMade)]
    assert '"event":"plan"' in texts[0]
    assert '"event":"end"' in texts[-1]
    target = tmp_path / "out.csv"
    answered(Export("last", ExportFormat.CSV, str(target)), standing_sessions)
    rows = target.read_text().splitlines()
    assert rows[0] == "t,event,host,rank,gpu,step,name,value"
    assert any(",metric," in row and ",loss," in row for row in rows)
    with Operator(Rerun("last", exclude=("node2",)), standing_sessions) as again:
        assert again.end().exit_code == 0
        (plan,) = again.of(PlanMade)
    assert [host.host for host in plan.hosts] == ["node1"]
    assert plan.run != run.run


def test_a_plan_is_shown_without_starting_anything(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    request = Run(write_job(tmp_path, "raise SystemExit(9)"), nproc="2", dry_run=True)
    events = answered(request, standing_sessions).events
    assert isinstance(events[-1], TextMade)
    assert "RANK=3 LOCAL_RANK=1" in events[-1].text
    assert answered(Runs(), standing_sessions).of(RunListed) == []


def test_a_run_that_cannot_be_started_leaves_nothing(
    sessions: SessionSource, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.power_cut("node2")
    request = Run(write_job(tmp_path, HANG), nproc="1")
    with Operator(request, sessions) as run, pytest.raises(UnreachableError, match="node2"):
        run.finish(120)
    assert answered(Runs(), sessions).of(RunListed) == []


def test_a_script_that_the_hosts_lack_is_refused_before_anything_starts(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    with (
        Operator(Run(str(tmp_path / "missing.py"), nproc="1"), standing_sessions) as run,
        pytest.raises(PlanError, match=r"/missing\.py does not exist on node1, node2$"),
    ):
        run.finish()
    assert run.of(RankChanged) == []
    end = run.end()
    assert run.events[-1] is end
    assert (end.run, end.state, end.exit_code) == (run.of(PlanMade)[0].run, EndState.FAILED, 2)
    assert str(end.error).endswith("missing.py does not exist on node1, node2")
    assert str(end.hint) == "it is not on this machine, either; --workdir says where they have it"
    assert answered(Runs(), standing_sessions).of(RunListed) == []


def test_a_program_that_follows_sees_the_end_of_what_could_not_be_started(
    standing_sessions: SessionSource, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_job(tmp_path, "print('once')")
    answered(Run(path, nproc="1", name="once"), standing_sessions)
    Path(path).unlink()
    for request in (Run(path, json=True), Rerun("once", json=True)):
        assert perform_headless(request, sessions=standing_sessions) == 2
        out, err = capfd.readouterr()
        plan, end = map(json.loads, out.splitlines())
        assert (plan["event"], end["event"], end["run"]) == ("plan", "end", plan["run"])
        assert (end["state"], end["exit_code"]) == ("failed", 2)
        assert f"error: {end['error']}\nhint: {end['hint']}\n" in err
    assert perform_headless(Run(path), sessions=standing_sessions) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("does not exist") == 1
    assert "failed" not in err


def test_code_that_cannot_be_brought_ends_the_stream(
    sessions: SessionSource, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    path = write_job(tmp_path, "print('up')")
    node_dir = cluster.folder / "node2" / "node"
    node_dir.mkdir(mode=0o700)
    (node_dir / "blobs").write_text("not a folder")
    with Operator(Run(path, sync=True), sessions) as run, pytest.raises(ConsoleError):
        run.finish()
    assert str(run.end().error).startswith("the code cannot")


def test_top_shows_every_host_once(standing_sessions: SessionSource) -> None:
    events = answered(Top(once=True, interval_seconds=0.2), standing_sessions).events
    assert [e.host for e in events if isinstance(e, NodeSample)] == ["node1", "node2"]


def test_a_job_that_fails_is_restarted_with_its_last_checkpoint(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    text = (
        "import pathlib\n"
        "before = os.environ.get('DISTCONSOLE_CHECKPOINT')\n"
        # In one write: a rank that is stopped meanwhile has said all of it, or nothing.
        "sys.stdout.write(f'from {before and pathlib.Path(before).name}\\n'); sys.stdout.flush()\n"
        f"path = pathlib.Path({str(tmp_path)!r}) / f'step-{{1 if before is None else 2}}.pt'\n"
        "if rank == 0:\n"
        "    path.write_text('weights')\n"
        "    (pathlib.Path(os.environ['DISTCONSOLE_RUN_DIR']) / 'checkpoint').write_text(str(path))\n"
        "    sys.exit(0 if before and 'step-2' in before else 5)"
    )
    with Operator(Run(write_job(tmp_path, text), max_restarts=4), standing_sessions) as run:
        end = run.end()
    assert (end.state, end.exit_code, end.restarts) == (EndState.SUCCEEDED, 0, 2)
    told = [each.summary for each in run.of(RunFinding) if each.check == "run.restart"]
    assert [summary.partition("; ")[2] for summary in told] == [
        f"restart 1 of 4 in 0.5 s, with the checkpoint {tmp_path}/step-1.pt",
        f"restart 2 of 4 in 1 s, with the checkpoint {tmp_path}/step-2.pt",
    ]
    assert [(each.restart, each.of) for each in run.of(RunRestarted)] == [(1, 4), (2, 4)]
    assert len({event.run for event in run.of(RunRestarted)} | {end.run}) == 1
    # A rank that is stopped early may have said nothing.
    assert list(dict.fromkeys(line for line in run.lines() if line.startswith("from"))) == [
        "from None",
        "from step-1.pt",
        "from step-2.pt",
    ]
    with Operator(Logs(end.run, ranks=((0, 0),), tail=2), standing_sessions) as logs:
        told = [
            each.line if isinstance(each, LogLine) else each.text
            for each in logs.finish()
            if isinstance(each, LogLine | Narration)
        ]
    # The first line of an attempt may be read before the agent hears that it began.
    assert [line for line in told if line.startswith("from")] == [
        "from step-1.pt",
        "from step-2.pt",
    ]
    assert "restart 2 of 4" in told


def test_what_nccl_writes_into_the_runs_folder_is_a_finding(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    # There is no GPU here: the rank writes one of NCCL's lines where NCCL would.
    line = "n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0"
    text = (
        "assert os.environ['NCCL_DEBUG_SUBSYS'] == 'INIT,ENV,NET'\n"
        "path = os.environ['NCCL_DEBUG_FILE'].replace('%h', 'n').replace('%p', str(os.getpid()))\n"
        f"open(path, 'w').write({line!r} + chr(10))"
    )
    with Operator(Run(write_job(tmp_path, text), nccl_debug=True), standing_sessions) as run:
        assert run.end().state is EndState.SUCCEEDED
        run.finish()
        found = [each for each in run.of(RunFinding) if each.check == "run.nccl"]
        assert {each.summary for each in found} == {"NCCL goes by NET/Socket between hosts"}
