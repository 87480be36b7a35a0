"""``trace``: asks the ranks of a run for a trace by torch's profiler, and hands out their files."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import time
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from distconsole_agent.contract.protocol import Values
from distconsole_agent.contract.refusal import bad_request, storage
from distconsole_agent.contract.requests import AgentRequest
from distconsole_agent.journal.rings import OFFSET_WANTED, TOLD_SUFFIX, WANTED_SUFFIX, read_headers
from distconsole_agent.node_folder.folders import own_folder, write_private
from distconsole_agent.node_folder.run_files import read_own_spec
from distconsole_agent.system.procfs import lives
from distconsole_agent.system.room import disk_of

if TYPE_CHECKING:
    from distconsole_agent.server.connection import PendingRequest

MAX_TRACE_SECONDS = 60.0
MAX_WAIT_SECONDS = 600.0
"""Seconds for a rank's next step, and for its writing."""

MAX_TRACE_BYTES = 1 << 40
BOUNDS = (
    ("seconds", 0.001, MAX_TRACE_SECONDS),
    ("wait", 0.0, MAX_WAIT_SECONDS),
    ("max_bytes", 1.0, MAX_TRACE_BYTES),
    ("start_ns", 0.0, 2.0**63),
)

AHEAD_SECONDS = 0.3
"""Seconds from the request until ranks begin: all nodes have it by then."""

MAX_TOLD_BYTES = 4096
LOOK_SECONDS = 0.05
KEPT_SECONDS = MAX_TRACE_SECONDS + MAX_WAIT_SECONDS
PACKED_SUFFIX = ".gz"
NAME = re.compile(r"[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,3}\.json\.gz")
PIECE_BYTES = 1024 * 1024

LATE = "it has not ended a step in time"
GONE = "its process has ended"


class _Wanted(NamedTuple):
    """A requested trace of a rank: its process, the ring's count, its path, and why it failed."""

    rank: int
    pid: int
    counted: int
    ring: str
    path: str
    error: str = ""


def trace(request: AgentRequest, asker: PendingRequest, folder: str) -> Values:
    """Have the run's ranks here traced at once, and report each trace when it can be taken.

    A rank that was asked for and does not train here is left out. Raises Refusal: ``bad_request``, ``storage``.
    """
    seconds, wait, ranks = request.seconds, request.wait, request.ranks
    for name, least, greatest in BOUNDS:
        if not least <= getattr(request, name) <= greatest:
            raise bad_request(f"{name} is from {least:g} to {greatest:g}")
    most = int(request.max_bytes)
    spec = read_own_spec(folder)
    enclosed = folder if spec.enter else None
    unread: list[OSError] = []
    rings = _training_ranks(spec.rings or os.path.join(folder, "rings"), enclosed, unread)
    if unread and not rings:
        raise storage(f"no rank's ring can be read: {unread[0].strerror}")
    rings = {rank: ring for rank, ring in rings.items() if ranks is None or rank in ranks}
    place = os.path.join(folder, "traces")
    own_folder(place)
    for entry in os.scandir(place):  # what no console has fetched: it may have left
        with contextlib.suppress(OSError):
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > KEPT_SECONDS:
                os.unlink(entry.path)
    wanted, free = most * len(rings), disk_of(place).free
    if free < wanted:
        raise storage(
            f"{place} has {free >> 20} MiB free, and the traces may take {wanted >> 20} MiB",
            "fewer ranks (--ranks), or a lower --max-mib",
        )
    start_ns = int(request.start_ns) or time.time_ns() + int(AHEAD_SECONDS * 1e9)
    give_up_ns = start_ns + int((seconds + wait) * 1e9)
    asked: Values = {"start_ns": start_ns, "give_up_ns": give_up_ns, "seconds": seconds}
    waiting = {rank: _ask(rank, *ring, place, asked) for rank, ring in sorted(rings.items())}
    asker.send_item({"tracing": list(waiting)})
    # To the end even without a reader: files that ranks still write are removed.
    while waiting:
        for one, told in _ended(list(waiting.values()), time.time_ns() > give_up_ns):
            del waiting[one.rank]
            said = _pack(one, told, most)
            if not asker.cancelled.is_set():
                asker.send_item(said)
        time.sleep(LOOK_SECONDS)
    return {"time_ns": time.time_ns()}


def _training_ranks(
    folder: str, enclosed: str | None, unread: list[OSError]
) -> dict[int, tuple[str, int]]:
    """Return ring and process of each rank that has a living process which trains: the newest one."""
    found: dict[int, tuple[int, str, int]] = {}
    for path, header in read_headers(folder, enclosed, unread):
        known = found.get(header.rank, (0, "", 0))
        if header.rank >= 0 and not header.finished and lives(header.pid):
            found[header.rank] = max(known, (header.started_time_ns, path, header.pid))
    return {rank: (path, pid) for rank, (_, path, pid) in found.items()}


def _ask(rank: int, ring: str, pid: int, place: str, asked: Values) -> _Wanted:
    """Write the request, then increment the byte that the rank looks at after each step."""
    one = _Wanted(rank, pid, 0, ring, os.path.join(place, f"{rank}-{pid}-0.json"))
    try:
        descriptor = os.open(ring, os.O_RDWR | os.O_NOFOLLOW)
        try:
            count = (os.pread(descriptor, 1, OFFSET_WANTED)[0] + 1) % 256
            path = os.path.join(place, f"{rank}-{pid}-{count}.json")
            one = one._replace(counted=count, path=path)
            _remove(one)
            write_private(ring + WANTED_SUFFIX, {**asked, "path": path}, sync=False)
            os.pwrite(descriptor, bytes((count,)), OFFSET_WANTED)
        finally:
            os.close(descriptor)
    except (OSError, IndexError) as error:
        return one._replace(error=f"it cannot be asked: {error}")
    return one


def _ended(waiting: list[_Wanted], is_late: bool) -> Iterator[tuple[_Wanted, Values]]:
    """Yield the outcome of each rank that is done, or will send nothing."""
    for one in waiting:
        alive = lives(one.pid)
        told: Values | None = {"error": one.error} if one.error else _read_told(one)
        if told is not None:
            yield one, told
        elif not alive or is_late:
            yield one, {"error": GONE if not alive else LATE}


def _read_told(one: _Wanted) -> Values | None:
    try:
        with open(one.path + TOLD_SUFFIX, "rb") as file:
            told = json.loads(file.read(MAX_TOLD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and told.get("wanted") == one.counted else None


def _pack(one: _Wanted, told: Values, most: int) -> Values:
    """Compress a rank's trace (gzip, RFC 1952) and return its message; remove the rank's file."""
    said: Values = {"rank": one.rank, "told": told, "bytes": 0, "name": "", "packed": 0}
    try:
        said["bytes"] = size = os.stat(one.path, follow_symlinks=False).st_size
        if size > most:
            told["error"] = f"its trace has {size >> 20} MiB, more than --max-mib allows"
        if not told.get("error"):
            packed = one.path + PACKED_SUFFIX
            said.update(name=os.path.basename(packed), packed=_compress(one.path, packed))
    except FileNotFoundError:
        told["error"] = told.get("error") or "it has written no trace"
    finally:
        _remove(one)
    return said


def _compress(path: str, packed: str) -> int:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    target = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(source, "rb") as raw, open(target, "wb") as file:
        while data := raw.read(PIECE_BYTES):
            file.write(packer.compress(data))
        file.write(packer.flush())
        return file.tell()


def take(request: AgentRequest, folder: str) -> Values:
    """Return a piece of a packed trace from ``offset``; the last piece removes it. Raises Refusal: ``bad_request``."""
    name = request.name
    if not NAME.fullmatch(name):
        raise bad_request("name is that of a trace")
    path = os.path.join(folder, "traces", name)
    if not 0 <= request.offset <= MAX_TRACE_BYTES:
        raise bad_request(f"offset is from 0 to {MAX_TRACE_BYTES:g}")
    offset = int(request.offset)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            data = file.read(PIECE_BYTES)
    except FileNotFoundError:
        raise bad_request(f"there is no trace {name} any more") from None
    if offset + len(data) >= size:
        os.unlink(path)
    return {"data": base64.b64encode(data).decode("ascii")}


def _remove(one: _Wanted) -> None:
    for path in (one.ring + WANTED_SUFFIX, one.path, one.path + TOLD_SUFFIX):
        with contextlib.suppress(OSError):
            os.unlink(path)
