"""The roll call: asks every rank of a run on this node at once, each with a deadline of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from distconsole_agent.contract.protocol import MAX_CALL_BYTES, MAX_LINE_BYTES
from distconsole_agent.roll_call import facts, ways
from distconsole_agent.roll_call.facts import MAX_WORDS
from distconsole_agent.roll_call.stacks import Thread, ends_early
from distconsole_agent.supervisor.proctree import read_environ
from distconsole_agent.system.kernel_files import end_of
from distconsole_agent.system.procfs import Process, all_processes, descendants_of, lives

MAX_CALLS_BYTES = MAX_LINE_BYTES // 4 * 3
"""All calls of a node are one answer."""

LOOK_SECONDS = 0.25
"""Seconds between the two looks at a process's use of resources."""

LATE_SECONDS = 0.5
"""So much later than its deadline a rank is given up: the kernel itself does not answer about it."""

SERVER_SECONDS = 0.5
"""Kept for torch's worker server, which does not answer while Python's lock is held."""

RECORDERS = (
    "fr_trace_json",
    "dump_nccl_trace_json",
    "dump_nccl_trace_pickle?includestacktraces=false",
)
"""The handlers that dump the flight recorder, newest first."""

HEALTH, NCCL2 = "c10d_health_check", "fr_trace_json?backend=nccl2"
"""Since torch 2.15: the backends that met a timeout or an error, and the recorder of that version's default "nccl"."""

CUT = "outer calls of the stack are not known: Python 3.14 reads no further than the first call from C code"

LOADER, AT_EXIT = "torch/utils/data/dataloader.py", ("_exit_function", "_python_exit")
"""A main thread that is in one of these may wait for processes that it has started."""
MAX_WORKERS, WORKER_FRAMES = 16, 16
WORKER_SECONDS = 0.5
"""At most for each way to read a worker: one that cannot be read leaves time for the others."""

MAX_BELOW = 32
"""Processes below a rank's first one that are looked at for the one that trains."""

STALL_LOG_BYTES = 64 * 1024
MAX_STALLED = 16

_STALLS = "Missing ranks:"
_STALL = re.compile(r"^(\d{1,9})!?: \[(.*?)\]?$")

Call = dict[str, Any]


class Seat(NamedTuple):
    """Facts of a rank before the call.

    ``told`` are fields of its CALL, ``log`` is the path of its output, and ``server`` the socket of a worker
    server that its own environment names.
    """

    pid: int | None
    told: Call
    log: str
    server: str = ""


SPAN_RANKS = 64
"""From this many consecutive ranks on, a group is sent as its first and last rank; a smaller one as a list."""


def call_ranks(
    seats: Sequence[Seat], rings: str, seconds: float, *, outside: bool = False
) -> list[Call]:
    """Return one CALL (``protocol``) for each seat, in their order.

    Args:
        rings: The folder of the ranks' sockets.
        seconds: Each rank's deadline; all together take hardly longer.
        outside: Only the ways that read a rank's memory, never one that runs in it.
    """
    processes = all_processes()
    askers = [_Asker(seat, rings, processes, seconds, outside) for seat in seats]
    for asker in askers:
        asker.begin()
    until = time.monotonic() + seconds + LATE_SECONDS
    for asker in askers:
        with contextlib.suppress(RuntimeError):
            asker.join(max(0.0, until - time.monotonic()))
    most = min(MAX_CALL_BYTES, MAX_CALLS_BYTES // max(1, len(askers)))
    return [bounded(with_spans(dict(asker.call)), most) for asker in askers]


def with_spans(call: Call) -> Call:
    """Return ``call`` with ``span`` in place of ``ranks`` that follow one another: of 8,192 each would name all."""
    for group in call.get("collectives") or []:
        ranks = group.get("ranks") or []
        if len(ranks) >= SPAN_RANKS and ranks == list(range(ranks[0], ranks[0] + len(ranks))):
            group.update(ranks=[], span=[ranks[0], ranks[-1]])
    return call


def bounded(call: Call, most: int = MAX_CALL_BYTES) -> Call:
    """Return ``call`` without its last frames, threads and collectives, in at most ``most`` bytes."""
    while len(json.dumps(call)) > most:
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
    """Asks one rank; ``call`` holds the facts so far."""

    def __init__(
        self, seat: Seat, rings: str, processes: dict[int, Process], seconds: float, outside: bool
    ) -> None:
        super().__init__(daemon=True, name="roll call")
        self._outside = outside
        self._seat = seat
        self._rings = rings
        self._processes = processes
        self._until = time.monotonic() + seconds
        self.call: Call = {
            **seat.told,
            "pid": seat.pid,
            "t": round(time.time(), 3),
            "alive": False,
        }

    def begin(self) -> None:
        try:
            self.start()
        except RuntimeError:  # the system has no thread left
            self.run()

    def run(self) -> None:
        if self._seat.pid is None or not lives(self._seat.pid):
            return
        pid = self._who_answers(self._seat.pid)
        told = f"the kernel did not answer in time about process {pid}"
        self.call.update(pid=pid, alive=True, way="proc", threads=[], refused=[], note=told)
        before = facts.look(pid)
        children = facts.children_of(pid, self._processes)
        used = {child["pid"]: facts.cpu_of(child["pid"]) for child in children}
        status = facts.read_status(pid)
        self.call.update(facts.describe_main_thread(pid, status))
        self.call["note"] = ""
        if before is not None:
            # Before any rank is read, as the programs that read them want the processors, too.
            pause = min(before.at + LOOK_SECONDS, (before.at + self._until) / 2)
            time.sleep(max(0.0, pause - time.monotonic()))
            self._compare(pid, before)
        for child in children:
            child["cpu_s"] = round(max(0.0, facts.cpu_of(child["pid"]) - used[child["pid"]]), 2)
        self._ask(pid)
        self._ask_workers(children)
        self.call["horovod"] = read_stalls(self._seat.log, self.call.get("silent_s") or 0.0)
        self.call["children"] = children
        self.call["alive"] = lives(pid)

    def _who_answers(self, pid: int) -> int:
        """Return ``pid``, or the first process of Python below it if that is a wrapper (bash, uv)."""
        below = sorted(descendants_of(pid, self._processes) - {pid})[:MAX_BELOW]
        for each in (pid, *below):
            if ways.runs_python(each) or ways.find_server(self._rings, each):
                return each
        return pid

    def _ask(self, pid: int) -> None:
        """Put stacks and collectives into the call.

        Its memory is read if allowed, which nothing in the process notices. torch's worker server runs
        Python in it, and that ends a process whose Python is ending: only the hook's is asked, which is gone by then.
        """
        state = self.call["state"]
        server = None if self._outside else ways.find_server(self._rings, pid)
        kept = 0.0 if server is None else SERVER_SECONDS
        for way, ask in ways.from_outside(pid, state, lambda: self._left() - kept):
            if self._try(way, ask):
                break
        is_cut = self.call["way"] == "python" and ends_early(self.call["threads"])
        if is_cut or self.call["way"] == "proc":
            soon = min(self._left(), SERVER_SECONDS)
            if not self._outside and self._try(
                "server", lambda: ways.stacks_by_server(server, state, soon)
            ):
                self.call["refused"] = []
            elif is_cut:
                self._note(CUT)
        if self.call["way"] == "proc" and facts.keeps_its_call(pid):
            why = f"what it waits for in the kernel is not told: {ways.lacking(pid)}"
            self.call["refused"].append({"way": "proc", "why": why[:MAX_WORDS]})
        server = None if self._outside else server or self._seat.server or None
        if server is not None and state not in ("T", "t"):
            self._read_recorder(pid, server)

    def _try(self, way: str, ask: Callable[[], list[Thread] | None]) -> bool:
        try:
            threads = ask()
        except ways.WayRefusedError as refused:
            self.call["refused"].append({"way": way, "why": str(refused)[:MAX_WORDS]})
            return False
        if threads is None:
            return False
        self.call.update(way=way, threads=threads)
        return True

    def _read_recorder(self, pid: int, server: str) -> None:
        from distconsole_agent.roll_call import recorder  # it loads pickle

        def read(*handlers: str) -> None:
            dump = recorder.read_dump(ways.ask_server_for_any(server, handlers, self._left()))
            found = [*self.call["collectives"], *recorder.last_collectives(dump, time.time())]
            self.call["collectives"] = sorted(found, key=lambda each: -each["created_ns"])
            if recorder.is_off(dump):
                self._note(recorder_is_off(read_environ(pid)))

        self.call["collectives"] = []
        try:
            read(*RECORDERS)
            with contextlib.suppress(ways.UnknownHandlerError):  # before torch 2.15
                failed = recorder.read_health(ways.ask_server(server, HEALTH, self._left()))
                if failed:
                    self._note(f"torch: backend {', '.join(failed)} met a timeout or an error")
                read(NCCL2)
        except (ways.WayRefusedError, ValueError) as error:
            self._note(str(error))

    def _note(self, text: str) -> None:
        self.call["note"] = "; ".join(filter(None, (self.call["note"], text)))[:MAX_WORDS]

    def _ask_workers(self, children: list[Call]) -> None:
        """Ask the processes that the main thread waits for: a DataLoader's workers, or all at its end."""
        threads = self.call["threads"]
        frames = threads[0]["frames"] if threads else []
        if not any(LOADER in each["file"] or each["function"] in AT_EXIT for each in frames):
            return
        for child in children[:MAX_WORKERS]:
            if time.monotonic() >= self._until:
                break  # the rank's own facts must not come too late
            pid, state = child["pid"], child["state"]
            for _, ask in ways.from_outside(pid, state, lambda: min(self._left(), WORKER_SECONDS)):
                with contextlib.suppress(ways.WayRefusedError):
                    found = ask() or []
                    child["frames"] = found[0]["frames"][:WORKER_FRAMES] if found else []
                    break

    def _left(self) -> float:
        return max(0.05, self._until - time.monotonic())

    def _compare(self, pid: int, before: facts.ProcessLook) -> None:
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


def recorder_is_off(environment: dict[bytes, bytes]) -> str:
    """Return how to switch torch's flight recorder on, as the environment of a rank has it off."""
    for name in (b"TORCH_FR_BUFFER_SIZE", b"TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if name in environment:
            value = environment[name][:20].decode("ascii", "replace")
            return f"torch's flight recorder is off ({name.decode()}={value})"
    return "torch's flight recorder is off; --env TORCH_NCCL_TRACE_BUFFER_SIZE=2000 turns it on before torch 2.9"


def read_stalls(log: str, silent_s: float) -> dict[str, Any] | None:
    """Return the last complaint of Horovod's stall inspector in ``log``; None without one, or after a step since."""
    try:
        if time.time() - os.stat(log).st_mtime > silent_s:
            return None
    except OSError:
        return None
    return parse_stalls(end_of(log, STALL_LOG_BYTES))


def parse_stalls(text: str) -> dict[str, Any] | None:
    """Return ``stalled`` (tensors) and ``missing`` (tensor -> the ranks that have not submitted it)."""
    _, begins, block = text.rpartition(_STALLS)
    missing: dict[str, list[int]] = {}
    for line in block.strip("\n").splitlines():
        found = _STALL.match(line.strip())
        if found is None:
            break
        for name in found.group(2).removesuffix(" ...").split(", ")[:MAX_STALLED]:
            if name and (name in missing or len(missing) < MAX_STALLED):
                missing.setdefault(name[:512], []).append(int(found.group(1)))
    return {"stalled": list(missing), "missing": missing} if begins and missing else None
