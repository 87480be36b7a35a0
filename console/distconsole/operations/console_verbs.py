"""Requests about the program itself."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.errors import UnavailableError
from distconsole.model.events import Event, TextMade
from distconsole.model.requests import OpenConsole, ShowHelp, Why


def show_help(request: ShowHelp) -> Iterator[Event]:
    """Yield the help's text."""
    yield TextMade(text=request.text)


def why(request: Why) -> Iterator[Event]:
    """Refuse: stacks are not read yet; raises UnavailableError always."""
    raise UnavailableError(
        "why comes with a later version", f"until then: distconsole logs {request.run}"
    )


def open_console(_request: OpenConsole) -> Iterator[Event]:
    """Refuse: the console is no operation; raises UnavailableError always."""
    raise UnavailableError(
        "a console inside an operation comes with a later version",
        "run distconsole without a verb",
    )
