"""The pipe in which ranks below mpirun report themselves, and what a shim makes of mpirun's end."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent.contract.runspec import RankSpec, RunSpec, parse_spec
from distconsole_agent.engines.mpi import MpiRanks
from distconsole_agent.supervisor.processes import Exit, Places, RankProcess
from distconsole_agent.supervisor.spawning import ChildCommand
from distconsole_agent.system.loop import Loop


def spec(index: int = 0) -> RunSpec:
    return parse_spec(
        {
            "run": "r",
            "secret": "00",
            "launcher": "mpi",
            "node_index": index,
            "nodes": [
                {"host": "a", "address": "10.0.0.1", "ranks": [0, 1]},
                {"host": "b", "address": "10.0.0.2", "ranks": [2]},
            ],
            "ranks": [],
            "engine_ranks": False,
        }
    )


class Node:
    """An engine, and what it told."""

    def __init__(self, folder: Path, index: int = 0) -> None:
        self.folder = folder
        self.loop = Loop()
        self.started: list[tuple[int, int, int]] = []
        self.exited: list[tuple[int, int, int | None]] = []
        self.remote: list[tuple[str, str, str]] = []
        self.engine = MpiRanks(
            self.loop,
            spec(index),
            lambda r: self.started.append((r.spec.rank, r.spec.local_rank, r.pid)),
            lambda r: self.exited.append((r.spec.rank, *(r.ended or (0, None))[:2])),
            lambda *told: self.remote.append(told),
        )
        (folder / "logs").mkdir()
        self.engine.open(Places(str(folder), str(folder / "logs"), "", "", None))

    def say(self, *lines: str) -> None:
        with (self.folder / "reports").open("wb", buffering=0) as pipe:
            pipe.write("".join(f"{line}\n" for line in lines).encode())
        self.engine.reports.read()

    def mpirun(self, code: int, number: int | None = None, said: str = "") -> RankProcess:
        err = self.folder / "logs/engine.err"
        err.write_text(said)
        command = ChildCommand(("mpirun",), {}, "/", None, "", str(err))
        process = RankProcess(RankSpec(0, 0, ("/usr/bin/mpirun",), {}), command)
        process.pid, process.ended = 77, Exit(code, number, 10**18)
        return process


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.engine.reports.close()
    made.loop.close()


def test_ranks_tell_of_their_start_and_their_end(node: Node) -> None:
    node.say("started 0 0 50", "started 1 1 51")
    assert [rank.pid for rank in node.engine.alive] == [50, 51]
    node.say("exited 1 7", "exited 0 137")
    assert node.started == [(0, 0, 50), (1, 1, 51)]
    assert node.exited == [(1, 7, None), (0, 137, signal.SIGKILL)]
    assert node.engine.alive == []


def test_a_rank_reports_once_and_may_do_so_in_pieces(node: Node) -> None:
    pieces = ("star", "ted 0 0 5", "0\nstarted 0 0 99\nexited 0", " 0\n", "exited 0 1\n")
    for piece in pieces:
        with (node.folder / "reports").open("wb", buffering=0) as pipe:
            pipe.write(piece.encode())
        node.engine.reports.read()
    assert (node.started, node.exited) == ([(0, 0, 50)], [(0, 0, None)])


@pytest.mark.parametrize(
    "line",
    [
        "started 0 0",
        "started -1 0 5",
        "started 9 0 5",
        "started 0 0 5 6",
        "exited 0 7",
        "remote ../x 5",
        "remote 10.0.0.2 ../../etc/passwd",
        "remote 10.0.0.2 5",
        "x" * 5000,
    ],
)
def test_nonsense_in_the_pipe_means_nothing(node: Node, line: str) -> None:
    node.say(line, "started 1 1 51")
    assert (node.started, node.exited, node.remote) == ([(1, 1, 51)], [], [])


def test_what_mpirun_would_give_to_ssh_is_handed_over_and_its_end_comes_back(node: Node) -> None:
    words = ["-x", "10.0.0.2", " orted", "-mca", "ess", '"env"', "it's"]
    with subprocess.Popen([str(node.folder / "remote"), *words]) as remote:
        while not node.remote:
            node.loop.run_once(1.0)
        ((address, command, name),) = node.remote
        assert (address, command) == ("10.0.0.2", ' orted -mca ess "env" it\'s')
        assert remote.poll() is None
        while remote.poll() is None:  # it may not listen yet
            node.engine.remote_ended(name, 3)
    assert remote.returncode == 3
    node.engine.remote_ended(name, 3)
    node.engine.remote_ended("../x", 3)


def test_only_the_first_node_has_commands_for_others(tmp_path: Path) -> None:
    node = Node(tmp_path, index=1)
    (tmp_path / "engine/5").write_text("true")
    node.say("remote 10.0.0.1 5")
    assert node.remote == []
    node.engine.reports.close()
    node.loop.close()


ABORTED_4 = "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 9.\n"
ABORTED_5 = (
    "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n"
    "  Proc: [[45619,1],2]\n  Errorcode: 9\n"
)


@pytest.mark.parametrize(
    ("code", "number", "said", "rank", "exit_code", "error"),
    [
        (137, 9, "", 0, 137, "mpirun killed by SIGKILL (for memory? that is not known)"),
        (213, None, "no slots\n", 0, 213, "mpirun exited with code 213: no slots"),
        (213, None, "", 0, 213, "mpirun exited with code 213"),
        (9, None, ABORTED_4, 2, 9, "MPI_Abort with code 9"),
        (9, None, ABORTED_5, 2, 9, "MPI_Abort with code 9"),
        (0, None, "", 0, 1, "mpirun ended, and rank 0 had not said how it ended"),
    ],
)
def test_an_mpirun_that_did_not_end_as_it_should_is_a_failure(
    node: Node, code: int, number: int | None, said: str, rank: int, exit_code: int, error: str
) -> None:
    failure = node.engine.failure(node.mpirun(code, number, said), stopping=False)
    assert (failure.rank, failure.exit_code, failure.error) == (rank, exit_code, error)
    assert failure.traceback == said.strip()
    assert node.engine.failure(node.mpirun(code, number, said), stopping=True) is None


@pytest.mark.parametrize(("stopping", "end"), [(False, ""), (True, ""), (True, "exited 1 143")])
def test_a_rank_killed_after_its_abort_is_blamed(node: Node, stopping: bool, end: str) -> None:
    node.say("started 0 0 50", "started 1 1 51", end)
    told = "Abort(9) on node 1: application called MPI_Abort(MPI_COMM_WORLD, 9) - process 1\n"
    (node.folder / "logs/rank-1.err").write_text(told)
    failure = node.engine.failure(node.mpirun(9), stopping)
    assert (failure.rank, failure.pid, failure.exit_code) == (1, 51, 9)
    assert failure.error == "MPI_Abort with code 9"


def test_an_mpirun_whose_ranks_all_ended_is_no_failure(node: Node) -> None:
    node.say("started 0 0 50", "started 1 1 51", "exited 0 0", "exited 1 0")
    assert node.engine.failure(node.mpirun(0), stopping=False) is None


def test_a_rank_on_an_unplanned_host_is_a_failure_once_mpirun_has_ended(node: Node) -> None:
    """Its own host waits for it, and the run would have no end."""
    node.say(*(f"started {rank} {rank} 5{rank}" for rank in range(3)))
    node.say(*(f"exited {rank} 0" for rank in range(3)))
    failure = node.engine.failure(node.mpirun(0), stopping=False)
    assert (failure.rank, failure.exit_code) == (2, 1)
    assert failure.error == "mpirun started rank 2 on a, not on the host of the plan"


def test_what_an_engine_left_is_not_in_the_way_of_another(tmp_path: Path, node: Node) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    for name in ("7-1.ring", "7-1.checked", "vader_segment.a.1"):
        (rings / name).touch()
    (tmp_path / "engine" / "session").mkdir()
    places = Places(str(tmp_path), str(tmp_path / "logs"), "", str(rings), None)
    node.engine.reports.close()
    node.engine.places = places
    node.engine.discard()
    assert sorted(path.name for path in rings.iterdir()) == ["7-1.checked", "7-1.ring"]
    other = MpiRanks(node.loop, spec(), print, print, print)
    other.open(places)
    other.reports.close()
    assert [path.name for path in (tmp_path / "engine").iterdir()] == []
