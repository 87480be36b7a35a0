"""A cluster of a thousand hosts in processes, and what it costs the console: real fan-out, links, frames, store and
screen, without sshd.

``fakes.many_nodes`` speaks for the hosts; the console is the program itself in a process of its own, whose way to a
host is a Unix socket. Its CPU is measured apart from that of the nodes. SSH itself is not in these figures.
"""

import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, at_most, program, text
from benchmarks.glass import Watched
from benchmarks.keys import END, HOME, has, lacks
from benchmarks.measure import Spread, Tail, cpu_seconds, rss_bytes
from distconsole.errors import LinkLostError
from distconsole.model.cluster import Host
from fakes.many_nodes import RUN, name_of
from suite.environment import scrubbed
from testbed.keeper import wait_for

TESTS = str(Path(__file__).resolve().parents[1])
NODES = "DISTCONSOLE_SCALE_NODES"
"""Where the sockets of the simulated nodes lie."""
EACH = 1024
"""Hosts of one simulating process."""
TARGETS = {
    "first_screen_seconds": 10.0,
    "cpu_share": 1.0,
    "rss_bytes": 500e6,
    "key_seconds": 0.1,
    "check_seconds": 10.0,
    "why_seconds": 5.0,
}
PATIENCE_SECONDS = 120.0
FLOOD_LINES_S = 100_000.0


class SocketChannel:
    """The streams of one command, which are a Unix socket; see ``ssh.transport.Channel``."""

    def __init__(self, name: str, command: str, path: str) -> None:
        token = command.split("distconsole-boot ")[1].split()[0]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30.0)
        self._socket.connect(path)
        self._socket.sendall(f"{name} {token}\n".encode())
        self._closed = False
        self._ends = self._socket.dup()  # a timeout is an object's: who sends has another
        self._sending = threading.Lock()

    @property
    def waits_on(self) -> tuple[int, ...]:
        return () if self._closed else (self._socket.fileno(),)

    def read_now(self, max_bytes: int) -> bytes | None:
        if self._socket.gettimeout():
            self._socket.settimeout(0.0)
        try:
            return self._socket.recv(max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise LinkLostError(f"the socket is gone: {error}") from None

    def recv(self, max_bytes: int, timeout: float) -> bytes:
        self._socket.settimeout(timeout)
        try:
            return self._socket.recv(max_bytes)
        except TimeoutError:
            raise
        except OSError as error:
            raise LinkLostError(f"the socket is gone: {error}") from None

    def send(self, data: bytes, timeout: float) -> None:
        with self._sending:
            self._ends.settimeout(timeout)
            try:
                self._ends.sendall(data)
            except TimeoutError:
                raise
            except OSError as error:
                raise LinkLostError(f"the socket is gone: {error}") from None

    def end_input(self) -> None:
        """No command here waits for its end."""

    def stderr_tail(self) -> str:
        return ""

    def exit_code(self, timeout: float) -> int | None:
        return None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for each in (self._socket, self._ends):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()


class SocketConnection:
    """One simulated node; see ``ssh.transport.Connection``."""

    alive = True

    def __init__(self, name: str, path: str, address: str) -> None:
        self._name, self._path = name, path
        self.reached_at = address
        self._channels: list[SocketChannel] = []

    def open(self, command: str, timeout: float) -> SocketChannel:
        channel = SocketChannel(self._name, command, self._path)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class SocketTransport:
    """Stands where SSH is (``ssh.choosing.ChosenTransport``)."""

    def __init__(self, ssh_config: str | None = None) -> None:
        self._folder = os.environ[NODES]

    def connect(self, host: Host) -> SocketConnection:
        from fakes.many_nodes import address_of

        place = int(host.name.removeprefix("node")) - 1
        return SocketConnection(
            host.name, f"{self._folder}/{place // EACH}.sock", address_of(place)
        )

    def who_may_ask(self, hosts: Sequence[Host]) -> list[Host]:
        return []

    def prepare(self, hosts: Sequence[Host]) -> None:
        """Nothing is to be loaded."""

    def close(self) -> None:
        """Nothing is shared."""


def be(*words: str) -> None:
    """Be the program, with sockets in SSH's place."""
    from distconsole import __main__ as program
    from distconsole.ssh import choosing

    choosing.ChosenTransport = SocketTransport  # type: ignore[assignment,misc]
    program.mend_streams()
    if profile := os.environ.get("DISTCONSOLE_SCALE_PROFILE"):
        import cProfile

        with cProfile.Profile() as profiler:
            code = program.run(list(words))
        profiler.dump_stats(profile)
        sys.exit(code)
    sys.exit(program.run(list(words)))


class Nodes:
    """The simulating processes, and what the console needs to find them."""

    def __init__(self, folder: Path, hosts: int, ranks: int, lines_s: float) -> None:
        self.hosts, self.ranks = hosts, ranks
        self._folder = folder / "nodes"
        self._folder.mkdir()
        environment = {**os.environ, "PYTHONPATH": TESTS}
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "fakes.many_nodes"),
                    *("--socket", str(self._folder / f"{shard}.sock")),
                    *("--first", str(shard * EACH), "--count", str(min(EACH, hosts - shard * EACH))),
                    *("--hosts", str(hosts), "--ranks", str(ranks), "--lines-s", str(lines_s)),
                ],
                env=environment,
            )
            for shard in range(-(-hosts // EACH))
        ]  # fmt: skip
        there = self._folder.glob
        assert wait_for(lambda: len(list(there("*.json"))) == len(self.processes), 120), (
            "no sockets"
        )

    @property
    def environment(self) -> dict[str, str]:
        return {NODES: str(self._folder), "HOME": str(self._folder.parent), "PYTHONPATH": TESTS}

    @property
    def names(self) -> str:
        return f"node[{name_of(0)[4:]}-{name_of(self.hosts - 1)[4:]}]"

    def told(self) -> dict[str, int]:
        """Return what they have sent of journals so far."""
        notes = [json.loads(note.read_text()) for note in self._folder.glob("*.json")]
        return {name: sum(note[name] for note in notes) for name in notes[0]}

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(each.pid) for each in self.processes)

    def close(self) -> None:
        for each in self.processes:
            each.terminate()
        for each in self.processes:
            each.wait()


@contextmanager
def nodes_of(hosts: int, ranks: int, lines_s: float) -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        nodes = Nodes(Path(folder), hosts, ranks, lines_s)
        try:
            yield nodes
        finally:
            nodes.close()


def headless(nodes: Nodes, *words: str) -> tuple[float, float, int, str]:
    """Return the seconds of a command, those of its CPU, its peak memory in bytes, and what it said."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            program("scale", *words, "--hosts", nodes.names),
            env={**scrubbed(os.environ), **nodes.environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read()
    if process.returncode > 1 or "No module named" in said:
        raise RuntimeError(f"{words[0]} ended with {process.returncode}: {said[-2000:]}")
    spent = usage.ru_utime + usage.ru_stime
    return time.monotonic() - began, spent, usage.ru_maxrss * 1024, said


@contextmanager
def watching(nodes: Nodes) -> Iterator[Watched]:
    """Have the run watched on a screen, with a store that is empty."""
    with tempfile.TemporaryDirectory(prefix="bench-scale-data-") as folder:
        words = program("scale", "attach", RUN, "--hosts", nodes.names)
        homes = {"XDG_DATA_HOME": folder, "XDG_STATE_HOME": folder, **nodes.environment}
        with Watched(words, homes) as console:
            yield console


def pressed(console: Watched, world: int, keys: int) -> list[float]:
    """Return the seconds from each key to what it asks for: the last rank of the table, or no longer that."""
    chance, took, last = random.Random(1), [], rf"^\W*{world - 1} +node\d+ +\S"
    for number in range(keys):
        key, is_so = (HOME, lacks(last)) if number % 2 else (END, has(last))
        console.look_for(chance.uniform(0.05, 0.3))
        began = time.perf_counter()
        console.press(key)
        took.append(console.look_until(is_so, f"what key {number} asks for") - began)
    return took


def watched(nodes: Nodes, seconds: float, keys: int) -> dict[str, Any]:
    """Return what it costs to watch the run: until all ranks are there, and then for so long."""
    ranks = f"Ranks {nodes.hosts * nodes.ranks:,}"
    with watching(nodes) as console:
        began = time.monotonic()
        until = began + PATIENCE_SECONDS
        while not (there := ranks in console.glass.text) and time.monotonic() < until:
            console.look(0.2)
        found: dict[str, Any] = {"first_screen_seconds": time.monotonic() - began, "all": there}
        found["threads"] = len(list(Path(f"/proc/{console.pid}/task").iterdir()))
        found["descriptors"] = len(list(Path(f"/proc/{console.pid}/fd").iterdir()))
        own, theirs, told = cpu_seconds(console.pid), nodes.cpu_seconds(), nodes.told()
        since = time.monotonic()
        console.look_for(seconds)
        took = time.monotonic() - since
        found["cpu_share"] = (cpu_seconds(console.pid) - own) / took
        found["nodes_cpu_share"] = (nodes.cpu_seconds() - theirs) / took
        found["items_s"] = (nodes.told()["items"] - told["items"]) / took
        found["left_out"] = nodes.told()["left_out"] - told["left_out"]
        found["rss_bytes"] = rss_bytes(console.pid)
        behind = re.search(r"[A-Z], (\d+) s ago  ", console.glass.text)
        found["behind_seconds"] = int(behind[1]) if behind else 0
        if keys:
            found["keys"] = Tail.of(pressed(console, nodes.hosts * nodes.ranks, keys))
        found["load1"] = os.getloadavg()[0]
    return found


def measure(
    hosts: int = 1024, ranks: int = 8, seconds: float = 30.0, keys: int = 300, rounds: int = 3
) -> dict[str, Any]:
    """Measure each verb, then the screen, then the screen while ranks print 100,000 lines a second."""
    found: dict[str, Any] = {"hosts": hosts, "ranks": ranks}
    with nodes_of(hosts, ranks, 0) as nodes:
        for name, words in (("why", ("why", RUN)), ("check", ("check", "--level", "quick"))):
            headless(nodes, *words)  # the model answers, and modules are compiled
            each = [headless(nodes, *words) for _ in range(rounds)]
            found[name] = {
                "seconds": Spread.of([one[0] for one in each]),
                "cpu_seconds": Spread.of([one[1] for one in each]),
                "peak_bytes": max(one[2] for one in each),
            }
            print(name, found[name], flush=True)
        found["watched"] = watched(nodes, seconds, keys)
        print("watched", found["watched"], flush=True)
    with nodes_of(hosts, ranks, FLOOD_LINES_S) as nodes:
        found["flood"] = watched(nodes, seconds, 0)
        print("flood", found["flood"], flush=True)
    return found


def rows(figures: Figures) -> list[Row]:
    of = f"{figures['hosts']:,} hosts x {figures['ranks']}"
    rows: list[Row] = []
    for name in ("why", "check"):
        each = figures[name]
        took, spent = each["seconds"], each["cpu_seconds"]
        measured = f"{text(took, 1, 1)} s, CPU {text(spent, 1, 1)} s, {each['peak_bytes'] / 1e6:.0f} MB at most"
        limit = at_most(TARGETS[f"{name}_seconds"], took["median"])
        rows.append(Row(f"{of}: {name}", measured, "", *limit))
    for name, title in (("watched", "the screen"), ("flood", "100,000 lines/s")):
        each = figures[name]
        first = each["first_screen_seconds"] if each["all"] else float("inf")
        rows += [
            Row(f"{of}, {title}: all ranks on it", f"{first:.1f} s", "", *at_most(TARGETS["first_screen_seconds"], first)),
            Row(f"{of}, {title}: CPU", f"{each['cpu_share']:.2f} cores, {each['behind_seconds']} s behind",
                f"the nodes {each['nodes_cpu_share']:.2f}", "≤ 1 and not behind",
                each["cpu_share"] <= TARGETS["cpu_share"] and not each["behind_seconds"]),
            Row(f"{of}, {title}: memory", f"{each['rss_bytes'] / 1e6:.0f} MB, {each['threads']:,} threads",
                f"{each['left_out']:,} lines left out by the nodes, counted",
                *at_most(TARGETS["rss_bytes"] / 1e6, each["rss_bytes"] / 1e6, " MB")),
        ]  # fmt: skip
        if "keys" in each:
            median, p99, longest = (
                1000 * each["keys"][name] for name in ("median", "p99", "longest")
            )
            told = f"{median:.0f} ms, p99 {p99:.0f}, longest {longest:.0f}"
            limit = at_most(1000 * TARGETS["key_seconds"], p99, " ms, p99")
            rows.append(Row(f"{of}, {title}: a key", told, "", *limit))
    return rows
