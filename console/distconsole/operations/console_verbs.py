"""Requests about the program itself, and ``trust``: whether a project's file may execute commands."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.config.load import project_file, trust_as_it_is
from distconsole.config.paths import PROJECT_FILE, expand_home
from distconsole.config.trust import command_for, distrust, was_trusted
from distconsole.errors import UnavailableError, UsageError
from distconsole.model.events import Event, TextMade
from distconsole.model.requests import OpenConsole, ShowHelp, Trust


def show_help(request: ShowHelp) -> Iterator[Event]:
    yield TextMade(text=request.text)


def open_console(_request: OpenConsole) -> Iterator[Event]:
    """Refuse: the console is no operation; raises UnavailableError always."""
    raise UnavailableError("the console opens from a shell", "there: distconsole, without a verb")


def trust(request: Trust) -> Iterator[Event]:
    """Trust a file as it is, or no longer.

    Raises UsageError if there is no such file; ConfigError if it cannot be read or understood, or
    what is trusted cannot be kept.
    """
    folder = expand_home(request.folder).resolve()
    own = folder / PROJECT_FILE
    if request.revoke:
        kept = own if was_trusted(own) else project_file(folder) or own
        was = distrust(kept)
        yield TextMade(text=f"{kept} {'is not trusted any more' if was else 'was not trusted'}")
        return
    path = project_file(folder) if folder.is_dir() else None
    if path is None:
        raise UsageError(
            f"there is no {PROJECT_FILE} to trust in {folder}, or above it",
            "where there is none, nothing need be trusted; another folder: distconsole trust FOLDER",
        )
    keys = trust_as_it_is(path)
    yield TextMade(text=f"trusted as it is now: {path}")
    yield TextMade(text=f"  can have something executed: {keys or 'nothing in it'}")
    yield TextMade(text=f"  to take it back: {command_for(path)} --revoke")
