"""The roll call: asks every rank of a run on this node at once, each with a deadline of its own."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from distconsole_agent.contract.protocol import MAX_CALL_BYTES
from distconsole_agent.roll_call import facts
from distconsole_agent.system.procfs import Process, all_processes, read_process

LOOK_SECONDS = 0.25
"""Between the two looks at what a process uses."""

LATE_SECONDS = 0.5
"""So much later than its deadline a rank is given up: the kernel itself does not answer about it."""

Call = dict[str, Any]


class Seat(NamedTuple):
    """What is known of a rank before anybody asks it; ``told`` are fields of its CALL."""

    pid: int | None
    told: Call


def call_ranks(seats: Sequence[Seat], rings: str, seconds: float) -> list[Call]:
    """Return one CALL (``protocol.CALL_FIELDS``) for each seat, in their order.

    Args:
        rings: The folder where ranks leave their sockets.
        seconds: Each rank's deadline; all together take hardly longer.
    """
    processes = all_processes()
    askers = [_Asker(seat, rings, processes, seconds) for seat in seats]
    for asker in askers:
        asker.begin()
    until = time.monotonic() + seconds + LATE_SECONDS
    for asker in askers:
        with contextlib.suppress(RuntimeError):
            asker.join(max(0.0, until - time.monotonic()))
    return [bounded(dict(asker.call)) for asker in askers]


def bounded(call: Call) -> Call:
    """Return ``call`` with so many frames, threads and collectives left out that it has its size."""
    while len(json.dumps(call)) > MAX_CALL_BYTES:
        threads, groups = call.get("threads") or [], call.get("collectives") or []
        longest = max(threads, key=lambda each: len(each["frames"]), default=None)
        if longest is not None and len(longest["frames"]) > 4:
            del longest["frames"][len(longest["frames"]) // 2 :]
        elif len(threads) > 1:
            del threads[-1]
        elif any(group.get("recent") for group in groups):
            for group in groups:
                group["recent"] = []
        elif groups:
            del groups[-1]
        else:
            return {key: call[key] for key in ("rank", "local_rank", "pid", "t", "alive")}
    return call


class _Asker(threading.Thread):
    """Asks one rank; ``call`` holds what is known so far."""

    def __init__(
        self, seat: Seat, rings: str, processes: dict[int, Process], seconds: float
    ) -> None:
        super().__init__(daemon=True, name="roll call")
        self._pid = seat.pid
        self._rings = rings
        self._processes = processes
        self._until = time.monotonic() + seconds
        self.call: Call = {**seat.told, "pid": seat.pid, "t": round(time.time(), 3)}
        self.call.setdefault("alive", False)
        self.call.setdefault("note", "")

    def begin(self) -> None:
        try:
            self.start()
        except RuntimeError:  # the system has no thread left
            self.run()

    def run(self) -> None:
        pid = self._pid
        process = None if pid is None else read_process(pid)
        if pid is None or process is None or process.state in "ZX":
            return
        self.call["alive"] = True
        self.call["note"] = f"the kernel does not answer about process {pid}"
        before = facts.look(pid)
        self.call.update(facts.describe_main_thread(pid))
        children = facts.children_of(pid, self._processes)
        used = {child["pid"]: facts.cpu_of(child["pid"]) for child in children}
        self.call.update(way="proc", threads=[], refused=[], collectives=[], note="")
        if before is not None:
            pause = min(before.at + LOOK_SECONDS, self._until) - time.monotonic()
            time.sleep(max(0.0, pause))
            self._compare(pid, before)
        for child in children:
            child["cpu_s"] = round(max(0.0, facts.cpu_of(child["pid"]) - used[child["pid"]]), 2)
        self.call["children"] = children

    def _compare(self, pid: int, before: facts.Look) -> None:
        now = facts.look(pid)
        if now is None:
            return
        over = max(now.at - before.at, 1e-3)
        self.call.update(
            cpu_s=round(now.cpu - before.cpu, 2),
            main_cpu_s=round(now.main_cpu - before.main_cpu, 2),
            over_s=round(over, 3),
            major_faults_s=round((now.major_faults - before.major_faults) / over, 1),
        )
