"""Script: asks the resolver and the filesystems, each in a thread, and leaves at its deadline.

``slow_calls.py HOSTNAME SECONDS PATIENCE FOLDER...`` prints one JSON pair ``[key, facts]`` a line
as each one answers, and a last line. A folder may sleep for PATIENCE, a name's resolver
for SECONDS. It runs in a process of its own because a dead NFS server blocks ``stat`` for ever.

Every check starts it on every host, so it leaves out what takes longer to import than its own work:
json, socket, threading and typing double its time.
"""

from __future__ import annotations

import _socket
import _thread
import errno
import os
import sys
import time

from distconsole_agent.probes.standalone.lean_json import as_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LAST = b"over\n"
"""Said before the end, which a thread that hangs in the kernel may hold up."""

LOOK_SECONDS = 0.25
PRINTING = _thread.allocate_lock()


def resolution(hostname: str) -> dict[str, Any]:
    """Resolve the host's own name and try to bind what comes back, as a rank's library would."""
    try:
        # As bytes it needs no codec for names in other scripts.
        found = _socket.getaddrinfo(os.fsencode(hostname), None, 0, _socket.SOCK_STREAM)
    except OSError as error:
        return {"addresses": [], "error": str(error)}
    addresses: list[dict[str, Any]] = []
    for family, _, _, _, where in found:
        entry = {"address": where[0], "bindable": True, "error": ""}
        try:
            listener = _socket.socket(family, _socket.SOCK_STREAM)
            try:
                listener.bind((where[0], 0, *where[2:]))
            finally:
                listener.close()
        except OSError as error:
            entry.update(bindable=False, error=error.strerror or str(error))
        if entry not in addresses:
            addresses.append(entry)
    return {"addresses": addresses[:32], "error": ""}


def fqdn(hostname: str) -> dict[str, Any]:
    """The name that torchrun's rendezvous tells the other nodes, found as ``socket.getfqdn`` does."""
    name: Any = os.fsencode(hostname)
    try:
        first, aliases, _ = _socket.gethostbyaddr(name)
    except OSError:
        return {"name": hostname}
    return {"name": next((each for each in (first, *aliases) if "." in each), first)}


def folder(path: str) -> dict[str, Any]:
    """Ask a filesystem for its room."""
    try:
        room, status = os.statvfs(path), os.stat(path)
    except OSError as error:
        return {
            "error": error.strerror or str(error),
            "code": errno.errorcode.get(error.errno or 0, ""),
        }
    return {
        "real": os.path.realpath(path),
        "inode": status.st_ino,
        "total": room.f_blocks * room.f_frsize,
        "free": room.f_bavail * room.f_frsize,
        "files": room.f_files,
        "files_free": room.f_favail,
        "read_only": bool(room.f_flag & os.ST_RDONLY),
        "noexec": bool(room.f_flag & os.ST_NOEXEC),
        "writable": os.access(path, os.W_OK),
        "error": "",
    }


class Call:
    """One question in a thread of its own, which may never come back from it."""

    def __init__(self, key: str, look: Callable[[str], object], what: str) -> None:
        self.key = key
        self._look, self._what = look, what
        self._thread = 0
        self._done = _thread.allocate_lock()
        self._done.acquire()
        _thread.start_new_thread(self._answer, ())

    def _answer(self) -> None:
        self._thread = _thread.get_native_id()
        tell(self.key, self._look(self._what))
        self._done.release()

    def wait(self, until: float) -> bool:
        """Whether it has answered by then."""
        answered = self._done.acquire(True, max(0.0, until - time.monotonic()))
        if answered:
            self._done.release()
        return answered

    def sleep(self) -> bytes:
        """Say which sleep its thread is in; empty while it is awake or only waits for a processor."""
        try:
            with open(f"/proc/self/task/{self._thread}/status", "rb") as file:
                lines = file.read().splitlines()
        except OSError:  # not begun yet, or over just now
            return b""
        fields = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
        asleep = fields.get(b"State", b"")[:1] in (b"S", b"D")
        return fields.get(b"voluntary_ctxt_switches", b"") if asleep else b""


def tell(key: str, facts: object) -> None:
    """Print what was found, in one write."""
    line = as_json([key, facts]) + "\n"
    with PRINTING:
        os.write(1, line.encode())


def stuck(calls: list[Call], ends: float) -> list[Call]:
    """Return those that will not answer: asleep and never woken. One that is awake is waited for."""
    sleeps: dict[Call, bytes] = {}
    while calls and time.monotonic() < ends:
        before, sleeps = sleeps, {call: call.sleep() for call in calls}
        if all(sleep and before.get(call) == sleep for call, sleep in sleeps.items()):
            break
        due = time.monotonic() + LOOK_SECONDS
        calls = [call for call in calls if not call.wait(due)]
    return calls


def main(hostname: str, seconds: float, patience: float, folders: list[str]) -> None:
    """Look at everything at once and leave without waiting for what hangs."""
    began = time.monotonic()
    names = [Call("resolution", resolution, hostname), Call("fqdn", fqdn, hostname)]
    rooms = [Call("folder " + path, folder, path) for path in folders]
    late = stuck([call for call in rooms if not call.wait(began + patience)], began + seconds)
    waited = time.monotonic() - began
    for call in late:
        tell(call.key, {"error": f"did not answer in {waited:.1f} s"})
    for call in names:
        call.wait(began + seconds)
    with PRINTING:
        os.write(1, LAST)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
