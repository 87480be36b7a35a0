"""Requests about the program itself: open it, try it out, ask for its help. They do nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from distconsole.model.requests.where import Where


@dataclass(frozen=True, slots=True)
class OpenConsole:
    """Open the full-screen console on the hosts given.

    Requests that open it on something have the same two.

    Attributes:
        theme: Its colours; None leaves them to the configuration, and to what was chosen before.
        startup: Whether the start-up file is done; None leaves it to the configuration.
    """

    where: Where = Where()
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Demo:
    """An embedded cluster on this machine: check, then train."""

    nodes: int = 2
    headless: bool = False
    json: bool = False
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Notify:
    """Say how one is told of what becomes of a run; with ``test`` tell so once."""

    test: bool = False


@dataclass(frozen=True, slots=True)
class Trust:
    """Trust the project's file that is read for ``folder``, as it is now; with ``revoke`` no longer."""

    folder: str = "."
    revoke: bool = False


@dataclass(frozen=True, slots=True)
class ShowHelp:
    """Print text that the grammar made (``--help``, ``--version``)."""

    text: str
    topic: str = field(default="")
