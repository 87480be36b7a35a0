"""The short way through ``Steps`` for the ordinary step: the same steps for a fraction of the cost.

Fetch, backward, the one optimizer: a thread that has made such a step stays in the lane while the
next ones have the same form, and only their times are noted. The first event that is out of order
leaves the lane: what was noted of the step is told to ``Steps``, which knows all the other forms.
"""

from __future__ import annotations

import math

from distconsole_training.steps import Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from distconsole_training.loss import Seen
    from distconsole_training.steps import Emit

_NAN = math.nan
_NS = 1e-9

NOWHERE, OUTSIDE, BETWEEN, FETCHING, FETCHED, IN_BACKWARD, BACKWARD_DONE, STEPPING = range(-2, 6)
"""Where in a step the thread is; ``OUTSIDE`` the lane, ``Steps`` is told everything."""


class Lane:
    """Takes the same calls as ``Steps``, for one thread, and emits the same.

    ``torch_lane`` has the ordinary events written out, on these attributes:

    Attributes:
        place: One of the places above.
        fetches_from: The place at which the next fetch is in order; ``NOWHERE`` if none is.
        trains_from: The place at which the next backward is in order.
        source: The number of the iterator that is fetched from.
        fetch_began, fetched, backward_began, backward_ended, optimizer_began: Nanoseconds.
        samples: Of the batch; 0 where unknown, or while it is not known yet.
        loss: What backward was called on.
        optimizer: The one optimizer.
        emit: What takes the finished steps.
        nested: How many calls of its step are inside the outermost.
        previous_end: When the step before ended.
        steps: What is told of everything that is out of the ordinary.
    """

    __slots__ = (
        "_stepping_calls",
        "backward_began",
        "backward_ended",
        "emit",
        "fetch_began",
        "fetched",
        "fetches_from",
        "loss",
        "nested",
        "optimizer",
        "optimizer_began",
        "place",
        "previous_end",
        "samples",
        "source",
        "steps",
        "trains_from",
    )

    def __init__(self, emit: Emit, stepping_calls: Callable[[], int]) -> None:
        self.emit = emit
        self._stepping_calls = stepping_calls
        self.steps = Steps(emit, stepping_calls)
        self.place = OUTSIDE
        self.fetches_from = self.trains_from = NOWHERE
        self.optimizer = self.previous_end = self.nested = 0
        self.source = self.samples = self.fetch_began = self.fetched = 0
        self.backward_began = self.backward_ended = self.optimizer_began = 0
        self.loss: Seen = (None, None)

    def fetch_begins(self, source: int, now: int) -> None:
        """A batch was asked of the iterator with the number ``source``."""
        if self.place == self.fetches_from:
            self.place = FETCHING
            self.source = source
            self.fetch_began = now
            self.samples = 0
            return
        self.leave()
        self.steps.fetch_begins(source)

    def fetch_ended(self, source: int, began: int, now: int, samples: int) -> None:
        """The batch arrived; ``samples`` is 0 where unknown."""
        if self.place == FETCHING and source == self.source and began == self.fetch_began:
            self.place = FETCHED
            self.fetched = now
            self.samples = samples
            return
        self.leave()
        self.steps.fetch_ended(source, began, now, samples)

    def backward_begins(self, now: int, loss: Seen) -> None:
        """A backward begins."""
        if self.place == self.trains_from:
            self.place = IN_BACKWARD
            self.backward_began = now
            self.loss = loss
            return
        self.leave()
        self.steps.backward_begins(now, loss)

    def backward_ends(self, now: int, failed: bool = False) -> None:
        """The backward is over."""
        if self.place == IN_BACKWARD and not failed:
            self.place = BACKWARD_DONE
            self.backward_ended = now
            return
        self.leave()
        self.steps.backward_ends(now, failed=failed)

    def optimizer_begins(self, optimizer: int, now: int, evaluations: int = 0) -> None:
        """An optimizer begins to step."""
        if optimizer == self.optimizer:
            if self.place == BACKWARD_DONE:
                self.place = STEPPING
                self.optimizer_began = now
                return
            # Horovod's optimizer is of the class of the one that it wraps, and calls its step.
            if self.place == STEPPING and self._stepping_calls() == self.nested + 2:
                self.nested += 1
                return
        self.leave()
        self.steps.optimizer_begins(optimizer, now, evaluations)

    def optimizer_ends(
        self, optimizer: int, now: int, skipped: bool = False, evaluations: int = 0
    ) -> None:
        """The optimizer has stepped; ``skipped`` where it left the weights alone."""
        if self.place == STEPPING and optimizer == self.optimizer and not skipped:
            if self.nested:
                self.nested -= 1
            else:
                self.end_step(now)
            return
        self.leave()
        self.steps.optimizer_ends(optimizer, now, skipped, evaluations)
        self._enter()

    def optimizers_skipped(self, optimizers: list[int], now: int) -> None:
        """A GradScaler did not call these optimizers."""
        if self.place != BETWEEN:
            self.leave()
            self.steps.optimizers_skipped(optimizers, now)

    def finish(self) -> None:
        """Emit what is known to be a step, at the end of the process."""
        self.leave()
        self.steps.finish()

    @property
    def is_ahead(self) -> bool:
        """Whether work for a step that is not emitted yet was seen."""
        return self.place >= IN_BACKWARD or self.steps.is_ahead

    @property
    def in_backward(self) -> bool:
        """Whether a backward of this thread is going on."""
        return self.place == IN_BACKWARD or self.steps.in_backward > 0

    def end_step(self, now: int) -> None:
        """Emit the ordinary step whose optimizer has stepped."""
        began = self.previous_end
        self.previous_end = now
        self.place = BETWEEN
        backward_began = self.backward_began
        if self.trains_from == FETCHED:
            fetched = self.fetched
            data = (fetched - self.fetch_began) * _NS
            samples = self.samples
        else:
            fetched, data, samples = began, _NAN, 0
        self.emit(
            now,
            0,
            samples,
            (now - began) * _NS,
            data,
            (backward_began - fetched) * _NS,
            (self.backward_ended - backward_began) * _NS,
            (now - self.optimizer_began) * _NS,
            self.loss[0],
        )

    def leave(self) -> None:
        """Tell ``Steps`` what was noted of the step that is going on."""
        place, self.place = self.place, OUTSIDE
        if place == OUTSIDE:
            return
        steps = self.steps
        steps.resume(self.previous_end)
        if place >= FETCHING and self.trains_from == FETCHED:
            steps.fetch_begins(self.source)
            if place >= FETCHED:
                steps.fetch_ended(self.source, self.fetch_began, self.fetched, self.samples)
        if place >= IN_BACKWARD:
            steps.backward_begins(self.backward_began, self.loss)
        if place >= BACKWARD_DONE:
            steps.backward_ends(self.backward_ended)
        if place >= STEPPING:
            steps.optimizer_begins(self.optimizer, self.optimizer_began)
            steps.running += [self.optimizer] * self.nested
        self.nested = 0

    def _enter(self) -> None:
        """Take the lane if the step that was just emitted was an ordinary one."""
        ordinary = self.steps.ordinary_step()
        if ordinary is not None:
            self.optimizer, self.previous_end, without_loader = ordinary
            self.fetches_from = NOWHERE if without_loader else BETWEEN
            self.trains_from = BETWEEN if without_loader else FETCHED
            self.place = BETWEEN
