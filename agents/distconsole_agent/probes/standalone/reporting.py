"""Shared by the programs of this folder: an end in time, parts that may hang, a line for each finding.

Every check starts some of them on every host, so rarely needed modules are imported late.
The text of this module stands in place of its import (``scripts.script_source``).
"""

from __future__ import annotations

import _socket
import errno
import importlib
import json
import os
import re
import signal
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

FACTS = "facts"
LAST = "over\n"
"""Printed before the end, which a thread that hangs in the kernel may hold up."""

SPARE_SECONDS = 5.0
MAX_ADDRESSES = 16
PRINTING = threading.Lock()
OWN_PATH = list(sys.path)
"""Where Python's own modules are found before others."""


def begin(seconds: float) -> float:
    """Make this process end whatever becomes of the agent; return the monotonic time of its deadline."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + SPARE_SECONDS)
    sys.path[:] = globals().get("PATH", sys.path)
    return time.monotonic() + seconds


def import_own(name: str) -> Any:
    """Import a module of Python's own, with its imports, though the ranks' path may have others of these names."""
    path = sys.path[:]
    sys.path[:] = OWN_PATH
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = path


def import_metadata() -> Any:
    """Import ``importlib.metadata`` with the modules that it imports late."""
    for name in ("email.message", "email.parser"):
        import_own(name)
    return import_own("importlib.metadata")


def say(key: str, facts: object) -> None:
    line = json.dumps([key, facts])
    with PRINTING:
        os.write(1, ("\n" + line + "\n").encode())


def leave() -> None:
    """End at once, without waiting for hung parts or for exit handlers of libraries."""
    with PRINTING:
        os.write(1, LAST.encode())
        os._exit(0)


class ProgramPart(threading.Thread):
    """One question in a thread of its own, which may never come back from it."""

    def __init__(self, key: str, look: Callable[..., object], *args: Any) -> None:
        super().__init__(daemon=True)
        self.key = key
        self._look, self._asked = look, args
        self.start()

    def run(self) -> None:
        try:
            facts = self._look(*self._asked)
            if facts is not None:
                say(self.key, facts)
        except Exception as error:  # noqa: BLE001 - a surprise is an answer, too
            say(self.key, {"error": (type(error).__name__ + ": " + str(error))[:300]})

    def wait(self, until: float) -> bool:
        self.join(max(0.0, until - time.monotonic()))
        return not self.is_alive()

    def sleep(self) -> bytes:
        """Say which sleep its thread is in; empty while it is awake or only waits for a processor."""
        try:
            with open(f"/proc/self/task/{self.native_id}/status", "rb") as file:
                lines = file.read().splitlines()
        except OSError:  # not begun yet, or over just now
            return b""
        fields = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
        asleep = fields.get(b"State", b"")[:1] in (b"S", b"D")
        return fields.get(b"voluntary_ctxt_switches", b"") if asleep else b""


def wait_and_leave(parts: Iterable[ProgramPart], ends: float) -> None:
    for part in parts:
        part.wait(ends)
    leave()


def resolve(name: str) -> dict[str, object]:
    """The addresses that a program which connects to ``name`` would try."""
    try:
        # As bytes it needs no codec for names in other scripts.
        found = _socket.getaddrinfo(os.fsencode(name), None, 0, _socket.SOCK_STREAM)
    except OSError as error:
        return {"addresses": [], "error": error.strerror or str(error)}
    addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
    return {"addresses": addresses[:MAX_ADDRESSES], "error": ""}


def find_mapped(pattern: str) -> list[str]:
    """The files that this process has mapped and that a pattern is found in."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        found = {line.split(None, 5)[5].strip() for line in maps if re.search(pattern, line)}
    return sorted(found)[:16]


def why(error: OSError) -> dict[str, object]:
    code = errno.errorcode.get(error.errno or 0, "")
    return {"error": error.strerror or str(error), "code": code}
