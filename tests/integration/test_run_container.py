"""What happens in a container as on the host itself: rows of the table of docs/guide/restarts.md, below real engines.

Each simulated host has a podman of its own, whose containers have this machine's files, so torch and MPI are there.
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.model.requests import Stop, Where
from distconsole.session import open_session
from suite.console import Console
from suite.driving import answered
from suite.outcomes import has_failed
from suite.place import Place
from suite.podman import NEW, RUNNING, install_podman, lacks_podman
from suite.remains import remains
from suite.starters import MARKED, NEVER, STARTERS
from testbed import Testbed
from testbed.keeper import wait_for

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.usefixtures("consoles"),
    pytest.mark.torch_ranks,
    pytest.mark.skipif(bool(lacks_podman()), reason=lacks_podman()),
]

UNSHARED = "unshare --mount --pid --fork --mount-proc"


@pytest.fixture(scope="module")
def containers(module_bed: Testbed) -> Testbed:
    for host in module_bed.hosts[:2]:
        install_podman(host)
    return module_bed


@pytest.fixture(autouse=True)
def clean(containers: Testbed, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if has_failed(request.node):
        containers.reset()
        for host in containers.hosts[:2]:
            install_podman(host)


def left(bed: Testbed) -> list[str]:
    """Return what a run has left on the hosts, beside the container that ran before."""
    engine = ("conmon", "1000000", "libpod")

    def found() -> list[str]:
        all_of = [each for host in bed.hosts[:2] for each in remains(host)]
        return [each for each in all_of if not any(word in each for word in engine)]

    wait_for(lambda: not found())
    return found()


def run(
    bed: Testbed,
    folder: Path,
    launcher: str,
    container: str,
    what: str,
    steps: int = NEVER,
    *how: str,
    bare: bool = False,
) -> Console:
    place, inside = Place(STARTERS[launcher], bed), ("--python", sys.executable)
    return place.run(folder, what, steps, bare, "--container", container, *inside, *how)


@pytest.mark.parametrize(
    ("launcher", "container"),
    [("torchrun", NEW), pytest.param("mpi", RUNNING, marks=pytest.mark.horovod)],
    ids=["image", "mpi"],
)
def test_a_rank_that_raises_in_a_container_is_blamed(
    containers: Testbed, tmp_path: Path, launcher: str, container: str, lean: dict[str, str]
) -> None:
    lean_torch = ("--env", f"PYTHONPATH={lean['PYTHONPATH']}")
    with run(containers, tmp_path, launcher, container, "raises", 12, *lean_torch) as console:
        assert console.wait() == 1, console.stderr
    first = console.events[-1]["first_failure"]
    assert (first["rank"], first["host"]) == (MARKED, "node2")
    assert first["error"] == "ValueError: no such layer"
    steps = dict.fromkeys(range(3), 0)
    for window in console.of("window"):
        steps[window["rank"]] += window["steps"]
    assert steps == dict.fromkeys(range(3), 12)
    assert not left(containers)


def see_all(console: Console) -> None:
    for rank in range(3):
        console.see(event="log", line=f"{rank}: 3")


@pytest.mark.parametrize(
    "container", [RUNNING, pytest.param(NEW, marks=pytest.mark.campaign)], ids=["running", "image"]
)
def test_a_rank_that_is_killed_in_a_container_has_its_signal_as_exit_code(
    containers: Testbed, tmp_path: Path, container: str
) -> None:
    kill_one(containers, tmp_path, container)
    assert not left(containers)


def test_a_rank_that_is_killed_is_blamed_though_its_engine_tells_the_end_behind_the_stop(
    containers: Testbed, tmp_path: Path
) -> None:
    engine = tmp_path / "late.sh"
    engine.write_text('"$@"\ncode=$?\n[ $code -lt 128 ] || sleep 1\nexit $code\n')
    kill_one(containers, tmp_path, f"sh {engine}")
    assert not left(containers)


def kill_one(bed: Testbed, folder: Path, container: str) -> None:
    """Kill one rank from outside, and see it blamed."""
    with run(bed, folder, "torch", container, "counts", bare=True) as console:
        see_all(console)
        told = [each["pid"] for each in console.of("rank") if each["rank"] == MARKED]
        assert bed.hosts[1].popen(["sh", "-c", f"kill -9 {told[-1]}"]).wait() == 0
        assert console.wait() == 137, console.stderr
    first = console.events[-1]["first_failure"]
    assert (first["rank"], first["error"]) == (MARKED, "killed by SIGKILL")


@pytest.mark.parametrize(
    "container", [RUNNING, NEW, UNSHARED], ids=["running", "image", "command"]
)
def test_a_stop_leaves_nothing_in_a_container(
    containers: Testbed, tmp_path: Path, container: str
) -> None:
    with run(containers, tmp_path, "torch", container, "hangs", bare=True) as console:
        console.see(event="log", line="hangs")
        where = Where(ssh_config=str(containers.ssh_config), hosts=containers.names)
        answered(Stop(console.run, where=where, grace_seconds=2.0), open_session)
        assert console.wait() == 143, console.stderr
    assert not left(containers)


@pytest.mark.parametrize(
    "container", [pytest.param(RUNNING, marks=pytest.mark.campaign), NEW], ids=["running", "image"]
)
def test_a_shim_that_is_killed_takes_what_is_in_a_container_with_it(
    containers: Testbed, tmp_path: Path, container: str
) -> None:
    with run(containers, tmp_path, "torch", container, "counts", bare=True) as console:
        see_all(console)
        assert containers.hosts[1].signal(signal.SIGKILL, "pyz shim")
        assert console.wait() == 1, console.stderr
    assert "its shim is gone" in console.events[-1]["first_failure"]["error"]
    assert not left(containers)


def test_a_container_that_does_not_run_is_named_before_anything_starts(
    containers: Testbed, tmp_path: Path
) -> None:
    with run(containers, tmp_path, "torch", "podman:nobody", "counts", bare=True) as console:
        assert console.wait() == 3, console.stderr
    assert "neither a running container nor an image nobody here" in "".join(console.stderr)
    assert not left(containers)
