"""Program: resolves names. A resolver whose servers are dead waits for half a minute."""

from __future__ import annotations

from distconsole_agent.probes.standalone.reporting import (
    ProgramPart,
    begin,
    resolve,
    say,
    wait_and_leave,
)

THREADS = 16


def resolve_all(names: list[str]) -> None:
    while names:
        try:
            name = names.pop()
        except IndexError:
            return
        say(name, resolve(name))


def main(seconds: float, names: list[str]) -> None:
    ends = begin(seconds)
    waiting = names[::-1]
    count = min(THREADS, len(names))
    wait_and_leave([ProgramPart("", resolve_all, waiting) for _ in range(count)], ends)
