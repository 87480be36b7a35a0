"""Who a process is: its owner, its command, the processes above it, from /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distconsole_agent.system.users import user_name

MAX_COMMAND = 200
"""Characters of a command line that are kept."""

_COMMAND_BYTES = 4096
_MAX_ANCESTORS = 64
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""``PROC_PID_INIT_INO`` of Linux' ``include/linux/proc_ns.h``."""


@dataclass(frozen=True)
class ProcessFacts:
    """Owner and command of a process; None where this host's /proc does not show them."""

    user: str | None = None
    command: str | None = None


class ProcessTable:
    """Looks processes up by the pid that the driver gave.

    Inside a container some drivers give the pid of the host, which may be another process here.
    There a pid is believed only if that process has an NVIDIA device open.
    """

    def __init__(self, proc_root: Path = Path("/proc")) -> None:
        self._proc = proc_root
        self._users: dict[int, str] = {}
        self._sees_host: bool | None = None

    def is_same(self, pid: int) -> bool:
        """Say whether ``pid`` here is the process that the driver means."""
        if self.sees_host():
            return (self._proc / str(pid)).exists()
        return self._has_gpu_open(pid)

    def sees_host(self) -> bool:
        """Say whether pids here are those of the host, and so those of the driver."""
        if self._sees_host is None:
            self._sees_host = _target(self._proc / "self/ns/pid") == _INITIAL_PID_NAMESPACE
        return self._sees_host

    def facts(self, pid: int) -> ProcessFacts:
        """Return owner and command; control characters are left out, the length is bounded."""
        folder = self._proc / str(pid)
        try:
            owner = folder.stat().st_uid
            with (folder / "cmdline").open("rb") as file:
                words = file.read(_COMMAND_BYTES)
            if not words:
                words = (folder / "comm").read_bytes()
        except OSError:
            return ProcessFacts()
        return ProcessFacts(self._user(owner), printable(words))

    def lineage(self, pid: int) -> tuple[int, ...]:
        """Return ``pid`` and the processes above it, nearest first, without the first process."""
        found: list[int] = []
        above: int | None = pid
        while above is not None and above > 1 and above not in found:
            found.append(above)
            above = self._parent(above) if len(found) < _MAX_ANCESTORS else None
        return tuple(found)

    def _parent(self, pid: int) -> int | None:
        try:
            stat = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        # The name in parentheses may hold anything, also parentheses and spaces.
        fields = stat[stat.rfind(b")") + 1 :].split()
        return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None

    def _has_gpu_open(self, pid: int) -> bool:
        try:
            links = list((self._proc / str(pid) / "fd").iterdir())
        except OSError:
            return False
        return any(_target(link).startswith("/dev/nvidia") for link in links)

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            self._users[uid] = printable(user_name(uid).encode())
        return self._users[uid]


def printable(raw: bytes) -> str:
    """Return ``raw`` as one line of printable text of at most ``MAX_COMMAND`` characters."""
    text = raw.decode("utf-8", "replace").replace("\0", " ")
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(shown.split())[:MAX_COMMAND]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
