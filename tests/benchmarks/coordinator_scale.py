"""What a run of a thousand nodes costs the shim that coordinates it, and how long until all know of a failure.

The coordinator is a process of its own; its peers are the real ones, all in one loop of another process, over
loopback. ``python -m benchmarks.coordinator_scale [--json FILE] [--peers N,N] [--seconds S]``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.alone import Figures, Row, run_alone
from benchmarks.measure import cpu_seconds, rss_bytes
from distconsole_agent.coordination.channel import LinkTimes
from distconsole_agent.coordination.coordinator import Coordinator
from distconsole_agent.coordination.link import LinkEvents
from distconsole_agent.coordination.peer import Peer
from distconsole_agent.system.descriptors import raise_limit
from distconsole_agent.system.loop import Loop
from fakes.links import failure, spec

PATIENCE_SECONDS = 120.0
TARGET_SECONDS = 2.0
"""In which all others know that a rank has failed."""


def events(stop: Callable[[], None] = lambda: None, **more: Any) -> LinkEvents:
    """Return what a link tells, of which only ``stop`` is of interest here."""

    def nothing(*_: object) -> None:
        pass

    names = ("verdict", "note", "finished", "command", "command_ended", "outlived", "node_lost")
    others = dict.fromkeys((*names, "restart", "again"), nothing)
    return LinkEvents(stop=lambda *_: stop(), renew=lambda: (0, None), **{**others, **more})


def be_coordinator(peers: int) -> None:
    """Coordinate; say where, and then, when asked by a line, nothing more."""
    raise_limit()
    loop = Loop()
    coordinator = Coordinator(loop, spec(peers + 1, 0), events(), LinkTimes())
    coordinator.begin()
    print(json.dumps(coordinator.endpoint), flush=True)
    loop.run()


def be_peers(peers: int, host: str, port: int, seconds: float) -> None:
    """Be all peers: join, be there for a while, fail in one, and say how long each part took."""
    raise_limit()
    loop, told = Loop(), [0.0] * peers
    owner, whole = int(sys.stdin.readline()), spec(peers + 1, 1)

    def of(place: int) -> Peer:
        def stop() -> None:
            told[place] = told[place] or time.monotonic()

        own = whole._replace(node_index=place + 1)
        return Peer(loop, own, (host, port), events(stop), LinkTimes())

    def until(is_so: Callable[[], bool]) -> float:
        began = time.monotonic()
        while not is_so():
            loop.run_once(0.05)
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise TimeoutError(f"{sum(map(bool, told))} of {peers} are told")
        return time.monotonic() - began

    links = [of(place) for place in range(peers)]
    cpu, began = cpu_seconds(owner), time.monotonic()
    for link in links:
        link.begin()
    until(lambda: all(link._conversation.linked for link in links))
    joined = time.monotonic() - began
    join_cpu = cpu_seconds(owner) - cpu
    cpu, since = cpu_seconds(owner), time.monotonic()
    until(lambda: time.monotonic() - since > seconds)
    beat_share = (cpu_seconds(owner) - cpu) / (time.monotonic() - since)
    cpu, failed_at = cpu_seconds(owner), time.monotonic()
    links[peers // 2].failed(failure(peers // 2 + 1, time.time_ns()))
    others = [place for place in range(peers) if place != peers // 2]
    until(lambda: all(told[place] for place in others))
    found = {
        "join_seconds": joined,
        "join_cpu_seconds": join_cpu,
        "beat_cpu_share": beat_share,
        "told_seconds": max(told[place] for place in others) - failed_at,
        "told_cpu_seconds": cpu_seconds(owner) - cpu,
        "rss_bytes": rss_bytes(owner),
    }
    print(json.dumps(found), flush=True)
    os._exit(0)


def measure(peers: int, seconds: float) -> dict[str, Any]:
    """Return what one size costs."""
    me = [sys.executable, "-m", "benchmarks.coordinator_scale"]
    with subprocess.Popen([*me, "--be-coordinator", str(peers)], stdout=-1) as coordinator:
        try:
            host, port = json.loads(coordinator.stdout.readline())
            done = subprocess.run(
                [*me, "--be-peers", *map(str, (peers, host, port, seconds))],
                input=f"{coordinator.pid}\n",
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            coordinator.kill()
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_all(peers: str, seconds: float) -> dict[str, Any]:
    return {size: measure(int(size), seconds) for size in peers.split(",")}


def rows(figures: Figures) -> list[Row]:
    rows: list[Row] = []
    for peers, found in figures.items():
        of = f"coordinator, {int(peers):,} peers"
        each = 1000 * found["join_cpu_seconds"] / int(peers)
        joined = f"{found['join_seconds']:.2f} s, CPU {each:.2f} ms a node"
        beat = f"{found['beat_cpu_share']:.1%} of a core, {found['rss_bytes'] / 1e6:.0f} MB"
        told = f"{found['told_seconds']:.2f} s, CPU {found['told_cpu_seconds']:.2f} s"
        met = found["told_seconds"] <= TARGET_SECONDS
        rows += [
            Row(f"{of}: all have joined", joined),
            Row(f"{of}: signs of life", beat),
            Row(f"{of}: all know of a failure", told, "", f"≤ {TARGET_SECONDS:g} s", met),
        ]
    return rows


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--be-coordinator", peers]:
            be_coordinator(int(peers))
        case ["--be-peers", peers, host, port, seconds]:
            be_peers(int(peers), host, int(port), float(seconds))
        case _:
            run_alone(
                "coordinator_scale", __doc__, measure_all, rows, peers="64,1000", seconds=10.0
            )
