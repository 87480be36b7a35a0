"""Program: asks the resolver and the filesystems, whose parts may hang: a dead NFS server blocks ``stat`` for ever."""

from __future__ import annotations

import _socket
import os
import time

from distconsole_agent.probes.standalone.reporting import (
    ProgramPart,
    begin,
    say,
    wait_and_leave,
    why,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOK_SECONDS = 0.25


def resolution(hostname: str) -> dict[str, Any]:
    """Resolve the host's own name and try to bind its addresses, as a rank's library would."""
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


def fqdn(hostname: str) -> dict[str, object]:
    """The name that torchrun's rendezvous sends to the other nodes, found as ``socket.getfqdn`` does."""
    name: Any = os.fsencode(hostname)
    try:
        first, aliases, _ = _socket.gethostbyaddr(name)
    except OSError:
        return {"name": hostname}
    return {"name": next((each for each in (first, *aliases) if "." in each), first)}


def folder(path: str) -> dict[str, object]:
    try:
        room, status = os.statvfs(path), os.stat(path)
    except OSError as error:
        return why(error)
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


def stuck(parts: list[ProgramPart], ends: float) -> list[ProgramPart]:
    """Return those that will not answer: asleep and never woken. One that is awake is waited for."""
    sleeps: dict[ProgramPart, bytes] = {}
    while parts and time.monotonic() < ends:
        before, sleeps = sleeps, {part: part.sleep() for part in parts}
        if all(sleep and before.get(part) == sleep for part, sleep in sleeps.items()):
            break
        due = time.monotonic() + LOOK_SECONDS
        parts = [part for part in parts if not part.wait(due)]
    return parts


def main(seconds: float, hostname: str, patience: float, folders: list[str]) -> None:
    """Look at everything at once; a folder may sleep for ``patience`` seconds, a resolver to the end."""
    began = time.monotonic()
    ends = begin(seconds)
    names = [ProgramPart("resolution", resolution, hostname), ProgramPart("fqdn", fqdn, hostname)]
    rooms = [ProgramPart("folder " + path, folder, path) for path in folders]
    late = stuck([part for part in rooms if not part.wait(began + patience)], ends)
    waited = time.monotonic() - began
    for part in late:
        say(part.key, {"error": f"did not answer in {waited:.1f} s"})
    wait_and_leave(names, ends)
