"""Script: asks the resolver and the filesystems, each in a thread, and leaves at its deadline.

``slow_calls.py HOSTNAME SECONDS FOLDER...`` prints one JSON pair ``[key, facts]`` a line as each
one answers. It runs in a process of its own because a dead NFS server blocks ``stat`` for ever.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from typing import Any, Callable

PRINTING = threading.Lock()


def resolution(hostname: str) -> dict[str, Any]:
    """Resolve the host's own name and try to bind what comes back, as a rank's library would."""
    try:
        found = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"addresses": [], "error": str(error)}
    addresses = []
    for family, _, _, _, where in found:
        entry = {"address": where[0], "bindable": True, "error": ""}
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.bind((where[0], 0, *where[2:]))
        except OSError as error:
            entry.update(bindable=False, error=error.strerror or str(error))
        if entry not in addresses:
            addresses.append(entry)
    return {"addresses": addresses[:32], "error": ""}


def fqdn(hostname: str) -> dict[str, Any]:
    """The name that torchrun's rendezvous tells the other nodes."""
    return {"name": socket.getfqdn(hostname)}


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


def answer(key: str, look: Callable[[str], dict[str, Any]], what: str) -> None:
    """Print what ``look(what)`` finds, in one write."""
    line = json.dumps([key, look(what)])
    with PRINTING:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def main(hostname: str, seconds: float, folders: list[str]) -> None:
    """Look at everything at once and leave without waiting for what hangs."""
    ends = time.monotonic() + seconds
    jobs: list[tuple[str, Callable[[str], dict[str, Any]], str]] = [
        ("resolution", resolution, hostname)
    ]
    jobs += [("fqdn", fqdn, hostname)]
    jobs += [("folder " + path, folder, path) for path in folders]
    threads = [threading.Thread(target=answer, args=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    with PRINTING:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
