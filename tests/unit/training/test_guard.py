"""What fails in our code stays there and is counted; what the script raises passes."""

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from distconsole_training import guard
from distconsole_training.guard import MAX_ERRORS, Tally, drop_this_frame, guarded


@pytest.fixture(autouse=True)
def tally(monkeypatch: pytest.MonkeyPatch) -> Tally:
    fresh = Tally()
    monkeypatch.setattr(guard, "tally", fresh)
    return fresh


def test_an_error_is_counted_and_told(tally: Tally) -> None:
    told: list[int] = []
    tally.on_error = told.append
    divide = guarded(lambda a, b: a / b)
    assert [divide(6, 3), divide(1, 0), divide(1, 0)] == [2, None, None]
    assert told == [1, 2]


@pytest.mark.parametrize("count", range(6))
def test_functions_of_any_number_of_arguments(count: int) -> None:
    names = ", ".join("abcdef"[:count])
    function: Callable[..., Any] = eval(f"lambda {names}: ({names})")  # noqa: S307
    assert guarded(function)(*range(count)) == function(*range(count))


def test_after_many_errors_nothing_runs_any_more(tally: Tally) -> None:
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        raise ValueError

    failing = guarded(fails)
    for _ in range(MAX_ERRORS * 2):
        failing()
    assert len(calls) == MAX_ERRORS
    assert tally.spent


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_passes(error: type[BaseException]) -> None:
    def ends() -> None:
        raise error

    with pytest.raises(error):
        guarded(ends)()


class OutOfTimeError(Exception):
    """What a script's own alarm raises."""


class Alarm:
    def __call__(self, number: int, frame: object) -> None:
        raise OutOfTimeError

    def ring(self, number: int, frame: object) -> None:
        raise OutOfTimeError


def plain_alarm(number: int, frame: object) -> None:
    raise OutOfTimeError


@pytest.fixture(params=[plain_alarm, Alarm(), Alarm().ring])
def _alarm(request: pytest.FixtureRequest) -> Iterator[None]:
    previous = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, previous)


@pytest.mark.usefixtures("_alarm")
def test_what_a_signal_handler_of_the_script_raises_passes(tally: Tally) -> None:
    with pytest.raises(OutOfTimeError):
        guarded(lambda: signal.raise_signal(signal.SIGUSR1))()
    assert tally.errors == 0


@pytest.mark.skipif(sys.version_info < (3, 11), reason="out of reach before Python 3.11")
def test_a_wrapper_leaves_no_frame() -> None:
    def wrapper() -> None:
        try:
            int("x")
        except BaseException:
            drop_this_frame()
            raise

    with pytest.raises(ValueError, match="invalid literal") as caught:
        wrapper()
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)] == [
        "test_a_wrapper_leaves_no_frame"
    ]
