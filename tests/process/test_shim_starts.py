"""What a rank is started with, and what is said when it cannot be started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fakes.shims import RunUnderTest, StartedRun, listens, script

PY = sys.executable

SHOW = """
import json, os, signal, sys
ignored = [s.name for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)
           and signal.getsignal(s) == signal.SIG_IGN]
print(json.dumps({
    "argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "ignored": ignored,
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2),
    "stdin": os.readlink("/proc/self/fd/0"),
    "blocked": [s.name for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
}))
"""


def shown(run: RunUnderTest) -> dict:  # type: ignore[type-arg]
    run.start()
    assert run.verdict()["state"] == "succeeded"
    return json.loads(run.shims[0].log(0))  # type: ignore[no-any-return]


def test_a_rank_gets_its_plan_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "7")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("KEPT", "yes")
    argv = [PY, script(tmp_path, SHOW), "--port", "tcp://x:{port}"]
    with RunUnderTest(tmp_path, argv, unset=["NCCL_DEBUG"]) as run:
        port = run.shims[0].ask(op="status")["master_port"]
        got = shown(run)
    env = got["env"]
    assert got["argv"] == ["--port", f"tcp://x:{port}"]
    assert (env["MASTER_PORT"], env["RANK"], env["KEPT"]) == (str(port), "0", "yes")
    assert env["DISTCONSOLE_RUN"] == run.shims[0].spec["run"]
    assert env["PYTHONUNBUFFERED"] == "1"
    assert not {"PET_NPROC_PER_NODE", "NCCL_DEBUG", "DISTCONSOLE_HOOK"} & env.keys()
    assert got["cwd"] == str(tmp_path)
    assert got["stdin"] == "/dev/null"
    # Python itself ignores SIGPIPE and SIGXFSZ; descriptor 3 is the folder being listed.
    assert set(got["ignored"]) <= {"SIGPIPE", "SIGXFSZ"}
    assert got["blocked"] == []
    assert len(got["fds"]) <= 1


def test_a_watched_rank_finds_the_hook_before_its_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = tmp_path / "node0" / "hook-0123456789abcdef"
    hook.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", "/users/own")
    show = [PY, script(tmp_path, SHOW)]
    more = {"watch": True, "hook": str(hook), "env": {"PYTHONPATH": "/users/own"}}
    with RunUnderTest(tmp_path, show, **more) as run:
        env = shown(run)["env"]
        run_dir = run.shims[0].run_dir
    assert env["PYTHONPATH"] == f"{hook}:/users/own"
    assert env["DISTCONSOLE_HOOK"] == str(hook)
    assert env["DISTCONSOLE_ERRORS"] == str(run_dir / "errors")
    assert env["DISTCONSOLE_RINGS"] == str(run_dir / "rings")
    assert Path(env["DISTCONSOLE_RINGS"]).is_dir()


def test_setup_runs_before_the_rank_in_the_same_process(tmp_path: Path) -> None:
    activate = script(tmp_path, "export FROM_SETUP=$((40+2))\n", "activate.sh")
    argv = [PY, script(tmp_path, SHOW), "a b", "$HOME", "*"]
    with RunUnderTest(tmp_path, argv, setup=f"source {activate}  # a comment") as run:
        got = shown(run)
        pid = run.shims[0].pid(0)
        exited = run.shims[0].event("exited")
    assert got["env"]["FROM_SETUP"] == "42"
    assert got["argv"] == ["a b", "$HOME", "*"]
    assert exited["pid"] == pid


def test_a_setup_is_in_no_command_line_and_no_descriptor_of_the_rank(tmp_path: Path) -> None:
    looked = tmp_path / "looked"
    setup = f"export TOKEN=marker-0123; cat /proc/[0-9]*/cmdline >{looked}"
    files = "import os; print(*(os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)), len(os.listdir('/proc/self/fd')))"
    with StartedRun(tmp_path, [PY, "-c", files], setup=setup) as run:
        run.verdict()
        assert run.shims[0].log(0).split()[-1] == "4"  # and that of the listed folder
    told = looked.read_bytes()
    assert b"distconsole_setup" in told
    assert b"marker-0123" not in told


def test_a_setup_that_fails_says_so_and_the_rank_goes_on(tmp_path: Path) -> None:
    with StartedRun(tmp_path, [PY, "-c", "print('on')"], setup="module load nothing") as run:
        run.verdict()
        assert run.shims[0].log(0) == "on\n"
        assert "distconsole: the setup command ended with code 127" in run.shims[0].log(0, "err")


@pytest.mark.parametrize(
    ("argv", "code", "why"),
    [
        (["no-such-program"], 127, "no-such-program cannot be executed: No such file"),
        (["{folder}/plain.txt"], 126, "plain.txt cannot be executed: Permission denied"),
        (["{folder}/noshebang"], 126, "noshebang cannot be executed: Exec format error"),
    ],
)
def test_a_command_that_cannot_be_executed_is_that_ranks_failure(
    tmp_path: Path, argv: list[str], code: int, why: str
) -> None:
    script(tmp_path, "x", "plain.txt", 0o644)
    script(tmp_path, "x", "noshebang", 0o755)
    words = [word.replace("{folder}", str(tmp_path)) for word in argv]
    with RunUnderTest(tmp_path, words) as run:
        (answer,) = run.start()
        verdict = run.verdict()
        assert answer["error"]["code"] == "start_failed"
        assert why in answer["error"]["message"]
        assert verdict["exit_code"] == code
        assert why in verdict["first_failure"]["error"]
        assert run.shims[0].event("note")["rank"] == 0
        assert not run.shims[0].events("started")


def test_a_missing_working_folder_is_named(tmp_path: Path) -> None:
    with RunUnderTest(tmp_path, ["true"], nodes=2, workdir="~/no/such/folder") as run:
        # The second node may be stopped by the first one's failure before it gets so far.
        error = run.start()[0]["error"]
        assert error["code"] == "start_failed"
        assert "no/such/folder" in error["message"]
        assert error["hint"]
        assert "no/such/folder" in run.verdict()["first_failure"]["error"]


def test_a_training_address_of_another_host_is_refused(tmp_path: Path) -> None:
    nodes = [
        {"host": "a", "address": "192.0.2.1", "ranks": [0]},
        {"host": "b", "address": "127.0.0.2", "ranks": [1]},
    ]
    with RunUnderTest(tmp_path, ["true"], nodes=1) as run:
        endless = run.shims[0].spec | {"nodes": nodes, "run": "elsewhere"}
        folder = tmp_path / "other" / "runs" / "elsewhere"
        from fakes.shims import ShimUnderTest

        shim = ShimUnderTest(folder, endless, PY)
        try:
            for op in ("status", "start"):
                error = shim.ask(op=op)["error"]
                assert error["code"] == "start_failed"
                assert "192.0.2.1" in error["message"]
        finally:
            shim.destroy()


def test_a_second_start_a_second_shim_and_nonsense_are_refused(tmp_path: Path) -> None:
    with StartedRun(tmp_path, ["sleep", "600"]) as run:
        shim = run.shims[0]
        assert shim.ask(op="start")["error"]["code"] == "bad_request"
        assert shim.ask(op="fly")["error"]["code"] == "unknown_op"
        assert shim.ask(op="stop", reason="boredom")["error"]["code"] == "bad_request"
        assert shim.ask(op="stop", grace="soon")["error"]["code"] == "bad_request"
        second = [PY, "-m", "distconsole_agent", "shim", "--run", str(shim.run_dir)]
        assert subprocess.run(second, capture_output=True, timeout=20).returncode == 1
        assert int((shim.run_dir / "shim.pid").read_text().split()[0]) == shim.process.pid
        assert shim.ask(op="status")["state"] == "running"
        shim.ask(op="kill")
        run.verdict()


def test_nothing_listens_after_a_run_and_only_node_zero_during_it(tmp_path: Path) -> None:
    with RunUnderTest(tmp_path, ["sleep", "600"], nodes=2) as run:
        first, second = (shim.ask(op="status") for shim in run.shims)
        assert first["coordinator"]["address"] == "127.0.0.1"
        assert second["coordinator"] is None
        assert second["master_port"] is None
        assert listens(first["coordinator"])
        assert not listens({"address": "127.0.0.1", "port": first["master_port"]})
        run.start()
        run.shims[1].ask(op="stop", reason="sigint")
        assert run.verdict() == {"state": "stopped", "exit_code": 130, "first_failure": None}
        assert run.shims[0].event("stopping")["reason"] == "sigint"
        assert not listens(first["coordinator"])


@pytest.mark.parametrize("launcher", ["torch", "horovod"])
def test_a_shim_listens_only_for_shims_and_horovods_ranks(tmp_path: Path, launcher: str) -> None:
    with RunUnderTest(tmp_path, ["sleep", "600"], nodes=2, launcher=launcher) as run:
        status = run.shims[0].ask(op="status")
        run.start()
        shims = [psutil.Process(shim.process.pid) for shim in run.shims]
        found = [
            {each.laddr.port for each in shim.net_connections("tcp") if each.status == "LISTEN"}
            for shim in shims
        ]
        run.shims[0].ask(op="stop", reason="user")
        assert run.verdict()["state"] == "stopped"
    store = {status["master_port"]} if launcher == "horovod" else set()
    assert found == [{status["coordinator"]["port"]} | store, set()]


def test_a_shims_socket_in_a_long_path_is_for_this_user_alone(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with RunUnderTest(deep, ["true"]) as run:
        assert (run.shims[0].run_dir / "shim.sock").stat().st_mode & 0o777 == 0o600
        assert run.complete()["state"] == "succeeded"
        for name in ("shim.jsonl", "shim.pid"):
            found = (run.shims[0].run_dir / name).stat()
            assert (found.st_mode & 0o777, found.st_uid) == (0o600, os.getuid())
