"""How a run on one node ends: by itself, by a failure, by a request; nothing may be left."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from distconsole_agent.supervisor import proctree
from distconsole_agent.system import unix
from fakes.shims import RunUnderTest, StartedRun, gone, script, wait_until
from suite.lean_torch import LEAN_TORCH

PY = sys.executable


def test_ranks_that_end_well_make_a_run_that_succeeded(tmp_path: Path) -> None:
    hello = script(
        tmp_path, "import os; print('rank', os.environ['RANK'], os.getsid(0) == os.getpid())"
    )
    with RunUnderTest(tmp_path, [PY, hello], ranks_per_node=2) as run:
        assert run.start() == [{"ok": True, "started": True}]
        assert run.verdict() == {"state": "succeeded", "exit_code": 0, "first_failure": None}
        assert [run.shims[0].log(rank) for rank in (0, 1)] == ["rank 0 True\n", "rank 1 True\n"]
        kinds = [event["event"] for event in run.shims[0].events()]
        assert sorted(kinds[:4]) == ["exited", "exited", "started", "started"]
        assert kinds[4:] == ["verdict", "ended"]
        for name in ("shim.sock", "pipes"):
            assert not (run.shims[0].run_dir / name).exists()


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("import sys; sys.exit(3)", 3, "exited with code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
        ("import sys; print('no space', file=sys.stderr); sys.exit(28)", 28, "no space"),
    ],
)
def test_the_exit_code_is_the_ranks_own(tmp_path: Path, end: str, code: int, error: str) -> None:
    with StartedRun(tmp_path, [PY, "-c", end]) as run:
        verdict = run.verdict()
        assert verdict["exit_code"] == verdict["first_failure"]["exit_code"] == code
        assert verdict["first_failure"]["error"].startswith(error)
        assert verdict["first_failure"].get("signal") == (9 if code == 137 else None)


def test_a_traceback_that_a_killed_rank_survived_is_not_its_end(tmp_path: Path) -> None:
    survived = (
        "import os, signal, traceback\n"
        "try: raise OSError('no cache')\n"
        "except OSError: traceback.print_exc()\n"
        "os.write(2, b'goes on without\\n'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with StartedRun(tmp_path, [PY, "-c", survived]) as run:
        first = run.verdict()["first_failure"]
    assert first["error"].startswith("killed by SIGKILL")
    assert "goes on without" in first["traceback"]


@pytest.mark.parametrize(
    ("reason", "code"), [("user", 143), ("sigint", 130), ("sigterm", 143), ("", 143)]
)
def test_a_stop_is_no_failure(tmp_path: Path, reason: str, code: int) -> None:
    with StartedRun(tmp_path, ["sleep", "600"], ranks_per_node=2) as run:
        if reason:
            assert run.shims[0].ask(op="stop", reason=reason) == {"ok": True, "stopping": True}
        else:
            run.shims[0].process.terminate()
        assert run.verdict() == {"state": "stopped", "exit_code": code, "first_failure": None}
        assert not run.shims[0].events("failed")


def test_ranks_that_others_ended_are_told_from_those_of_the_stop(tmp_path: Path) -> None:
    sleeps = [PY, "-c", "import time; time.sleep(600)"]
    with StartedRun(tmp_path, sleeps, ranks_per_node=3) as run:
        shim = run.shims[0]
        pids = [shim.pid(rank) for rank in range(3)]
        shim.process.send_signal(signal.SIGSTOP)  # it reads one end after the other
        for pid in pids[:2]:
            os.kill(pid, signal.SIGTERM)
            wait_until("its end", lambda pid=pid: proctree.read_process(pid).state == "Z")
        shim.process.send_signal(signal.SIGCONT)
        assert run.verdict()["state"] == "failed"
        ends = {event["pid"]: event["terminated"] for event in shim.events("exited")}
        assert [ends[pid] for pid in pids] == [False, False, True]


DYING = """
import os, sys
from distconsole_agent.system.procfs import read_process
note = sys.argv[1] + "/pid"
if os.environ["RANK"] == "1":
    held = bytearray(os.urandom(4096) * (1 << 18))
    os.symlink(str(os.getpid()), note)
    os._exit(41)
while not os.path.lexists(note) or (other := read_process(int(os.readlink(note)))) and not other.is_over:
    pass
os.write(2, b"ConnectionResetError: [Errno 104] Connection reset by peer\\n")
os._exit(1)
"""
"""Rank 0 sees rank 1 end while the kernel still takes it apart, as a peer sees its sockets close."""


def test_a_rank_that_is_slow_to_end_is_blamed_not_its_victim(tmp_path: Path) -> None:
    argv = [sys.executable, script(tmp_path, DYING), str(tmp_path)]
    with StartedRun(tmp_path, argv, ranks_per_node=2) as run:
        verdict = run.verdict()
        assert (verdict["exit_code"], verdict["first_failure"]["rank"]) == (41, 1)


@pytest.mark.parametrize("grace", [0, 10])
def test_a_rank_whose_end_is_read_behind_its_victims_is_blamed(tmp_path: Path, grace: int) -> None:
    """The kernel hands out the ends of children in the order of their starts."""
    text = (
        "trap 'echo ConnectionResetError >&2; exit 1' USR1; echo up; while :; do sleep 0.01; done"
    )
    with StartedRun(tmp_path, ["sh", "-c", text], ranks_per_node=2, grace=grace) as run:
        shim = run.shims[0]
        wait_until("its trap", lambda: shim.log(0))
        pids = [shim.pid(rank) for rank in range(2)]
        shim.process.send_signal(signal.SIGSTOP)
        for pid, number in ((pids[1], signal.SIGKILL), (pids[0], signal.SIGUSR1)):
            os.kill(pid, number)
            wait_until("its end", lambda pid=pid: proctree.read_process(pid).state == "Z")
        shim.process.send_signal(signal.SIGCONT)
        first = run.verdict()["first_failure"]
        assert (first["rank"], first["error"]) == (1, "killed by SIGKILL")


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    deaf = script(
        tmp_path,
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf')\n"
        "time.sleep(600)",
    )
    with StartedRun(tmp_path, [PY, deaf]) as run:
        wait_until("the rank", lambda: run.shims[0].log(0))
        run.shims[0].ask(op="stop", reason="user", grace=0.3)
        assert run.verdict()["state"] == "stopped"
        assert run.shims[0].event("exited")["signal"] == signal.SIGKILL


def test_a_stopped_process_ends_too(tmp_path: Path) -> None:
    with StartedRun(tmp_path, ["sleep", "600"], grace=600) as run:
        os.kill(run.shims[0].pid(0), signal.SIGSTOP)
        run.shims[0].ask(op="stop", reason="user")
        run.verdict()
        assert run.shims[0].event("exited")["signal"] == signal.SIGTERM


DAEMON = """
import os, signal, sys, time
def daemon(name):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if name == 'deaf':
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f'{sys.argv[1]}/{name}', 'w').write(str(os.getpid()))
    time.sleep(600)
    os._exit(0)
for name in ('polite', 'deaf'):
    daemon(name)
while not all(os.path.exists(f'{sys.argv[1]}/{n}') and os.path.getsize(f'{sys.argv[1]}/{n}') for n in ('polite', 'deaf')):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(7)", "time.sleep(600)"])
def test_grandchildren_in_sessions_of_their_own_do_not_stay(tmp_path: Path, end: str) -> None:
    daemons = script(tmp_path, DAEMON + end)
    with StartedRun(tmp_path, [PY, daemons, str(tmp_path)], grace=0.5) as run:
        wait_until(
            "daemons", lambda: (tmp_path / "deaf").exists() and (tmp_path / "polite").exists()
        )
        if end == "time.sleep(600)":
            wait_until("its text", lambda: (tmp_path / "deaf").read_text())
            run.shims[0].ask(op="stop", reason="user")
        verdict = run.verdict()
        assert all(gone(int((tmp_path / name).read_text())) for name in ("deaf", "polite"))
        if not end:
            assert verdict["state"] == "succeeded"
            note = run.shims[0].event("note")
            assert note["check"] == "run.leftover"
            assert f"{Path(daemons).name} (" in note["seen"]


SLOW_FORKSERVER = """
import multiprocessing
if __name__ == '__main__':
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['ends_late'])
    worker = context.Process(target=print, args=('worker',))
    worker.start()
    worker.join()
"""
ENDS_LATE = """
import atexit, pathlib, time
def end():
    time.sleep(1.2)
    pathlib.Path(__file__).with_name('forkserver ended').touch()
atexit.register(end)
"""


@pytest.mark.parametrize("daemons", ["", DAEMON])
def test_a_forkserver_that_ends_is_not_named_or_signalled(tmp_path: Path, daemons: str) -> None:
    script(tmp_path, ENDS_LATE, "ends_late.py")
    slow = script(
        tmp_path,
        (daemons and f"if __name__ == '__main__':\n{indent(daemons, '  ')}") + SLOW_FORKSERVER,
    )
    with StartedRun(tmp_path, [PY, slow, str(tmp_path)], grace=3.0) as run:
        assert run.verdict()["state"] == "succeeded"
        assert (tmp_path / "forkserver ended").exists()
        named = [note["summary"].partition(": ")[2] for note in run.shims[0].events("note")]
        pids = sorted(int((tmp_path / name).read_text()) for name in ("polite", "deaf") if daemons)
        assert named == ([", ".join(map(str, pids))] if daemons else [])


SHARES_BY_FILE = f"""{LEAN_TORCH}
import os, time
torch.multiprocessing.set_sharing_strategy('file_system')
shared = torch.ones(1000).share_memory_()
print(shared.untyped_storage()._share_filename_cpu_()[1].decode(), flush=True)
if sys.argv[1] == 'ends':
    os._exit(0)
time.sleep(600)
"""


@pytest.mark.torch_ranks
@pytest.mark.parametrize(
    "how",  # what a kill leaves to others to remove, a stop does too
    ["ends", pytest.param("is stopped", marks=pytest.mark.campaign), "is killed"],
)
def test_torch_removes_what_ranks_shared_by_files(tmp_path: Path, how: str) -> None:
    shares = script(tmp_path, SHARES_BY_FILE)
    with StartedRun(tmp_path, [PY, shares, how]) as run:
        shim = run.shims[0]
        wait_until("a file", lambda: shim.log(0).endswith("\n"))
        if how != "ends":
            shim.ask(op="stop", reason="user") if how == "is stopped" else shim.ask(op="kill")
        run.verdict()
        assert not Path("/dev/shm" + shim.log(0).strip()).exists()
        assert shim.events("note") == []


def test_an_idle_helper_of_a_package_is_ended_and_not_named(tmp_path: Path) -> None:
    worker = [
        PY,
        "-c",
        "import time; time.sleep(600)",
        "torch/_inductor/compile_worker/__main__.py",
    ]
    leaves = script(
        tmp_path, f"import subprocess; print(subprocess.Popen({worker}).pid, flush=True)"
    )
    with StartedRun(tmp_path, [PY, leaves]) as run:
        assert run.verdict()["state"] == "succeeded"
        assert gone(int(run.shims[0].log(0)))
        assert run.shims[0].events("note") == []


def test_ranks_die_with_a_killed_shim_and_the_rest_is_found(tmp_path: Path) -> None:
    daemons = script(tmp_path, DAEMON + "time.sleep(600)")
    with StartedRun(tmp_path, [PY, daemons, str(tmp_path)]) as run:
        shim = run.shims[0]
        rank = shim.pid(0)
        deaf = tmp_path / "deaf"
        grandchild = int(wait_until("a daemon", lambda: deaf.exists() and deaf.read_text()))
        shim.process.kill()
        shim.process.wait()
        wait_until("the rank's end", lambda: gone(rank))
        assert not gone(grandchild)
        assert proctree.kill_run(str(shim.run_dir)) == []
        assert gone(grandchild)


SEMAPHORE = """
import multiprocessing, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = multiprocessing.get_context('spawn').Semaphore()
print(held._semlock.name, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("killed", ["ranks", "shim"])
def test_what_killed_ranks_had_in_shared_memory_is_removed(tmp_path: Path, killed: str) -> None:
    with StartedRun(tmp_path, [PY, script(tmp_path, SEMAPHORE)]) as run:
        shim = run.shims[0]
        wait_until("a semaphore", lambda: shim.log(0).endswith("\n"))
        left = Path("/dev/shm/sem." + shim.log(0).strip().lstrip("/"))
        assert left.exists()
        if killed == "ranks":
            shim.ask(op="kill")
            run.verdict()
        else:
            shim.process.kill()
            shim.process.wait()
            assert proctree.kill_run(str(shim.run_dir)) == []
        assert not left.exists()


def test_a_stop_while_starting_leaves_nothing(tmp_path: Path) -> None:
    with RunUnderTest(tmp_path, ["sleep", "600"], ranks_per_node=16, grace=600) as run:
        shim = run.shims[0]
        shim.process.send_signal(signal.SIGSTOP)
        with unix.connect(str(shim.run_dir / "shim.sock"), 10) as sock:
            sock.sendall(b'{"op": "start"}\n{"op": "stop", "reason": "user"}\n')
            shim.process.send_signal(signal.SIGCONT)
            assert run.verdict()["state"] == "stopped"
        assert {event["signal"] for event in shim.events("exited")} == {signal.SIGTERM}


def test_a_run_that_is_stopped_before_its_start_ends(tmp_path: Path) -> None:
    with RunUnderTest(tmp_path, ["sleep", "600"], nodes=2) as run:
        for shim in run.shims:
            shim.ask(op="stop", reason="user")
        assert run.verdict() == {"state": "stopped", "exit_code": 143, "first_failure": None}


def test_a_slurm_job_that_a_rank_submitted_outlives_the_run(tmp_path: Path) -> None:
    """What sbatch hands on: the environment of who submits, and a job of its own."""
    with RunUnderTest(
        tmp_path, ["sh", "-c", "env -0 > env.part && mv env.part env; exec sleep 600"]
    ) as run:
        run.start()
        wait_until("its environment", (tmp_path / "env").exists)
        pairs = (tmp_path / "env").read_bytes().split(b"\0")[:-1]
        inherited = dict(pair.split(b"=", 1) for pair in pairs)
        with (
            subprocess.Popen(["sleep", "600"], env={**inherited, b"SLURM_JOB_ID": b"7"}) as job,
            subprocess.Popen(["sleep", "600"], env=inherited) as stray,
        ):
            try:
                run.shims[0].ask(op="stop", reason="user")
                assert stray.wait(20) in (-signal.SIGTERM, -signal.SIGKILL)
                run.verdict()
                assert job.poll() is None
            finally:
                job.kill()
                stray.kill()


def test_a_signal_reaches_no_other_process_that_has_got_the_pid(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        stat = proctree.read_process(process.pid)
        proctree.send(process.pid, stat._replace(starttime=stat.starttime - 1), signal.SIGKILL)
        proctree.send(process.pid, stat, signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
