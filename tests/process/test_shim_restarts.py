"""Ranks that failed are started anew by their shims, with nobody watching; a stop or a lost node ends that."""

import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.coordination.link import tell_death
from distconsole_agent.system import unix
from fakes.shims import RunUnderTest, ShimUnderTest, StartedRun, gone, script, wait_until

PY = sys.executable

FAILS = ["sh", "-c", "exit 5"]


def the_nth(shim: ShimUnderTest, kind: str, number: int) -> dict[str, Any]:
    """Wait for the event of this kind that is about a restart, and return it."""
    found: list[dict[str, Any]] = wait_until(
        f"{kind} {number}", lambda: [e for e in shim.events(kind) if e["restart"] == number]
    )
    return found[0]


def notes(shim: ShimUnderTest) -> list[str]:
    return [event["summary"] for event in shim.events("note")]


TWO_ATTEMPTS = """
import os, subprocess, sys, time
from pathlib import Path
folder, rank = Path(sys.argv[1]), os.environ['RANK']
restart = os.environ.get('DISTCONSOLE_RESTART')
print(restart, os.environ.get('DISTCONSOLE_CHECKPOINT'), os.environ['MASTER_PORT'], os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)
if restart is None:
    left = subprocess.Popen(['setsid', 'sleep', '600'])
    (folder / f'left{rank}').write_text(str(left.pid))
    if rank == '0':
        (folder / 'step-7.pt').touch()
        told = Path(os.environ['DISTCONSOLE_RUN_DIR']) / 'checkpoint'
        told.write_text(f'{folder}/step-7.pt\\n')
        (folder / 'saved').touch()
    while not (folder / 'saved').exists() or not (folder / 'left0').exists():
        time.sleep(0.01)
    if rank == '1':
        raise ValueError('boom')
    time.sleep(600)
for name in ('left0', 'left1'):
    pid = (folder / name).read_text()
    print('left' if os.path.exists(f'/proc/{pid}') else 'gone', flush=True)
"""


def test_a_failure_is_followed_by_an_attempt_that_knows_the_checkpoint(tmp_path: Path) -> None:
    argv = [PY, script(tmp_path, TWO_ATTEMPTS), str(tmp_path)]
    with RunUnderTest(tmp_path, argv, nodes=2, max_restarts=3, grace=0.5) as run:
        first_port = run.shims[0].ask(op="status")["master_port"]
        assert run.complete() == {"state": "succeeded", "exit_code": 0, "first_failure": None}
        (told,) = run.shims[0].events("restart")
        checkpoint = f"{tmp_path}/step-7.pt"
        assert (told["restart"], told["of"], told["checkpoint"]) == (1, 3, checkpoint)
        failure = told["first_failure"]
        assert (failure["rank"], failure["host"]) == (1, "host1")
        assert failure["error"] == "ValueError: boom"
        assert failure["traceback"].startswith("Traceback")
        printed = [shim.log(rank).splitlines() for rank, shim in enumerate(run.shims)]
        ports = set()
        for lines in printed:
            assert lines[0] == f"None None {first_port} 0"
            restart, path, port, torchruns = lines[1].split()
            assert (restart, path, torchruns) == ("1", checkpoint, "1")
            ports.add(port)
            assert lines[2:] == ["gone", "gone"]
        assert len(ports) == 1
        assert ports != {str(first_port)}
        for shim in run.shims:
            assert [event["restart"] for event in shim.events("attempt")] == [1]
            assert not notes(shim)


def test_a_run_that_is_stopped_is_not_started_anew(tmp_path: Path) -> None:
    argv = ["sh", "-c", "trap 'exit 1' TERM; echo up; while :; do sleep 0.01; done"]
    with StartedRun(tmp_path, argv, nodes=2, max_restarts=3) as run:
        for rank, shim in enumerate(run.shims):
            wait_until("the rank", lambda shim=shim, rank=rank: shim.log(rank))
        run.shims[1].ask(op="stop", reason="sigint")
        assert run.verdict() == {"state": "stopped", "exit_code": 130, "first_failure": None}
        assert not run.shims[0].events("restart")


def test_a_stop_that_crosses_the_restart_leaves_nothing(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'test "$DISTCONSOLE_RESTART" = 3 || exit 5; exec sleep 600']
    with StartedRun(tmp_path, argv, nodes=2, max_restarts=9) as run:
        the_nth(run.shims[0], "restart", 3)
        # Node 1 sleeps while node 0 starts its ranks anew, and hears of both at once.
        run.shims[1].process.send_signal(signal.SIGSTOP)
        the_nth(run.shims[0], "attempt", 3)
        with unix.connect(str(run.shims[1].run_dir / "shim.sock"), 10) as sock:
            sock.sendall(json.dumps({"op": "stop", "reason": "user"}).encode() + b"\n")
            run.shims[1].process.send_signal(signal.SIGCONT)
            verdict = run.verdict()
        assert verdict == {"state": "stopped", "exit_code": 143, "first_failure": None}


def test_a_shim_that_is_killed_in_the_pause_is_not_waited_for(tmp_path: Path) -> None:
    with StartedRun(tmp_path, FAILS, nodes=3, max_restarts=9) as run:
        the_nth(run.shims[0], "restart", 3)
        killed = run.shims.pop(2)
        try:
            killed.process.kill()
            killed.process.wait()
            assert tell_death(str(killed.run_dir), "")  # as its agent does
            verdict = run.verdict()
        finally:
            killed.destroy()
        assert (verdict["state"], verdict["exit_code"]) == ("failed", 5)
        assert notes(run.shims[0])[-1] == "not restarted: without host2 its ranks have no place"


def test_the_first_nodes_shim_killed_in_the_pause_ends_the_others(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'test "$RANK" = 1 && exit 5; exec sleep 600']
    with StartedRun(tmp_path, argv, nodes=2, max_restarts=9) as run:
        the_nth(run.shims[0], "restart", 3)
        run.shims[0].process.kill()
        verdict = run.shims[1].wait()
        assert (verdict["state"], verdict["exit_code"]) == ("failed", 5)
        assert len(run.shims[1].events("attempt")) == 2


def test_what_could_not_be_started_is_not_started_anew(tmp_path: Path) -> None:
    with RunUnderTest(tmp_path, ["/no/such/program"], max_restarts=9) as run:
        (answer,) = run.start()
        assert answer["error"]["code"] == "start_failed"
        assert run.verdict()["state"] == "failed"
        assert "not restarted: it could not be started" in notes(run.shims[0])
        assert not run.shims[0].events("restart")


STORE = """
import os, sys, urllib.error, urllib.request
url = f"http://127.0.0.1:{os.environ['MASTER_PORT']}/global/0"
if 'DISTCONSOLE_RESTART' not in os.environ:
    urllib.request.urlopen(urllib.request.Request(url, b'old', method='PUT'))
    sys.exit(5)
try:
    print(urllib.request.urlopen(url).read())
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_every_attempt_has_a_key_value_store_of_its_own(tmp_path: Path) -> None:
    argv = [PY, script(tmp_path, STORE)]
    with RunUnderTest(tmp_path, argv, max_restarts=1, launcher="horovod") as run:
        port = run.shims[0].ask(op="status")["master_port"]
        run.start()
        the_nth(run.shims[0], "attempt", 1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert run.verdict()["state"] == "succeeded"
        assert run.shims[0].log(0) == "404\n"


def test_a_rank_that_outlives_sigterm_is_gone_before_the_next_attempt(tmp_path: Path) -> None:
    text = (
        "import os, signal, time\n"
        "restart = os.environ.get('DISTCONSOLE_RESTART')\n"
        "if os.environ['RANK'] == '0' and restart is None:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    open('deaf', 'w').close()\n"
        "    time.sleep(600)\n"
        "while not os.path.exists('deaf'): time.sleep(0.01)\n"
        "if restart is None: raise SystemExit(5)\n"
    )
    argv = [PY, script(tmp_path, text)]
    with StartedRun(tmp_path, argv, ranks_per_node=2, max_restarts=1, grace=0.3) as run:
        the_nth(run.shims[0], "attempt", 1)
        assert gone(run.shims[0].pid(0))
        assert run.verdict()["state"] == "succeeded"
        kinds = [event["event"] for event in run.shims[0].events()]
        begun = kinds.index("attempt")
        assert kinds[:begun].count("started") == kinds[:begun].count("exited") == 2
