"""How findings name hosts, sizes, processes and long lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distconsole.checks.facts.node import Who
from distconsole.model.names import join_some
from distconsole.model.time_text import age_text

MAX_NAMED, MAX_LISTED = 6, 8
KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4


def name_hosts(hosts: Sequence[str]) -> str:
    """Return hosts as text, so many as can be read at a glance: ``a, b and 5 more``."""
    if len(hosts) <= MAX_NAMED:
        return ", ".join(hosts)
    return join_some(hosts, MAX_NAMED - 1)


def these_have(hosts: Sequence[str]) -> str:
    """Return hosts as ``name_hosts`` has them, with their verb: ``a has``, ``a, b have``."""
    return f"{name_hosts(hosts)} {'has' if len(hosts) == 1 else 'have'}"


def list_some(lines: Sequence[str]) -> str:
    """Return the first lines, and in another line how many more there are."""
    more = len(lines) - MAX_LISTED
    return "\n".join([*lines[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])])


def size(count: int) -> str:
    """Return bytes as text: ``64 MiB``, ``1.5 GiB``."""
    if count >= TIB:
        return f"{count / TIB:.1f} TiB"
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.0f} MiB" if count >= MIB else f"{count / KIB:.0f} KiB"


def who(process: Who) -> str:
    """Return a process as text: ``python3 (pid 4242, uid 1001, 3 h)``."""
    known = [] if process.pid is None else [f"pid {process.pid}"]
    known += [] if process.uid < 0 else [f"uid {process.uid}"]
    known += [] if process.age_seconds is None else [age_text(process.age_seconds)]
    return f"{process.name or 'a process'} ({', '.join(known)})"


def numbers(values: Iterable[int]) -> str:
    """Return numbers as text: ``0, 1, 5``."""
    return ", ".join(map(str, values))


def get_number(values: Mapping[str, str | None], name: str) -> int | None:
    """Return a number that a system gave as text; None where it gave none."""
    text = values.get(name) or ""
    return int(text) if text.isdigit() else None
