"""Script: resolves names, each in a thread, prints each as it comes, and leaves at its deadline.

``inspect_names.py SECONDS NAME...`` prints one JSON pair ``[name, facts]`` a line. It runs in a
process of its own because a resolver whose servers are dead waits for half a minute.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
from typing import Any

THREADS = 16
MAX_ADDRESSES = 16
PRINTING = threading.Lock()


def resolve(name: str) -> dict[str, Any]:
    """The addresses that a program which connects to ``name`` would try."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return {"addresses": [], "error": getattr(error, "strerror", None) or str(error)}
    addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
    return {"addresses": addresses[:MAX_ADDRESSES], "error": ""}


def resolve_all(names: queue.SimpleQueue[str]) -> None:
    """Take names until there is none left."""
    while True:
        try:
            name = names.get_nowait()
        except queue.Empty:
            return
        line = json.dumps([name, resolve(name)])
        with PRINTING:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def main(seconds: float, names: list[str]) -> None:
    """Resolve all at once and leave without waiting for what hangs."""
    ends = time.monotonic() + seconds
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    threads = [
        threading.Thread(target=resolve_all, args=(waiting,), daemon=True)
        for _ in range(min(THREADS, len(names)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    with PRINTING:
        os._exit(0)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
