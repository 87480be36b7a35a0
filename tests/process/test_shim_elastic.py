"""Shims of a run by elastic Horovod: what they do for a driver, and when it fails. The driver is a script."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.shims import RunUnderTest, script

PY = sys.executable

DRIVER = """
import http.client, json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
folder = os.open(os.environ["DISTCONSOLE_RUN_DIR"], os.O_PATH)  # the path of a socket must be short
line.connect(f"/proc/self/fd/{folder}/driver.sock")
heard = line.makefile("r")

def say(**message):
    line.sendall(json.dumps(message).encode() + b"\\n")

def hear(kind):
    message = json.loads(heard.readline())
    assert kind in message, message
    return message[kind]

hosts = [name for name, slots in hear("hosts")]
say(round=hosts, size=len(hosts))
for number, host in enumerate(hosts):
    env = {"HOROVOD_RANK": str(number), "HOROVOD_SIZE": "2", "LD_PRELOAD": "x", "HOROVOD_HOSTNAME": "a b"}
    say(start=[host, 0], env=env)

def meet():  # as the ranks do when they look for each other
    for number in range(len(hosts)):
        store = http.client.HTTPConnection("127.0.0.1", int(os.environ["MASTER_PORT"]))
        store.request("PUT", f"/global/{number}", b"x")
        assert store.getresponse().status == 200
        store.close()
"""


def elastic(folder: Path, ranks: str, then: str, nodes: int = 2, **spec: Any) -> RunUnderTest:
    """Return a run whose ranks and whose driver, once the ranks are started, do this."""
    driver = script(folder, DRIVER + then, "driver.py")
    return RunUnderTest(
        folder,
        ["sh", "-c", ranks],
        nodes=nodes,
        launcher="horovod",
        min_nodes=1,
        driver=[PY, driver],
        **spec,
    )


def notes(run: RunUnderTest, check: str) -> list[dict[str, Any]]:
    return [note for note in run.shims[0].events("note") if note["check"] == check]


def test_each_node_starts_its_ranks_with_the_place_from_the_driver(tmp_path: Path) -> None:
    say = 'echo "$HOROVOD_RANK of $HOROVOD_SIZE, $RANK${LD_PRELOAD+!}${HOROVOD_HOSTNAME+!}"'
    then = (
        'assert sorted((hear("ended"), hear("ended"))) == [[h, 0, 0] for h in hosts]\nsay(over="")'
    )
    with elastic(tmp_path, say, then) as run:
        assert run.complete()["state"] == "succeeded"
        assert [shim.log(rank) for rank, shim in enumerate(run.shims)] == [
            "0 of 2, 0\n",
            "1 of 2, 1\n",
        ]
        assert [len(shim.events("started")) for shim in run.shims] == [1, 1]


@pytest.mark.parametrize("over", ["", "too few"])
def test_a_failure_ends_the_run_only_where_the_driver_says_so(tmp_path: Path, over: str) -> None:
    then = f"""
meet()
open("met", "w").close()
assert hear("ended") == [hosts[1], 0, 7]
{"" if over else "say(outlived=[hosts[1], 0])"}
{"" if over else "open('go', 'w').close()"}
{"" if over else "hear('ended')"}
say(over={over!r})
"""
    ranks = (
        "while [ ! -e met ]; do sleep 0.05; done; "
        'if [ "$RANK" = 1 ]; then exit 7; fi; while [ ! -e go ]; do sleep 0.05; done'
    )
    with elastic(tmp_path, ranks, then) as run:
        verdict = run.complete()
        lost = notes(run, "run.rank_lost")
    if over:
        assert (verdict["state"], verdict["exit_code"], lost) == ("failed", 7, [])
        assert verdict["first_failure"]["host"] == "host1"
    else:
        assert (verdict["state"], verdict["first_failure"]) == ("succeeded", None)
        assert [(note["rank"], note["host"], note["severity"]) for note in lost] == [
            (1, "host1", "warn")
        ]


def test_a_rank_that_is_not_wanted_any_more_is_ended_and_no_failure(tmp_path: Path) -> None:
    """One while the others go on, and one that is left when they are done; neither goes by itself."""
    ranks = "trap '' TERM; : >up$RANK; while :; do sleep 0.05; done"
    then = """
import time
meet()
while not (os.path.exists("up0") and os.path.exists("up1")):
    time.sleep(0.02)
say(end=[hosts[1], 0])
assert hear("ended") == [hosts[1], 0, 137]
say(over="")
"""
    with elastic(tmp_path, ranks, then, grace=0.3) as run:
        assert run.complete()["state"] == "succeeded"
        assert [shim.event("exited")["exit_code"] for shim in run.shims] == [137, 137]


def test_a_rank_that_fails_before_all_have_met_ends_the_run_at_once(tmp_path: Path) -> None:
    ranks = 'if [ "$RANK" = 1 ]; then exit 7; fi; sleep 600'
    with elastic(tmp_path, ranks, "hear('ended'); heard.readline()") as run:
        verdict = run.complete()
        assert notes(run, "run.rank_lost") == []
    assert (verdict["exit_code"], verdict["first_failure"]["rank"]) == (7, 1)


@pytest.mark.parametrize(
    ("then", "exit_code", "error"),
    [
        ("sys.exit('no psutil')", 1, "Horovod's elastic driver exited with code 1: no psutil"),
        ("os._exit(0)", 1, "Horovod's elastic driver exited with code 0"),
        ("say(nonsense=1, end='x'); heard.readline(); sys.exit(3)", 3, "exited with code 3"),
        ("say(over='no hosts'); heard.readline()", 1, "has ended the run: no hosts"),
    ],
)
def test_a_failed_driver_fails_runs(tmp_path: Path, then: str, exit_code: int, error: str) -> None:
    with elastic(tmp_path, "sleep 600", then) as run:
        verdict = run.complete()
    assert (verdict["state"], verdict["exit_code"]) == ("failed", exit_code)
    assert error in verdict["first_failure"]["error"]
    assert verdict["first_failure"]["host"] == "host0"


def test_a_driver_that_cannot_be_executed_refuses_the_start(tmp_path: Path) -> None:
    missing = [str(tmp_path / "no-python"), "driver.py"]
    with RunUnderTest(tmp_path, ["sleep", "600"], launcher="horovod", driver=missing) as run:
        (answer,) = run.start()
        assert "no-python cannot be executed" in answer["error"]["message"]
        assert run.verdict()["exit_code"] == 127


def test_a_stop_ends_ranks_and_driver_everywhere(tmp_path: Path) -> None:
    with elastic(tmp_path, "echo up; sleep 600", "heard.readline()") as run:
        run.start()
        for rank, shim in enumerate(run.shims):
            shim.pid(rank)
        run.shims[1].ask(op="stop", reason="user")
        assert run.verdict() == {"state": "stopped", "exit_code": 143, "first_failure": None}


def test_ranks_that_failed_begin_again_with_a_driver_of_their_own(tmp_path: Path) -> None:
    ranks = 'test "$RANK$DISTCONSOLE_RESTART" = 1 && exit 7; exit 0'
    then = 'codes = [hear("ended")[2], hear("ended")[2]]\nsay(over="bad" if any(codes) else "")'
    with elastic(tmp_path, ranks, then, max_restarts=1) as run:
        assert run.complete()["state"] == "succeeded"
        assert [len(shim.events("started")) for shim in run.shims] == [2, 2]
