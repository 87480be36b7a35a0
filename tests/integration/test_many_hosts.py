"""64 hosts end to end: a run starts, is watched, one rank fails or the operator stops it, and nothing is left."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.console import Console
from suite.remains import gone
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("consoles"), pytest.mark.campaign]

HOSTS = 64
FAILING = 37
SCRIPT = """
import os, subprocess, sys, time
rank = int(os.environ["RANK"])
subprocess.Popen(["setsid", "sleep", "4321"])
print("up", flush=True)
while not (rank == 37 and os.path.exists(sys.argv[1])):
    time.sleep(0.1)
raise ValueError("no such layer")
"""
Took = Callable[[str], None]


@pytest.fixture(scope="module")
def many() -> Iterator[Testbed]:
    with Testbed(HOSTS) as bed:
        yield bed


@pytest.fixture
def took(record_property: Callable[[str, object], None]) -> Took:
    """Notes how long the part took that ends now; read with ``-rP``, or in a JUnit file."""
    since = [time.monotonic()]

    def note(what: str) -> None:
        now = time.monotonic()
        print(f"{what}: {now - since[0]:.1f} s")
        record_property(what, round(now - since[0], 2))
        since[0] = now

    return note


@pytest.mark.parametrize("end", ["a rank fails", "stop"])
def test_a_run_on_64_hosts_is_watched_and_leaves_nothing(
    many: Testbed, tmp_path: Path, took: Took, end: str
) -> None:
    go, script = tmp_path / "go", tmp_path / "job.py"
    script.write_text(SCRIPT)
    with Console(many, tmp_path, "run", "--json", str(script), str(go)) as console:
        for rank in range(HOSTS):
            console.see(240, event="log", rank=rank, line="up")
        took("all ranks print")
        if end == "stop":
            console.process.send_signal(signal.SIGINT)
        else:
            go.touch()
        assert console.wait(240) == (130 if end == "stop" else 1)
        took(f"{end}: the console has ended")
        assert gone(*many.hosts) == []
        took("nothing is left on any host")
    assert len(console.ends()) == HOSTS
    first = console.events[-1].get("first_failure")
    assert (first and first["rank"]) == (None if end == "stop" else FAILING)
