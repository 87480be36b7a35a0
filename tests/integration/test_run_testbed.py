"""Runs on two hosts of the testbed, by the command line, while things break."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any, Self

import pytest

from distconsole_agent.channel import LinkTimes
from testbed import Testbed

pytestmark = pytest.mark.testbed

MAX_PEAK_KIB = 160 * 1024
MEASURED = """
import re, sys
from pathlib import Path
from distconsole.__main__ import run
code = run(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""
"""Runs the program and says at its end how much memory it had at most, in KiB.

Not by ``ru_maxrss``, which a program inherits from the one that started it: here from pytest.
"""


class Console:
    """One ``distconsole`` process; its JSON lines are read as they come."""

    def __init__(self, bed: Testbed, folder: Path, *words: str) -> None:
        where = ["--ssh-config", str(bed.ssh_config), "--hosts", bed.names]
        self.events: list[dict[str, Any]] = []
        self.stderr: list[str] = []
        self._changed = threading.Condition()
        environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distconsole", words[0], *where, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._event)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.stderr.append)),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def see(self, seconds: float = 60.0, **fields: Any) -> dict[str, Any]:
        """Wait for an event with these fields."""
        deadline = time.monotonic() + seconds
        looked = 0
        with self._changed:
            while True:
                for event in self.events[looked:]:
                    if all(event.get(name) == value for name, value in fields.items()):
                        return event
                looked = len(self.events)
                left = deadline - time.monotonic()
                assert left > 0, (fields, self.events[-5:], self.stderr[-20:])
                self._changed.wait(left)

    def wait(self, seconds: float = 90.0) -> int:
        """Wait for the process's end; return its exit code."""
        code = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(10)
        return code

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def lines(self, rank: int) -> list[str]:
        return [event["line"] for event in self.of("log") if event.get("rank") == rank]

    def _event(self, line: str) -> None:
        with self._changed:
            self.events.append(json.loads(line))
            self._changed.notify_all()

    @staticmethod
    def _read(stream: IO[str] | None, take: Any) -> None:
        assert stream is not None
        for line in stream:
            take(line)


def script(folder: Path, text: str) -> str:
    path = folder / "job.py"
    path.write_text(f"import os, sys, time, signal\nrank = int(os.environ['RANK'])\n{text}\n")
    return str(path)


COUNT = "for n in range({}):\n    print(n, flush=True)\n    time.sleep(0.02)"


def nothing_runs(bed: Testbed, word: str, seconds: float = 10.0) -> bool:
    """Wait until no process on the hosts has ``word`` in its command."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = [
            bed.ssh(host, f"pgrep -f '[{word[0]}]{word[1:]}' || true").stdout.strip()
            for host in bed.host_names
        ]
        if not any(found):
            return True
        time.sleep(0.1)
    return False


def test_a_failure_on_one_host_ends_the_other_and_is_the_exit_code(
    bed: Testbed, tmp_path: Path
) -> None:
    text = "if rank == 3:\n    time.sleep(0.3)\n    sys.exit(7)\ntime.sleep(300)"
    with Console(
        bed, tmp_path, "run", "--nproc", "2", "--json", script(tmp_path, text)
    ) as console:
        assert console.wait() == 7
        end = console.events[-1]
    assert (end["event"], end["state"], end["exit_code"]) == ("end", "failed", 7)
    assert (end["first_failure"]["rank"], end["first_failure"]["host"]) == (3, "node2")
    assert nothing_runs(bed, "job.py")
    ended = {e["rank"]: e["t"] for e in console.of("rank") if e["state"] in ("failed", "killed")}
    assert set(ended) == {0, 1, 2, 3}


def test_ctrl_c_stops_every_rank_on_every_host(bed: Testbed, tmp_path: Path) -> None:
    words = ("run", "--nproc", "2", "--json", script(tmp_path, COUNT.format(10_000)))
    with Console(bed, tmp_path, *words) as console:
        for rank in range(4):
            console.see(event="log", rank=rank, line="5")
        console.process.send_signal(signal.SIGINT)
        assert console.wait() == 130
        assert console.events[-1]["state"] == "stopped"
    assert nothing_runs(bed, "job.py")


def test_a_killed_console_leaves_the_run_going_and_attach_finds_it(
    bed: Testbed, tmp_path: Path
) -> None:
    words = ("run", "--json", "--name", "long", script(tmp_path, COUNT.format(300)))
    with Console(bed, tmp_path, *words) as console:
        console.see(event="log", rank=1, line="50")
        console.process.kill()
    with Console(bed, tmp_path, "attach", "--json", "long") as attached:
        assert attached.wait() == 0
        for rank in (0, 1):
            assert attached.lines(rank) == [str(n) for n in range(300)]


def test_a_killed_agent_costs_no_line_and_no_exit_code(bed: Testbed, tmp_path: Path) -> None:
    words = ("run", "--json", script(tmp_path, f"{COUNT.format(300)}\nsys.exit(rank * 4)"))
    with Console(bed, tmp_path, *words) as console:
        console.see(event="log", rank=1, line="50")
        bed.ssh("node2", "pkill -KILL -f '[p]yz agent'")
        assert console.wait() == 4
        assert console.lines(1) == [str(n) for n in range(300)]


def test_agents_that_are_killed_while_ranks_start_anew_tell_everything(
    bed: Testbed, tmp_path: Path
) -> None:
    text = (
        "again = 'DISTCONSOLE_RESTART' in os.environ\n"
        "for n in range(150):\n    print(n + 150 * again, flush=True)\n    time.sleep(0.02)\n"
        "sys.exit(0 if again else rank * 5)"
    )
    words = ("run", "--json", "--max-restarts", "2", script(tmp_path, text))
    with Console(bed, tmp_path, *words) as console:
        console.see(event="log", rank=1, line="120")
        for name in bed.host_names:
            bed.ssh(name, "pkill -KILL -f '[p]yz agent'")
        assert console.wait() == 0
        for rank in (0, 1):
            assert console.lines(rank) == [str(n) for n in range(300)]
        assert [event["restart"] for event in console.of("restart")] == [1]
        assert [f["check"] for f in console.of("finding")] == ["run.restart"]


def test_every_host_and_the_console_tell_the_death_of_the_first_supervisor_alike(
    bed: Testbed, tmp_path: Path
) -> None:
    words = ("run", "--json", script(tmp_path, COUNT.format(10_000)))
    with Console(bed, tmp_path, *words) as console:
        for rank in (0, 1):
            console.see(event="log", rank=rank, line="5")
        bed.ssh("node1", "pkill -KILL -f '[p]yz shim'")
        assert console.wait() == 1
        end = console.events[-1]
    assert (end["event"], end["state"], end["exit_code"]) == ("end", "failed", 1)
    first = end["first_failure"]
    assert (first["rank"], first["host"]) == (0, "node1")
    assert first["error"] == "node node1 lost: its shim is gone"
    assert nothing_runs(bed, "job.py")
    for name in bed.host_names:
        run = f"/tmp/distconsole-$(id -u)/runs/{end['run']}"
        told = bed.ssh(name, f"zcat -f {run}/journal/*").stdout.splitlines()
        *_, verdict, ended = (
            e for e in map(json.loads, told) if e.get("kind") in ("verdict", "end")
        )
        assert (ended["kind"], ended["state"], ended["exit_code"]) == ("end", "failed", 1)
        assert verdict["first_failure"] == first


def test_the_death_of_another_supervisor_is_told_by_its_nodes_agent(
    bed: Testbed, tmp_path: Path
) -> None:
    words = ("run", "--json", script(tmp_path, COUNT.format(10_000)))
    with Console(bed, tmp_path, *words) as console:
        for rank in (0, 1):
            console.see(event="log", rank=rank, line="5")
        bed.ssh("node2", "pkill -KILL -f '[p]yz shim'")
        # A node that does not answer has more time than this before it is given up.
        assert console.wait(LinkTimes().give_up - 5) == 1
        end = console.events[-1]
    assert (end["event"], end["state"]) == ("end", "failed")
    assert end["first_failure"]["host"] == "node2"
    assert end["first_failure"]["error"] == "node node2 lost: its shim is gone"
    assert nothing_runs(bed, "job.py")


def test_a_cut_network_loses_and_doubles_nothing(bed: Testbed, tmp_path: Path) -> None:
    words = ("run", "--json", script(tmp_path, COUNT.format(1500)))
    with Console(bed, tmp_path, *words) as console:
        console.see(event="log", rank=0, line="50")
        bed.cut_console()
        console.see(event="link", connected=False)
        bed.restore_console()
        console.see(event="link", connected=True)
        assert console.wait() == 0
        for rank in (0, 1):
            assert console.lines(rank) == [str(n) for n in range(1500)]


def test_a_host_that_loses_power_ends_the_run(bed: Testbed, tmp_path: Path) -> None:
    words = ("run", "--json", script(tmp_path, COUNT.format(10_000)))
    with Console(bed, tmp_path, *words) as console:
        console.see(event="log", rank=1, line="20")
        bed.hosts[1].power_cut()
        assert console.wait(170) == 1
        end = console.events[-1]
    assert end["state"] == "failed"
    assert end["first_failure"]["host"] == "node2"


def test_a_million_lines_pass_through_bounded_memory(bed: Testbed, tmp_path: Path) -> None:
    text = "for n in range(500_000): sys.stdout.write(f'{n} and some words to fill the line\\n')"
    words = ["run", "--ssh-config", str(bed.ssh_config), "--hosts", bed.names]
    words += ["--env", "PYTHONUNBUFFERED=", script(tmp_path, text)]
    with subprocess.Popen(
        [sys.executable, "-c", MEASURED, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        last: dict[int, int] = {}
        for line in process.stdout:
            matched = re.match(rb"\[(\d) node\d\] (\d+) and", line)
            assert matched is not None, line
            rank, number = int(matched[1]), int(matched[2])
            assert number == last.get(rank, -1) + 1
            last[rank] = number
        assert process.wait(60) == 0
        peak_kib = int(process.stderr.read().split()[-1])
    assert last == {0: 499_999, 1: 499_999}
    assert peak_kib < MAX_PEAK_KIB
