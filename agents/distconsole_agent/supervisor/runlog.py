"""Writes ``shim.pid``, ``shim.jsonl`` and ``verdict.json``, and decides when the run is over; a full disk only delays it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from distconsole_agent.contract import records
from distconsole_agent.node_folder.folders import write_private
from distconsole_agent.system import steady
from distconsole_agent.system.kernel_files import end_of
from distconsole_agent.system.procfs import read_process
from distconsole_agent.system.room import keep_room

if TYPE_CHECKING:
    from distconsole_agent.coordination.blame import RunVerdict
    from distconsole_agent.supervisor.processes import RankProcess
    from distconsole_agent.system.loop import Loop

RETRY_SECONDS = 1.0

WRITTEN_SECONDS = 1.0
"""Seconds between checks whether a full disk has taken the log."""

MAX_WAITING_LINES = 10_000
KEPT_BYTES = 256 * 1024
"""Room for the lines of the shim that the disk keeps ahead."""

LOG_FILE = "shim.jsonl"
TAIL_BYTES = 256
ENDPOINT_FILE = "coordinator.json"


def claim(run_dir: str) -> int:
    """Write and lock ``shim.pid``; return its descriptor. Raises OSError if it is locked."""
    path = os.path.join(run_dir, "shim.pid")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    stat = read_process(os.getpid())
    assert stat is not None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()} {stat.starttime}\n".encode("ascii"))
    return fd


def keep_endpoint(run_dir: str, endpoint: tuple[str, int]) -> None:
    """Write the coordinator's address for the agent; a full disk leaves it out."""
    with contextlib.suppress(OSError):
        write_private(os.path.join(run_dir, ENDPOINT_FILE), list(endpoint), sync=False)


def is_over(run_dir: str) -> bool:
    """Return True if the shim has written its last line."""
    return '"event":"ended"' in end_of(os.path.join(run_dir, LOG_FILE), TAIL_BYTES)


class ShimEvent(NamedTuple):
    """A line of ``shim.jsonl``: ``t_ns`` is the wall clock's, ``boot_ns`` since the boot (the first version lacks it)."""

    event: str
    t_ns: int
    boot_ns: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    terminated: bool = False
    error: str | None = None
    traceback: str | None = None
    final: str = ""
    reason: str = ""
    state: str | None = None
    first_failure: object = None
    restart: int = 0
    of: int | None = None
    checkpoint: object = None
    pause: float | None = None
    check: str = ""
    severity: str = ""
    summary: str = ""
    hint: str = ""
    host: str | None = None
    seen: str | None = None
    more: Mapping[str, object] = MappingProxyType({})

    @property
    def moment_ns(self) -> int:
        """When it happened, by the clock that cannot be set."""
        return self.boot_ns or self.t_ns


class RunLog:
    """Appends events, each with one write and in order."""

    def __init__(self, loop: Loop, run_dir: str) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._waiting: list[bytes] = []
        self._fd = os.open(
            os.path.join(run_dir, LOG_FILE),
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW,
            0o600,
        )
        self._size = os.fstat(self._fd).st_size
        self._kept = 0
        self._keep_room()

    @property
    def written(self) -> bool:
        return not self._waiting

    def write(self, event: str, **fields: Any) -> None:
        """Append one event; ``t_ns`` is now unless given, in steady time, and written by the wall clock."""
        at_ns = fields.pop("t_ns", None) or steady.now_ns()
        times = {"t_ns": steady.to_wall(at_ns), "boot_ns": steady.to_boot(at_ns)}
        message = {**times, "event": event, **fields}
        self._waiting.append(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n")
        if len(self._waiting) == 1:
            self._drain()
        del self._waiting[MAX_WAITING_LINES:]

    def started(self, rank: RankProcess) -> None:
        self.write("started", t_ns=rank.started_ns, **_identify(rank))

    def exited(self, rank: RankProcess, *, terminated: bool) -> None:
        """``terminated``: the stop sent it a SIGTERM before it ended."""
        ended = rank.ended
        assert ended is not None
        how = {"exit_code": ended.exit_code, "signal": ended.signal, "terminated": terminated}
        self.write("exited", t_ns=ended.t_ns, **_identify(rank), **how)

    def write_verdict(self, verdict: RunVerdict) -> None:
        """Write ``verdict.json`` aside and rename it; then append the event."""
        with contextlib.suppress(OSError):
            write_private(os.path.join(self._run_dir, "verdict.json"), records.write(verdict))
        self.write("verdict", **records.write(verdict))

    def close(self) -> None:
        os.close(self._fd)

    def _drain(self) -> None:
        while self._waiting:
            try:
                taken = os.write(self._fd, self._waiting[0])
            except OSError:
                taken = 0
            self._size += taken
            if taken == len(self._waiting[0]):
                self._waiting.pop(0)
                self._keep_room()
                continue
            # A line that was cut by a full disk goes on at the cut.
            self._waiting[0] = self._waiting[0][taken:]
            self._loop.call_later(RETRY_SECONDS, self._drain)
            return

    def _keep_room(self) -> None:
        """Reserve room on the disk for the lines that end the run."""
        if self._size + KEPT_BYTES // 2 >= self._kept:
            self._kept = self._size + KEPT_BYTES
            keep_room(self._fd, self._kept)


class RunEnding:
    """One run's, whose log it closes; then it stops the loop.

    Args:
        on_over: Called once when the run is over here; the other nodes may still have to hear of it.

    Attributes:
        gone: Whether nothing of the attempt is left here.
        verdict: How the run ended, once that is known.
    """

    def __init__(self, loop: Loop, log: RunLog, on_over: Callable[[], None]) -> None:
        self._loop = loop
        self._log = log
        self._on_over = on_over
        self._is_over = self._finished = False
        self.gone = False
        self.verdict: RunVerdict | None = None

    def judged(self, verdict: RunVerdict) -> None:
        self.verdict = verdict
        self._log.write_verdict(verdict)
        self.check()

    def finish(self) -> None:
        """Take that every node has the verdict, or has had its time."""
        self._finished = True
        self.check()

    def check(self) -> None:
        """End the run if it is over; call it when ``gone`` has become true."""
        if self.verdict is None or not self.gone:
            return
        if not self._is_over:
            self._is_over = True
            self._on_over()
            self._log.write("ended")
        if self._finished:
            self._leave()

    def _leave(self) -> None:
        """Leave when the log is on the disk; a full one may become free again."""
        if self._log.written:
            self._loop.stop()
        else:
            self._loop.call_later(WRITTEN_SECONDS, self._leave)


def _identify(rank: RankProcess) -> dict[str, int]:
    return {"rank": rank.spec.rank, "local_rank": rank.spec.local_rank, "pid": rank.pid}
