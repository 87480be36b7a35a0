"""The short way of the ordinary step, for less than half the cost of ``Steps`` (``benchmarks.hook_cost``).

Fetch, backward, the one optimizer: once the first thread has made such a step, only the times of
the next ones are noted. Any other event ends that, and so does a step measured for waits:
``leave`` replays the noted times into ``Steps``. Of steps that follow each other fast, most are
quiet: only when they end is noted, the parts and the loss are those of a step now and then.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from itertools import count

from distconsole_training.loss import NOT_LOOKED_AT
from distconsole_training.process import process
from distconsole_training.records import CLOSED, ENDS, OFFSET_WRITTEN, RECORD, RECORDS_OFFSET, STEP
from distconsole_training.torch_hook.step_records import write_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from distconsole_training.loss import Value
    from distconsole_training.recorder import Recorder
    from distconsole_training.steps import Emit, Steps
    from distconsole_training.torch_hook.batches import Source

OUTSIDE, BETWEEN, FETCHING, FETCHED, IN_BACKWARD, BACKWARD_DONE, STEPPING = range(-1, 6)
"""Position of the thread in a step; ``OUTSIDE`` the fast path, ``Steps`` gets every event."""


NEAR_NS = 10_000_000
"""Steps are measured in full about this far apart; all of them if they are longer."""
MAX_MASK = 63
OPEN_NS = 1_000_000_000
"""A record of ends takes steps for so long; a reader waits longer than that for one that is not whole."""
RESTING_STEPS = 1024
"""Steps that are all measured at first, and after one that was quiet and turned out not to be ordinary."""
ENDS_EACH = 8
_WORDS, _FIRST, _WRITTEN = RECORD.size // 8, RECORDS_OFFSET // 8, OFFSET_WRITTEN // 8
_SHORTS, _NS = RECORD.size // 4, 1e-9


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
        quiet: True if only the end of this step is noted.
        run: Quiet steps to come that have no place in a record yet.
        left: Full batches that come after this one in the pass.
        mask: Steps with a number that has none of these bits are measured, so that all ranks measure the same ones.
        shorts, at, end: Where the next end goes in ``Recorder.shorts``, if that is before ``end``; else it begins a record.
        base: The number of the last step, less ``at``.
        until: When the record takes no more ends.
    """

    # Three cache lines, which are cold at each call.
    __slots__ = (
        *("place", "thread", "previous_end", "source", "fetch_began", "fetched", "loss"),
        *("backward_began", "backward_ended", "optimizer", "optimizer_began", "recorder"),
        *("steps", "emit", "quiet", "run", "at", "end", "until", "shorts"),
        *("base", "left", "mask", "was_long", "resting_until"),
    )
    source: Source
    shorts: memoryview

    def __init__(self, steps: Steps, emit: Emit) -> None:
        self.steps, self.emit, self.thread = steps, emit, get_ident()
        self.place = OUTSIDE
        self.loss: Value = None
        self.recorder: Recorder | None = None
        self.optimizer = self.previous_end = self.optimizer_began = 0
        self.fetch_began = self.fetched = self.backward_began = self.backward_ended = 0
        self.run = self.left = self.mask = self.at = self.end = self.until = 0
        self.base = -1
        self.resting_until = RESTING_STEPS
        self.quiet = self.was_long = False

    @property
    def last_step(self) -> int:
        """The number of the last step; ``process`` gets that of a quiet one later."""
        return max(process.last_step, self.base + self.at)

    @property
    def is_ahead(self) -> bool:
        return self.place >= IN_BACKWARD or self.steps.is_ahead

    def enter(self) -> None:
        """Take the fast path if the step that was just emitted was an ordinary one."""
        ordinary = self.steps.ordinary_step()
        if ordinary is not None:
            self.optimizer, self.previous_end = ordinary
            writes = self.emit is write_step and sys.byteorder == "little"
            self.recorder = process.made if writes else None
            self.quiet = False
            self.place = BETWEEN

    def leave(self) -> None:
        """Replay the noted times of the step that is going on into ``Steps``."""
        place, self.place = self.place, OUTSIDE
        if place == OUTSIDE:
            return
        steps = self.steps
        steps.resume(self.previous_end)
        self.close_record()
        if self.quiet and place > BETWEEN:
            self.resting_until = process.last_step + RESTING_STEPS
            self.fetch_began = self.fetched = self.backward_began = self.backward_ended = 0
            self.optimizer_began, self.loss = 0, None
            steps.lack_times()
            place = max(place, FETCHED)
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

    def begin_record(self, now: int) -> None:
        """Note the end of a quiet step that is the first in its record, or alone in one if it was long."""
        recorder, began = self.recorder, self.previous_end
        assert recorder is not None
        self.run += self.close_record()
        spent, self.previous_end = now - began, now
        step = process.last_step = next(process.steps)
        if spent < OPEN_NS and self.run:
            more = min(self.run, ENDS_EACH)
            self.run -= more
            # Their numbers are taken now; those of steps that do not come are given back.
            taken = [next(process.steps) for _ in range(more - 1)]
            sequence = next(recorder.sequences)
            at = _FIRST + (sequence - 1) % recorder.capacity * _WORDS
            words = recorder.words
            words[at + 1], words[at + 2] = step, began
            words[at + 3] = ENDS + (more << 16) + (self.source.full << 32)
            words[at + 4] = spent
            if sequence > recorder.capacity:
                words[at + 5] = words[at + 6] = words[at + 7] = 0
            words[at] = words[_WRITTEN] = sequence
            self.shorts, self.until = recorder.shorts, began + OPEN_NS
            self.at = (at + 4) * 2 + 1
            self.end, self.base = self.at - 1 + more, step - self.at
            if taken and taken[-1] != step + more - 1:  # another thread made a step meanwhile
                self.close_record()
                self.run = 0
        else:
            self.run = 0
            recorder.write(STEP, step, now, 0, 0, self.source.full, spent * _NS)
        self.quiet = self.run > 0 or self.at < self.end
        self.place = BETWEEN

    def close_record(self) -> int:
        """Have no step added to the record; return how many there was room for."""
        room, last = self.end - self.at, self.last_step
        process.last_step = last
        if room and self.recorder is not None:
            self.recorder.words[self.at // _SHORTS * _WORDS + 3] |= CLOSED << 8
            if next(process.steps) == self.base + self.end + 1:
                process.steps = count(last + 1)
        self.at = self.end = 0
        return room

    def measure(self, step: int, spent: int) -> None:
        """Choose, after a step that was measured, how many quiet ones follow."""
        self.at = self.end = 0
        together = spent * (self.mask + 1)
        if together < NEAR_NS:
            self.mask = min(self.mask * 2 + 1, MAX_MASK)
        elif together > 4 * NEAR_NS and self.was_long:
            self.mask >>= 1
        self.was_long = together > 4 * NEAR_NS
        rests = self.recorder is None or step < self.resting_until
        self.run = 0 if rests else min(-(step + 1) & self.mask, self.left)
        self.quiet = self.run > 0
