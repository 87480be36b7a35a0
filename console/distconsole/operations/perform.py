"""From a request to the operation that does it, as the table of verbs names it.

An operation's module is imported when the verb is first done: all of them together take longer to load than
most verbs to do, and the screen would have to wait for them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from typing import Any

from distconsole.config.paths import runs_dir
from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.model.verbs import Verb, verb_of
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource


def perform(
    request: ask.Request, sessions: SessionSource, control: Control | None = None
) -> Generator[Event]:
    """Perform the request and yield its events, lazily, on the caller's thread.

    Args:
        sessions: Called only by verbs that need hosts.
        control: Stops a run from another thread or a signal handler; None without one.

    Yields:
        Events in the order of their discovery. A run's last one is ``RunEnded``, whose
        ``exit_code`` is the process's; closing the iterator earlier leaves the run going.

    Raises ConsoleError if it cannot be done at all.
    """
    from distconsole.runs.store.store import RunStore

    control = control or Control()
    verb = verb_of(request)
    given = {
        "sessions": sessions,
        "control": control,
        "store": RunStore(runs_dir()),
        "began": control.began,
    }
    try:
        yield from operation_of(verb)(request, **{name: given[name] for name in verb.needs})
    finally:
        control.close()


def operation_of(verb: Verb) -> Callable[..., Iterator[Event]]:
    module, _, name = verb.operation.rpartition(".")
    try:
        found: Any = getattr(import_module(f"distconsole.operations.{module}"), name)
    except RuntimeError as error:  # before Python 3.12 a class that is made wraps Ctrl-C
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise
    return found  # type: ignore[no-any-return]
