"""When the training thread waited for other ranks, in nanoseconds: separates its work from its waiting.

Timed are the blocking calls that Python sees (``Work.wait``, Horovod's wait for a handle,
DDP's broadcast of buffers), and the end of a backward, in which DDP waits for its last gradients.
Of steps that follow each other fast, only some are measured, which bounds the cost.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from bisect import bisect_right
from time import monotonic_ns, thread_time_ns

from distconsole_training import records
from distconsole_training.guard import drop_this_frame, guarded
from distconsole_training.process import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST = 8192
"""Waits that are kept until a step ends; of a script that makes no steps the older ones are dropped."""

PERIOD_NS = 50_000_000
"""A step is measured if the last measured one began this long ago: all of them if they are longer."""
MAX_PERIOD_NS = 64 * PERIOD_NS
REST = 400
"""A rank looks half as often where looking took more than the 400th part of the time since the look before."""
RARE_NS = 8 * PERIOD_NS
"""From such a period on the rank reports that it measures less often: one bad moment is not reported."""
LATE_NS = 1_000_000
"""A step counts as measured if the measuring began at most this much later than the step."""

_NS = 1e-9
_ABSENT = object()


class Waits:
    """The waits of the thread that imported torch, since its last step.

    Attributes:
        looks: Whether waits are noted: there are others to wait for, and the step is looked at.
        due: When it is time to look again.
        spent: Nanoseconds of a processor that looking has taken since the last time.
        period: Nanoseconds from one look to the next.
        own_done: When the last gradient of the backward that goes on was computed; 0 until then.
    """

    def __init__(self) -> None:
        self.thread = get_ident()
        self.looks = False
        self.due = self.spent = 0
        self.period = PERIOD_NS
        self.own_done = 0
        self._grouped = False
        self._since = 0
        self._ends: list[int] = []
        self._sums: list[int] = []  # of all waits up to each of these
        self._before = 0

    def begin(self) -> None:
        """Take that there are others to wait for."""
        self.looks = self._grouped = True

    def begin_again(self) -> None:
        """Forget all that was noted, as in a forked child."""
        grouped = self._grouped
        self.__init__()  # type: ignore[misc]
        self.looks = self._grouped = grouped

    def add(self, began: int, ended: int) -> None:
        """Take a wait that is over; those within it are a part of it."""
        ends, sums = self._ends, self._sums
        while ends and ends[-1] > began:
            ends.pop()
            sums.pop()
        sums.append((sums[-1] if sums else self._before) + ended - began)
        ends.append(ended)
        if len(ends) > MOST:
            self._forget(ends[MOST // 2])

    def between(self, began: int, ended: int) -> int:
        """Return how much of the time between two moments was waited."""
        if not self._ends:
            return 0
        return self._until(ended) - self._until(began)

    def covers(self, began: int) -> bool:
        """Whether all waits since ``began`` were noted."""
        return self.looks and began + LATE_NS >= self._since

    def step_ended(self, ended: int) -> None:
        """Drop the waits until then, and decide if the next step is measured."""
        if self._ends:
            self._forget(ended)
        self.looks = False
        if ended >= self.due:
            before, self._since = self._since, monotonic_ns()
            self.looks = self._grouped
            too_much = self.spent * REST > self._since - before
            period = 2 * self.period if too_much else self.period // 2
            self.period, self.spent = min(max(period, PERIOD_NS), MAX_PERIOD_NS), 0
            self.due = self._since + self.period

    def _forget(self, until: int) -> None:
        index = bisect_right(self._ends, until)
        if index:
            self._before = self._sums[index - 1]
            del self._ends[:index], self._sums[:index]

    def own_is_done(self) -> None:
        """Take that the engine has computed all gradients; callbacks queued for the end follow."""
        self.own_done = monotonic_ns()

    def backward_ended(self, now: int) -> None:
        """Take that a backward, the outermost, has come back: since its last gradient it waited."""
        began, self.own_done = self.own_done, 0
        if began:
            self.add(began, now)

    def _until(self, t: int) -> int:
        index = bisect_right(self._ends, t)
        return self._sums[index - 1] if index else self._before


def meter(function: Callable[..., Any], waits: Waits) -> Callable[..., Any]:
    """Return ``function``, guarded; its time during a measured step counts as the cost of measuring."""
    run = guarded(function)

    def call(*arguments: Any) -> Any:
        if not waits.looks:
            return run(*arguments)
        began = thread_time_ns()
        result = run(*arguments)
        waits.spent += thread_time_ns() - began
        return result

    return call


def write_waits(
    waits: Waits,
    ended_ns: int,
    waited: int,
    data: int,
    forward: int,
    backward: int,
    optimizer: int,
) -> None:
    """Store how long the step that is about to be written, and each of its parts, was a wait."""
    recorder = process.made
    if recorder is None:
        return
    parts = waited * _NS, data * _NS, forward * _NS, backward * _NS, optimizer * _NS
    every_ms = waits.period // 1_000_000 if waits.period >= RARE_NS else 0
    recorder.write(records.WAIT, process.last_step + 1, ended_ns, 0, 0, every_ms, *parts)


def timed(
    original: Any, waits: Waits, is_compiling: Callable[[], bool] = bool
) -> Callable[..., Any]:
    """Return ``original``, a function that blocks until other ranks have done something, timed.

    torch.compile traces ``original`` in its place: ``is_compiling`` is a constant there.
    """

    # Of this name and with a first parameter: pybind11 takes it for no override when it calls back.
    @functools.wraps(original)
    def wait(self: Any = _ABSENT, /, *args: Any, **kwargs: Any) -> Any:
        if self is not _ABSENT:
            args = (self, *args)
        if is_compiling():
            return original(*args, **kwargs)
        began = monotonic_ns() if waits.looks else 0
        try:
            return original(*args, **kwargs)
        except BaseException:
            drop_this_frame()
            raise
        finally:
            if began and get_ident() == waits.thread:
                ended = monotonic_ns()
                waits.add(began, ended)
                waits.spent += monotonic_ns() - ended

    return wait
