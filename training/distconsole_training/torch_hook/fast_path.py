"""The short way of the ordinary step, for less than half of what ``Steps`` costs (``benchmarks.hook_cost``).

Fetch, backward, the one optimizer: once the first thread has made such a step, only the times of
the next ones are noted. Any other event ends that: ``leave`` tells ``Steps`` what was noted.
"""

from __future__ import annotations

from _thread import get_ident

from distconsole_training.loss import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from distconsole_training.steps import Emit, Steps

OUTSIDE, BETWEEN, FETCHING, FETCHED, IN_BACKWARD, BACKWARD_DONE, STEPPING = range(-1, 6)
"""Where in a step the thread is; ``OUTSIDE`` the fast path, ``Steps`` is told everything."""


class FastPath:
    """What is noted of the step that is going on; times are nanoseconds.

    Attributes:
        steps: The thread's ``Steps``; only to be told of events after ``leave``.
        place: One of the places above.
        source: The number of the iterator that is fetched from.
        samples: Of the batch; 0 where unknown.
        loss: What backward was called on.
        optimizer: The ``id`` of the one optimizer.
        previous_end: When the step before ended.
    """

    def __init__(self, steps: Steps, emit: Emit) -> None:
        self.steps, self.emit, self.thread = steps, emit, get_ident()
        self.place, self.loss = OUTSIDE, UNKNOWN
        self.optimizer = self.previous_end = self.optimizer_began = 0
        self.source = self.samples = self.fetch_began = self.fetched = 0
        self.backward_began = self.backward_ended = 0

    @property
    def is_ahead(self) -> bool:
        return self.place >= IN_BACKWARD or self.steps.is_ahead

    def enter(self) -> None:
        """Take the fast path if the step that was just emitted was an ordinary one."""
        ordinary = self.steps.ordinary_step()
        if ordinary is not None:
            self.optimizer, self.previous_end = ordinary
            self.place = BETWEEN

    def leave(self) -> None:
        """Tell ``Steps`` what was noted of the step that is going on."""
        place, self.place = self.place, OUTSIDE
        if place == OUTSIDE:
            return
        steps = self.steps
        steps.resume(self.previous_end)
        if place >= FETCHING:
            steps.fetch_begins(self.source)
        if place >= FETCHED:
            steps.fetch_ended(self.source, self.fetch_began, self.fetched, self.samples)
        if place >= IN_BACKWARD:
            steps.backward_begins(self.backward_began, self.loss)
        if place >= BACKWARD_DONE:
            steps.backward_ends(self.backward_ended)
        if place >= STEPPING:
            steps.optimizer_begins(self.optimizer, self.optimizer_began)
