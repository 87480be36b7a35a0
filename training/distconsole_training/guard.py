"""The one place that catches and counts our own failures in a rank.

Exceptions of the user's own code are never held back: see ``_belongs_to_the_script``.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

MAX_ERRORS = 100
"""After this many failures the hook stays silent: something is wrong and repeats."""


class Tally:
    """How often something of ours failed in this process.

    Attributes:
        spent: True once there were ``MAX_ERRORS``: nothing guarded runs any more.
        on_error: Called with the new count; the recorder puts it into the ring's header.
    """

    def __init__(self) -> None:
        self.errors = 0
        self.spent = False
        self.on_error: Callable[[int], None] | None = None

    def add(self) -> None:
        self.errors += 1
        self.spent = self.errors >= MAX_ERRORS
        if self.on_error is not None:
            self.on_error(self.errors)


tally = Tally()


def guarded(function: F) -> F:
    """Make ``function`` (of positional arguments) one that raises no error of its own.

    It returns None if it failed. KeyboardInterrupt and SystemExit pass, and so do exceptions of a
    signal handler of the script that ran meanwhile: those are the script's.
    """

    def guard(*arguments: Any) -> Any:
        if tally.spent:
            return None
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - the guard of this package
            count_failure(error)
            return None

    # ``functools`` would be the first import of a script that needs nothing else of ours.
    guard.__name__ = function.__name__
    guard.__doc__ = function.__doc__
    return guard  # type: ignore[return-value]


def count_failure(error: Exception) -> None:
    """Count ``error``, to be called while it is being handled; raise it if it is not ours."""
    if _belongs_to_the_script(error):
        raise error
    tally.add()


def _belongs_to_the_script(error: BaseException) -> bool:
    """Return True if a Python signal handler raised ``error`` while our code happened to run."""
    codes = _signal_handler_codes()
    trace: TracebackType | None = error.__traceback__
    while codes and trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _signal_handler_codes() -> set[Any]:
    import signal  # with enum, half the cost of our start; needed only here

    codes = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        function = getattr(handler, "__func__", handler)
        code = getattr(function, "__code__", None)
        if code is None and callable(handler):
            code = getattr(type(handler).__call__, "__code__", None)
        if code is not None:
            codes.add(code)
    return codes


def drop_this_frame() -> None:
    """Take the calling frame out of the traceback of the exception that it is handling.

    To be followed by a bare ``raise`` in the same ``except``: that adds no entry of its own, so
    the script's tracebacks read as if the wrapper were not there. Up to Python 3.10 the entry is
    kept on the interpreter's own stack, out of reach of Python code, and stays.
    """
    error = sys.exc_info()[1]
    if error is not None and error.__traceback__ is not None and sys.version_info >= (3, 11):
        error.__traceback__ = error.__traceback__.tb_next
