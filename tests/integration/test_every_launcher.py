"""What happens, under every launcher: the table of docs/guide/restarts.md, on real engines and hosts of their own.

Every row starts where the one before ended: a run that left anything behind breaks the next.
"""

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from suite.console import Console
from suite.outcomes import has_failed
from suite.place import Place
from suite.remains import gone
from suite.starters import LIMITS, MARKED, NEVER, SHIM, STARTERS, WHAT
from testbed import Host, Testbed
from testbed.keeper import wait_for

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("consoles")]

SOON_SECONDS = 25.0
"""Far below the grace of the runs, and the minutes after which an engine gives up by itself."""

PERMUTATIONS = {
    # Whoever reads the end of a rank killed by SIGKILL reads these as well.
    "exits": ("torchrun", "single", "slurm"),
    "faults": ("torchrun", "single", "horovod", "mpi", "slurm"),
    # By torchrun's words for a rank that ended, of which one has raised in the training that is watched.
    "is killed": ("torchrun",),
    # A rank that never starts has raised, as in the training that is watched.
    "lacks": ("torchrun", "single", "horovod", "slurm"),
    # To a shim it is the same end as by Ctrl-C; but Open MPI and Horovod have their own ways with a signal.
    "stop": ("torch", "torchrun", "single", "horovod", "slurm"),
    # The agent reads the same files of the shims as of torch's, and torchrun is ended as single's parent is.
    "agent": ("torchrun", "single", "horovod"),
    "Ctrl-C": ("torchrun", "single", "horovod"),
    # Their shim is that of torch; mpi and slurm have one of their own, of which the first host's coordinates.
    "shim": ("torchrun", "single", "horovod"),
    "shim on other host": ("torchrun", "single", "horovod", "mpi", "slurm"),
    # Single's engine is told on either host, by the first host's shim.
    "engine": ("single",),
    "engine on other host": ("torchrun",),
}
"""Rows, and launchers for which they claim nothing that another row does not."""


def is_permutation(test: str, params: dict[str, Any]) -> bool:
    if "place" not in params:
        return False
    row = params.get("what") or params.get("by") or params.get("killed")
    if params.get("host") == 1:
        row = f"{row} on other host"
    for words, named in (("module_that_one_host_lacks", "lacks"), ("killed_agent", "agent")):
        row = named if words in test else row
    return params["place"].name in PERMUTATIONS.get(row, ())


def starters() -> list[Any]:
    return [
        pytest.param(each, id=name, marks=[getattr(pytest.mark, mark) for mark in each.marks])
        for name, each in STARTERS.items()
    ]


@pytest.fixture(scope="module", params=starters())
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param.name == "slurm":
        yield Place(request.param, request.getfixturevalue("session_slurm").bed)
        return
    bed: Testbed = request.getfixturevalue("module_bed")
    if request.param.name == "torchrun":  # which imports torch; the whole of it in test_found_jobs
        for host in bed.hosts:
            host.set_environment(request.getfixturevalue("lean"))
    yield Place(request.param, bed)
    for host in bed.hosts if request.param.name == "torchrun" else ():
        host.heal()


@pytest.fixture(autouse=True)
def clean(place: Place, nothing_left: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test leaves the hosts clean; after one that failed that is done for it."""
    yield
    if has_failed(request.node):
        if place.starter.name == "slurm":
            request.getfixturevalue("session_slurm").cancel_all()
        else:
            place.bed.reset()


def assert_told_and_gone(
    place: Place, console: Console, judges: Sequence[Host] = ()
) -> dict[str, Any]:
    """Assert that every host tells the run's end as the console does, and has nothing left of it.

    Args:
        judges: Only these tell it: without a shim a node that is not the first never learns it.
    """
    end = console.events[-1]
    assert end["event"] == "end", console.stderr
    for host in judges or place.hosts:
        told = host.path(f"/tmp/distconsole-{os.geteuid()}/runs/{end['run']}/ended.json")
        assert wait_for(told.exists), (host.name, console.stderr)
        kept = json.loads(told.read_text())
        assert (kept["state"], kept["exit_code"]) == (end["state"], end["exit_code"])
    assert not gone(*place.bed.hosts)
    return end


def assert_failed(
    place: Place,
    console: Console,
    exit_code: int,
    rank: int,
    host: str,
    error: str,
    judges: Sequence[Host] = (),
) -> dict[str, Any]:
    """Assert who failed first and with what, and that every other rank followed soon."""
    assert console.wait() == exit_code, (console.events[-1], console.stderr)
    end = assert_told_and_gone(place, console, judges)
    assert (end["state"], end["exit_code"]) == ("failed", exit_code)
    first: dict[str, Any] = end["first_failure"]
    assert (first["rank"], first["host"], first["exit_code"]) == (rank, host, exit_code)
    said, spawned, _ = first["error"].partition(" (in spawned process ")
    assert said == error
    assert not spawned or (place.starter.name == "single" and "Error: no such layer" in error)
    blamed = [
        (e.get("rank"), e["hosts"]) for e in console.of("finding") if e["check"] == FIRST_FAILURE
    ]
    whole = error.startswith((f"node {host} lost", "srun was ", "mpirun", "torchrun "))
    assert blamed == [(None if whole else rank, [host])]
    times = [end["t"], *(each["t"] for each in console.ends().values())]
    assert max(times) - min(times) < SOON_SECONDS
    return first


FIRST_FAILURE = "run.first_failure"

STEPS = 12


def test_a_training_is_watched_and_a_rank_that_raises_is_blamed(
    place: Place, tmp_path: Path
) -> None:
    error = "ValueError: no such layer"
    with place.run(tmp_path, "raises", STEPS) as console:
        first = assert_failed(place, console, 1, MARKED, "node2", error)
    assert WHAT["raises"] in first["traceback"]
    assert console.of("plan")[0]["launcher"] == place.starter.name
    steps = dict.fromkeys(range(place.starter.world), 0)
    for window in console.of("window"):
        steps[window["rank"]] += window["steps"]
        assert window["samples_s"] > 0
        assert window["metrics"]["loss"] > 0
    assert steps == dict.fromkeys(range(place.starter.world), STEPS)
    assert set(console.ends()) == set(range(place.starter.world))


@pytest.mark.parametrize(
    ("what", "exit_code", "error"),
    [
        ("exits", 7, "exited with code 7"),
        ("is killed", 137, "killed by SIGKILL"),
        ("faults", 139, "killed by SIGSEGV"),
    ],
)
def test_the_rank_that_breaks_is_blamed_and_ends_all(
    place: Place, tmp_path: Path, what: str, exit_code: int, error: str
) -> None:
    if reason := LIMITS.get((place.starter.name, what)):
        pytest.skip(reason)
    for host in place.bed.hosts:
        python = host.path("/run/home/python of mine")
        python.write_text('#!/bin/sh\nexec python3 "$@"\n')
        python.chmod(0o755)
    # How torch ends the children that it spawned is its own.
    bare = place.starter.name != "single"
    with place.run(tmp_path, what, NEVER, bare, "--python", "~/python of mine") as console:
        assert_failed(place, console, exit_code, MARKED, "node2", error)
    assert "/run/home/python of mine" in json.dumps(console.of("plan"))
    assert set(console.ends()) == set(range(place.starter.world))
    assert place.starter.lines(console, MARKED)[-1] == "3"


def test_a_module_that_one_host_lacks_is_named(place: Place, tmp_path: Path) -> None:
    library = place.hosts[0].path("/run/home/lib")
    library.mkdir(exist_ok=True)
    (library / "only_on_node1.py").write_text("")
    error = "ModuleNotFoundError: No module named 'only_on_node1'"
    with place.run(tmp_path, "lacks", bare=True) as console:
        first = assert_failed(place, console, 1, place.starter.first_of_node2, "node2", error)
    assert "    import only_on_node1" in first["traceback"]


@pytest.mark.parametrize("by", ["Ctrl-C", "stop"])
def test_ranks_that_hang_are_stopped(place: Place, tmp_path: Path, by: str) -> None:
    # Open MPI and Horovod have their own ways with a signal.
    bare = by == "Ctrl-C" or place.starter.name != "mpi"
    with place.run(tmp_path, "hangs", bare=bare) as console:
        console.see(event="log", line="hangs")
        if by == "stop":
            with Console(place.bed, tmp_path, "stop", console.run) as other:
                assert other.wait() == 0, other.stderr
        else:
            console.process.send_signal(signal.SIGINT)
        exit_code = 143 if by == "stop" else 130
        assert console.wait() == exit_code, console.stderr
    end = assert_told_and_gone(place, console)
    assert (end["state"], end["exit_code"]) == ("stopped", exit_code)
    assert "first_failure" not in end


def test_a_killed_agent_and_a_killed_console_cost_nothing(place: Place, tmp_path: Path) -> None:
    with place.run(tmp_path, "counts", 80, bare=True) as console:
        place.trains(console)
        assert place.hosts[1].signal(signal.SIGKILL, "pyz agent")
        console.see(event="log", line=f"{MARKED}: 20")
        console.process.kill()
        run = console.run
    with Console(place.bed, tmp_path, "attach", "--json", run) as attached:
        assert attached.wait() == 0, attached.stderr
    assert assert_told_and_gone(place, attached)["state"] == "succeeded"
    assert {end["state"] for end in attached.ends().values()} == {"exited"}
    for rank in range(place.starter.world):
        assert place.starter.lines(attached, rank) == [str(step) for step in range(80)]


def killed_by(machine: Host, program: str) -> list[int]:
    """Kill what has this command line, all in one moment; return its processes.

    They are halted before: srun has a second process, which has Slurm kill the whole step, shims
    and all, if it sees the first one die.
    """
    pids = [p.pid for p in machine.processes() if re.match(program, " ".join(p.argv))]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    return pids


@pytest.mark.parametrize("host", [0, 1], ids=["first host", "other host"])
@pytest.mark.parametrize("killed", ["engine", "shim"])
def test_an_engine_that_is_killed_takes_everything_with_it(
    place: Place, tmp_path: Path, killed: str, host: int
) -> None:
    machine = place.hosts[host]
    program, exit_code, error = (SHIM, 1, f"node {machine.name} lost: its shim is gone")
    if killed == "engine":
        if (engine := place.starter.engines[host]) is None:
            pytest.skip(f"{place.starter.name}: no engine there but the shim")
        program, exit_code, error = engine.program, 137, engine.told
    with place.run(tmp_path, "counts", bare=True) as console:
        place.trains(console)
        assert killed_by(machine, program)
        rank = 0 if host == 0 else place.starter.first_of_node2
        judges = [each for each in place.hosts if killed == "engine" or each is not machine]
        assert_failed(place, console, exit_code, rank, machine.name, error, judges)


def test_a_death_that_its_shim_reads_behind_the_stop_is_the_first(
    place: Place, tmp_path: Path
) -> None:
    """On a busy host node1 has noticed the death, and had the run stopped, before node2's shim runs."""
    if place.starter.name not in ("torch", "mpi"):
        pytest.skip(f"{place.starter.name}: its deaths are read as torch's or mpi's are")
    node1, node2 = place.hosts
    program, error = r"\S*python\S* \S+train\.py", "killed by SIGKILL"
    if (engine := place.starter.engines[1]) is not None:
        program, error = engine.program, engine.told
    with place.run(tmp_path, "counts", bare=True) as console:
        place.trains(console)
        run = console.of("plan")[0]["run"]
        shims = [p.pid for p in node2.processes() if re.match(SHIM, " ".join(p.argv))]
        log = node1.path(f"/tmp/distconsole-{os.geteuid()}/runs/{run}/shim.jsonl")
        for pid in shims:
            os.kill(pid, signal.SIGSTOP)
        assert shims
        assert killed_by(node2, program)
        assert wait_for(lambda: '"stopping"' in log.read_text())
        for pid in shims:
            os.kill(pid, signal.SIGCONT)
        assert_failed(place, console, 137, MARKED, "node2", error)
