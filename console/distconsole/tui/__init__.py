"""The full-screen front end on Textual."""

import os
import sys

from distconsole.config.schema import Config
from distconsole.errors import UsageError
from distconsole.model.requests import Replay, Request
from distconsole.runs.following.freed_memory import return_freed_memory

WITHOUT = (
    "what works without: distconsole check, run SCRIPT, top --once, runs, attach RUN, logs RUN"
)
WITHOUT_REPLAY = "what works without: distconsole show {run}, logs {run}, report {run}"


def open_screen(request: Request, config: Config) -> int:
    """Open the screen and return the exit code; raises ConsoleError without a terminal, or if hosts cannot be read."""
    lacking = _lacking()
    if lacking:
        hint = WITHOUT
        if isinstance(request, Replay):
            hint = WITHOUT_REPLAY.format(run=request.run)
        raise UsageError(f"the console needs {lacking}", hint)
    return_freed_memory()  # before threads have arenas of their own, which they keep
    from distconsole.tui.app import ConsoleApp  # noqa: PLC0415 - Textual takes a third of a second

    return ConsoleApp.open(request, config)


def _lacking() -> str:
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        if not stream.isatty():
            return f"a terminal, and {name} is none"
    term = os.environ.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        named = f"TERM={term}" if term else "TERM is not set"
        return (
            f"a terminal that can place its cursor ({named}; TERM=xterm-256color says that it can)"
        )
    return ""
