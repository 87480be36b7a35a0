"""The short way of the ordinary step, for less than half the cost of ``Steps`` (``benchmarks.hook_cost``).

Fetch, backward, the one optimizer: once the first thread has made such a step, only the times of
the next ones are noted. Any other event ends that, and so does a step measured for waits:
``leave`` replays the noted times into ``Steps``.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from distconsole_training.loss import NOT_LOOKED_AT
from distconsole_training.process import process
from distconsole_training.torch_hook.step_records import write_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from distconsole_training.loss import Value
    from distconsole_training.recorder import Recorder
    from distconsole_training.steps import Emit, Steps
    from distconsole_training.torch_hook.batches import Source

OUTSIDE, BETWEEN, FETCHING, FETCHED, IN_BACKWARD, BACKWARD_DONE, STEPPING = range(-1, 6)
"""Position of the thread in a step; ``OUTSIDE`` the fast path, ``Steps`` gets every event."""


class FastPath:
    """The step that is going on; times are nanoseconds.

    Attributes:
        steps: The thread's ``Steps``; it gets events only after ``leave``.
        place: One of the places above.
        source: The source of the batch, a full one.
        loss: The tensor of backward; None if unknown.
        optimizer: The ``id`` of the one optimizer.
        previous_end: When the step before ended.
        recorder: The ring for its record; None if ``emit`` takes it.
    """

    # Two cache lines, which are cold at each call.
    __slots__ = (
        *("place", "thread", "previous_end", "source", "fetch_began", "fetched", "loss"),
        *("backward_began", "backward_ended", "optimizer", "optimizer_began", "recorder"),
        *("steps", "emit"),
    )
    source: Source

    def __init__(self, steps: Steps, emit: Emit) -> None:
        self.steps, self.emit, self.thread = steps, emit, get_ident()
        self.place = OUTSIDE
        self.loss: Value = None
        self.recorder: Recorder | None = None
        self.optimizer = self.previous_end = self.optimizer_began = 0
        self.fetch_began = self.fetched = self.backward_began = self.backward_ended = 0

    @property
    def is_ahead(self) -> bool:
        return self.place >= IN_BACKWARD or self.steps.is_ahead

    def enter(self) -> None:
        """Take the fast path if the step that was just emitted was an ordinary one."""
        ordinary = self.steps.ordinary_step()
        if ordinary is not None:
            self.optimizer, self.previous_end = ordinary
            # Writing over the upper halves of the moments cuts them to the lower ones.
            writes = self.emit is write_step and sys.byteorder == "little"
            self.recorder = process.made if writes else None
            self.place = BETWEEN

    def leave(self) -> None:
        """Replay the noted times of the step that is going on into ``Steps``."""
        place, self.place = self.place, OUTSIDE
        if place == OUTSIDE:
            return
        steps = self.steps
        steps.resume(self.previous_end)
        if place >= FETCHING:
            steps.fetch_begins(self.source.number, self.fetch_began)
        if place == FETCHING:
            self.source.began = self.fetch_began
        if place >= FETCHED:
            source = self.source
            steps.fetch_ended(source.number, self.fetch_began, self.fetched, source.full)
        if place >= IN_BACKWARD:
            steps.backward_begins(self.backward_began, (self.loss, NOT_LOOKED_AT))
        if place >= BACKWARD_DONE:
            steps.backward_ends(self.backward_ended)
        if place >= STEPPING:
            steps.optimizer_begins(self.optimizer, self.optimizer_began)
