"""Runs over several nodes: real shims on loopback addresses, real torch ranks among them."""

import signal
import socket
import sys
from pathlib import Path

import pytest

from distconsole_agent.coordination import link
from distconsole_agent.coordination.channel import LinkTimes
from distconsole_agent.supervisor import proctree
from fakes.shims import RunUnderTest, ShimUnderTest, StartedRun, script, wait_until
from suite.lean_torch import LEAN_TORCH
from suite.programs import run_to_end

PY = sys.executable
WELL_BEFORE_LOST_SECONDS = LinkTimes().give_up / 4

ALL_REDUCE = f"""{LEAN_TORCH}
import os, time, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert tensor.tolist() == [float(dist.get_world_size())] * 4
open(f"{{sys.argv[1]}}/ready{{rank}}", "w").close()
"""


def test_a_failure_on_one_node_ends_the_others_without_a_console(tmp_path: Path) -> None:
    boom = script(
        tmp_path,
        "import os, time\n"
        "if os.environ['RANK'] == '2':\n    raise KeyError('lost')\n"
        "time.sleep(600)\n",
    )
    with StartedRun(tmp_path, [PY, boom], nodes=3, ranks_per_node=2) as run:
        verdict = run.verdict()
        first = verdict["first_failure"]
        assert (first["rank"], first["host"]) == (2, "host1")
        assert first["error"] == "KeyError: 'lost'"
        assert {event["signal"] for event in run.shims[2].events("exited")} == {signal.SIGTERM}


def test_a_kill_reaches_deaf_ranks_of_other_nodes(tmp_path: Path) -> None:
    deaf = "trap '' TERM; echo deaf; while :; do sleep 1; done"
    with StartedRun(tmp_path, ["sh", "-c", deaf], nodes=2, grace=600) as run:
        for index, shim in enumerate(run.shims):
            wait_until("a deaf rank", lambda shim=shim, index=index: shim.log(index))
        run.shims[0].ask(op="stop", reason="sigint")
        run.shims[0].ask(op="kill")
        assert run.verdict()["exit_code"] == 130


def test_the_death_of_node_zeros_shim_ends_all_long_before_a_lost_link(tmp_path: Path) -> None:
    with StartedRun(tmp_path, ["sleep", "600"], nodes=3) as run:
        for index, shim in enumerate(run.shims):
            shim.pid(index)
        run.await_links()
        run.shims[0].process.send_signal(signal.SIGKILL)
        for shim in run.shims[1:]:
            verdict = shim.wait(WELL_BEFORE_LOST_SECONDS)
            assert (verdict["state"], verdict["exit_code"]) == ("failed", 1)
            first = verdict["first_failure"]
            assert (first["rank"], first["host"]) == (0, "host0")
            assert first["error"] == "node host0 lost: its shim is gone"


def test_a_stop_after_the_death_of_node_zeros_shim_acts_at_once(tmp_path: Path) -> None:
    with StartedRun(tmp_path, ["sleep", "600"], nodes=2) as run:
        run.shims[1].pid(1)
        run.await_links()
        run.shims[0].process.send_signal(signal.SIGKILL)
        run.shims[0].process.wait(10)
        run.shims[1].ask(op="stop", reason="user")
        assert run.shims[1].event("exited", 5)["signal"] == signal.SIGTERM
        verdict = run.shims[1].wait(WELL_BEFORE_LOST_SECONDS)
        assert (verdict["state"], verdict["exit_code"]) == ("failed", 1)
        assert verdict["first_failure"]["error"] == "node host0 lost: its shim is gone"


@pytest.mark.torch_ranks
def test_the_rank_that_fails_in_a_collective_is_blamed_not_its_victims(tmp_path: Path) -> None:
    text = ALL_REDUCE + "if rank == 0: os._exit(41)\nwhile True: dist.all_reduce(tensor)\n"
    argv = [PY, script(tmp_path, text), str(tmp_path)]
    with StartedRun(tmp_path, argv, nodes=2, unset=[]) as run:
        verdict = run.verdict(90)
        assert (verdict["exit_code"], verdict["first_failure"]["rank"]) == (41, 0)
        assert verdict["first_failure"]["error"] == "exited with code 41"


@pytest.mark.torch_ranks
@pytest.mark.parametrize(
    "libuv",
    ["1", pytest.param("0", marks=pytest.mark.campaign)],  # torch's default, and before it
)
def test_torch_listens_on_the_port_that_the_shim_keeps(tmp_path: Path, libuv: str) -> None:
    text = (
        ALL_REDUCE + "while not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.01)\n"
        "dist.destroy_process_group()\n"
    )
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "WORLD_SIZE": "2"}
    argv = [PY, script(tmp_path, text), str(tmp_path)]
    with RunUnderTest(tmp_path, argv, nodes=2, env={**env, "USE_LIBUV": libuv}) as run:
        port = run.shims[0].ask(op="status")["master_port"]
        run.start()
        ready = [tmp_path / "ready0", tmp_path / "ready1"]
        wait_until("ranks", lambda: all(path.exists() for path in ready), 90)
        with socket.create_connection(("127.0.0.1", port)):
            pass
        (tmp_path / "go").touch()
        assert run.verdict(60)["state"] == "succeeded"


BIND = """
import errno, socket, sys
port = int(sys.argv[1])
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"), (socket.AF_INET, "127.0.0.1")):
    for reuse in (0, 1):
        with socket.socket(family) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            try:
                sock.bind((address, port))
                sock.listen()
                print(address, reuse, "listens")
            except OSError as error:
                print(address, reuse, errno.errorcode[error.errno])
"""


def test_the_kept_port_is_closed_to_others_and_open_to_reuse(tmp_path: Path) -> None:
    with RunUnderTest(tmp_path, ["true"]) as run:
        port = str(run.shims[0].ask(op="status")["master_port"])
        told = run_to_end([PY, "-c", BIND, port])
        assert told.stdout.split("\n")[:-1] == [
            f"{address} {reuse} {'listens' if reuse else 'EADDRINUSE'}"
            for address in ("0.0.0.0", "::", "127.0.0.1")
            for reuse in (0, 1)
        ]
        run.start()
        run.verdict()


ROUNDS = """
GROUP_WORLD_SIZE=3 sleep 600
echo over
GROUP_WORLD_SIZE=2 sleep 600
"""
"""Stands for torchrun: what it starts once says that its round goes over 3 nodes, then over 2."""


def test_a_run_outlives_as_many_nodes_as_it_may(tmp_path: Path) -> None:
    argv = ["sh", "-c", ROUNDS]
    with RunUnderTest(
        tmp_path, argv, nodes=3, launcher="torchrun", engine_ranks=False, min_nodes=2
    ) as run:
        run.start()
        first, second, third = run.shims
        run.await_links()
        wait_until("a round", lambda: pids_of(first, "GROUP_WORLD_SIZE=3"))
        die(third)
        wait_until("another round", lambda: pids_of(first, "GROUP_WORLD_SIZE=2"))
        wait_until("another round", lambda: pids_of(second, "GROUP_WORLD_SIZE=2"))
        assert first.event("note")["summary"] == (
            "node host2 lost: killed by the test; the run goes on with 2 of 3 nodes"
        )
        die(second)
        verdict = first.wait()
        assert (verdict["state"], verdict["exit_code"]) == ("failed", 1)
        assert verdict["first_failure"]["error"] == "node host1 lost: killed by the test"


def die(shim: ShimUnderTest) -> None:
    """Kill a shim; its node's agent ends what is left and says so."""
    shim.process.send_signal(signal.SIGKILL)
    shim.process.wait()
    proctree.kill_run(str(shim.run_dir))
    assert link.tell_death(str(shim.run_dir), "killed by the test")


def pids_of(shim: ShimUnderTest, variable: str) -> list[int]:
    """Return the processes below a shim that have this in their environment."""
    name, _, value = variable.encode().partition(b"=")
    found = proctree.descendants(shim.process.pid)
    return [pid for pid in found if proctree.read_environ(pid).get(name) == value]


def test_an_elastic_torchrun_has_a_port_for_its_ranks_beside_its_own(tmp_path: Path) -> None:
    with RunUnderTest(tmp_path, ["true"], launcher="torchrun", min_nodes=1) as run:
        port = int(run.shims[0].ask(op="status")["master_port"])
        for kept in (port, port + 1):
            with socket.socket() as sock, pytest.raises(OSError, match="in use"):
                sock.bind(("127.0.0.1", kept))
        run.start()
        run.verdict()
