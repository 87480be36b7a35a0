"""Turns a thread's fetches, backwards and optimizer steps into training steps; times are nanoseconds.

A step opens with the first batch that is followed by a backward, and ends when the last of its
outermost optimizers has stepped. That it is over is certain when a later batch is used for training,
or when an optimizer that has stepped in it steps again; once a script has shown how many optimizers
make its step, the step is emitted at once. A batch that is not followed by a backward was evaluated:
neither it nor the time around it belongs to a step. Until the first step batches are emitted instead.
"""

from __future__ import annotations

import math

from distconsole_training.loss import MAX_LOSSES, UNKNOWN, Sums, loss_of_step
from distconsole_training.records import MICRO, SKIPPED

TYPE_CHECKING = False
if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Sequence
    from typing import Any, Optional

    from distconsole_training.loss import Seen, Value
    from distconsole_training.torch_hook.waits import Waits

    Emit = Callable[[int, int, int, float, float, float, float, float, Value], None]
    """Takes a finished step: when it ended, flags, samples (0 where unknown), seconds of all, data,
    forward, backward and optimizer (NaN where unknown), and the loss (None where unknown)."""
    TellBatch = Callable[[int, int, Sequence[float], Optional[Sequence[float]], Value], None]
    """Takes a batch that no step came of: when it was over, samples (0 where unknown), seconds of all,
    of its fetch and of the rest, how much of each was waited (None where unknown), and the loss."""
    Tell = Callable[[int, int, int, int, int, int], None]
    """Takes, before the step, when it ends, and nanoseconds waited in all of it, data, forward,
    backward and optimizer."""


ACCUMULATED = 64
"""After this many batches with a backward each and no optimizer, a script's steps are most likely out of sight."""

SINGLES = 16
"""After this many steps with one backward each, a script does not accumulate gradients any more."""

_NAN = math.nan
_NS = 1e-9


class Steps:
    """The steps of one thread.

    Attributes:
        shares: A loss may be a share of one, so that its divisor matters: the script
            accumulates gradients, or its usual step is not known yet.
        in_backward: How many backwards of this thread are going on, one inside another.
        running: The optimizers that began to step and have not come back, outermost first; one
            that raised stays until the next event shows that it is not on the stack any more.
        scaled: Results of a GradScaler, with the loss of each.
        trains: True once it fetched or called backward. A thread of the autograd engine does
            neither: its work is part of the backward that it runs for.
    """

    def __init__(
        self,
        emit: Emit,
        stepping_calls: Callable[[], int],
        waits: Waits | None = None,
        tell_waits: Tell | None = None,
        tell_batch: TellBatch | None = None,
    ) -> None:
        """``stepping_calls`` counts the calls of ``step()`` on the caller's stack."""
        self._emit = emit
        self._waits, self._tell_waits, self._tell_batch = waits, tell_waits, tell_batch
        self._stepping_calls = stepping_calls
        self._sums = Sums()
        # Events after the last optimizer step: they are this step's or the next one's.
        self._rest = Sums()
        self._stepped: list[int] = []
        self._ran = False
        self._ended = self._previous_end = 0
        self._previous_stepped: list[int] = []
        self._previous_batches = 0
        self._previous_passed_over = 0
        self._optimizers_per_step = 0
        self._plain = False
        self._eager = True
        self._bare_before = False
        self._cursor = 0
        # Batches that no backward followed yet: source -> began, ended, samples.
        self._pending: dict[int, tuple[int, int, int]] = {}
        self._unfinished = self._asked_at = 0
        self._batch, self._backwards_before = (0, 0, 0), 0
        # Of each source, batches that no backward followed at once, their samples and nanoseconds.
        self._dropped: dict[int, tuple[int, int, int]] = {}
        self._sources: tuple[int, ...] = ()
        self._backward_began = self._optimizer_began = self._closures = self._evaluations = 0
        self._singles = 0
        self._micro = False
        self.shares = True
        self.in_backward = 0
        self.running: list[int] = []
        self.scaled: list[tuple[weakref.ref[Any], Seen]] = []
        self.trains = False

    @property
    def is_ahead(self) -> bool:
        """Whether work for a step that is not emitted yet was seen."""
        return bool(self._rest.backwards or self._stepped)

    def fetch_begins(self, source: int, now: int) -> None:
        if self._unfinished:
            # The one before raised or had no more: its last batch is over too.
            self._drop(self._unfinished)
        self._unfinished, self._asked_at = source, now

    def fetch_ended(self, source: int, began: int, ended: int, samples: int) -> None:
        self._unfinished = 0
        pending = self._pending
        if pending:
            if source in pending:
                self._drop(source)
            # Other fetches during this one were made by the data set itself.
            for inner in [one for one, times in pending.items() if times[0] > began]:
                del pending[inner]
        pending[source] = (began, ended, samples)

    def backward_begins(self, now: int, loss: Seen) -> None:
        """A backward begins; one inside another is part of it."""
        self.in_backward += 1
        if self.in_backward > 1:
            return
        self._backward_began = now
        if self._unfinished:
            self._drop(self._unfinished)
            self._unfinished = 0
        if self._pending:
            self._commit()
        rest = self._rest
        rest.backwards += 1
        if self.running:
            del self.running[self._stepping_calls() :]
        inside = 0
        if self.running:
            inside = self._closures = self._closures + 1
        elif self._cursor:
            rest.forward += now - self._cursor
            rest.forward_waited += self._waited(self._cursor, now)
        else:
            rest.forward_known = False
        if rest.backwards > max(1, inside):
            self._micro = self.shares = True
        if len(rest.losses) < MAX_LOSSES:
            rest.losses.append(loss)
        else:
            rest.losses[-1] = loss

    def backward_ends(self, now: int, *, failed: bool = False) -> None:
        self.in_backward = depth = max(self.in_backward - 1, 0)
        if depth:
            return
        rest = self._rest
        rest.backward += now - self._backward_began
        rest.backward_waited += self._waited(self._backward_began, now)
        self._cursor = now
        if failed:
            rest.backwards -= 1
            del rest.losses[-1:]

    def optimizer_begins(self, optimizer: int, now: int, evaluations: int = 0) -> None:
        """An optimizer begins to step; one inside another is part of it.

        ``evaluations``: its closure calls so far, if it counts them.
        """
        running = self.running
        if running:
            del running[self._stepping_calls() - 1 :]
            if running:
                running.append(optimizer)
                return
        running.append(optimizer)
        self._optimizer_began = now
        self._closures = 0
        self._evaluations = evaluations
        if self._pending and not self._rest.backwards:
            self._commit()
        if self._stepped and optimizer in self._stepped:
            self._close()

    def optimizer_ends(
        self, optimizer: int, now: int, skipped: bool = False, evaluations: int = 0
    ) -> None:
        running = self.running
        while running:
            if running.pop() == optimizer:
                break
        if running:
            return
        rest = self._rest
        rest.optimizer += now - self._optimizer_began
        rest.optimizer_waited += self._waited(self._optimizer_began, now)
        rest.closures += self._closures
        rest.evaluations += evaluations - self._evaluations
        self._stepped_at(optimizer, now, not skipped)

    def optimizers_skipped(self, optimizers: list[int], now: int) -> None:
        """A GradScaler found infinities and did not call these optimizers."""
        if self._rest.backwards:
            for optimizer in optimizers:
                if optimizer not in self._stepped:
                    self._stepped_at(optimizer, now, False)

    def ordinary_step(self) -> tuple[int, int] | None:
        """Return the optimizer and the end of the last step.

        None if something of a next step was seen, or if the last one was not the ordinary one of
        one batch, one backward and one optimizer that was emitted as soon as it had stepped.
        """
        idle = not (self._stepped or self._pending or self._unfinished or self._dropped)
        plain = self._plain and self._eager and self._optimizers_per_step == 1 and not self._micro
        if not (idle and plain) or self._rest.batches or self._rest.backwards or self.running:
            return None
        return (self._previous_stepped[0], self._previous_end) if self._previous_batches else None

    def resume(self, previous_end: int) -> None:
        """Go on after ordinary steps, the last of which ended at ``previous_end``."""
        if previous_end != self._previous_end:
            self._previous_end = self._cursor = previous_end
            self._bare_before, self._previous_passed_over = False, 0
            self._sources = ()

    def finish(self) -> None:
        if self._unfinished:
            self._drop(self._unfinished)
        if self._stepped:
            self._close()

    def _drop(self, source: int) -> None:
        batch = self._pending.pop(source, None)
        if batch is not None:
            (began, ended, samples), before = batch, self._dropped.get(source, (0, 0, 0))
            self._dropped[source] = before[0] + 1, before[1] + samples, before[2] + ended - began
            if not (self._previous_end or self._rest.backwards or self._stepped):
                self._end_batch(batch, None)

    def _commit(self) -> None:
        if self._stepped:
            self._close()
        rest = self._rest
        pending = self._pending
        if rest.batches >= ACCUMULATED and not self._previous_end:
            self._end_unstepped()
        if len(pending) > 1 or self._dropped:
            self._sort_out(tuple(pending))
        else:
            self._sources = ()
        for began, ended, samples in pending.values():
            if not rest.first_fetch:
                rest.first_fetch = began
            rest.data += ended - began
            rest.data_waited += self._waited(began, ended)
            rest.samples += samples
            if not samples:
                rest.samples_known = False
            self._cursor = ended
        rest.batches += 1
        pending.clear()

    def _end_unstepped(self) -> None:
        """Tell the batch before the one that is pending: backward was called on it, and no optimizer steps."""
        rest = self._rest
        lone = rest.backwards == self._backwards_before + 1
        value, divisor = rest.losses[-1] if lone and rest.losses else UNKNOWN
        if self._batch[0]:
            self._end_batch(self._batch, value if divisor in (None, 1.0) else None)
        self._backwards_before = rest.backwards
        self._batch = next(iter(self._pending.values())) if len(self._pending) == 1 else (0, 0, 0)

    def _end_batch(self, batch: tuple[int, int, int], loss: Value) -> None:
        """Tell a batch that was over when the next one was asked for."""
        (began, fetched, samples), ended = batch, self._asked_at
        if self._tell_batch is None:
            return
        parts = (began, ended), (began, fetched), (fetched, ended)
        waits, waited = self._waits, None
        if waits is not None and waits.covers(began):
            waited = [waits.between(*part) * _NS for part in parts]
        self._tell_batch(ended, samples, [(b - a) * _NS for a, b in parts], waited, loss)
        if waits is not None:
            waits.step_ended(ended)

    def _sort_out(self, sources: tuple[int, ...]) -> None:
        """Separate batches that were evaluated, or passed over, from those being trained on."""
        rest = self._rest
        if len(sources) > 1 and sources != self._sources:
            # Several loaders in one step, or an evaluation that was left early: seen once, either.
            rest.doubtful = True
        self._sources = sources
        if self._dropped:
            trained_on = [self._dropped[source] for source in sources if source in self._dropped]
            for count, samples, data in trained_on:
                rest.passed_over += count
                rest.passed_samples += samples
                rest.passed_data += data
            rest.evaluated = rest.evaluated or len(trained_on) < len(self._dropped)
            self._dropped.clear()

    def _stepped_at(self, optimizer: int, now: int, ran: bool) -> None:
        if self._stepped:
            self._sums.absorb(self._rest)
            self._rest.reset()
            self._ran = self._ran or ran
        elif self._opens_a_step(optimizer, now):
            self._sums, self._rest = self._rest, self._sums
            self._ran = ran
        else:
            return
        self._stepped.append(optimizer)
        self._ended = self._cursor = now
        if self._eager and 0 < self._optimizers_per_step <= len(self._stepped):
            self._close()

    def _opens_a_step(self, optimizer: int, now: int) -> bool:
        """Return True if an optimizer, the first since the last step was emitted, makes a new one."""
        rest = self._rest
        if rest.batches:
            self._bare_before = False
            return True
        if self._previous_batches and optimizer not in self._previous_stepped:
            # It belongs to the step that was emitted too early; never again.
            self._eager = False
            return False
        if rest.backwards:
            self._bare_before = False
            return True
        # No batch and no backward: once is a warm-up of the optimizer's state, twice is training.
        bare_before, self._bare_before = self._bare_before, True
        if not bare_before:
            self._previous_end = self._cursor = now
            rest.reset()
        return bare_before

    def _close(self) -> None:
        sums = self._sums
        ended = self._ended
        if not self._optimizers_per_step:
            self._optimizers_per_step = len(self._stepped)
        self._singles = self._singles + 1 if sums.backwards == 1 else 0
        lone = sums.backwards == 1 and not self._micro
        loss = sums.losses[0][0] if lone else self._loss(sums)
        certain = not sums.doubtful
        samples = sums.samples if sums.samples_known and certain else 0
        if sums.passed_over:
            fetched = sums.batches + sums.passed_over
            if sums.backwards == fetched and len(self._stepped) == 1:
                # Those of a step are fetched before its first backward, as transformers does.
                samples += sums.passed_samples if samples else 0
                sums.data += sums.passed_data
            elif self._previous_passed_over:
                # Some batches of every step are not followed by a backward of their own.
                samples = 0
        began = sums.first_fetch if sums.evaluated else self._previous_end or sums.first_fetch
        self._settle_waits(sums, began, ended)
        self._previous_end = ended
        self._previous_batches = sums.batches
        self._previous_passed_over = sums.passed_over
        if self._singles >= SINGLES:
            self._micro = False
        self.shares = self._micro
        self._plain = (
            lone and sums.batches < 2 and self._ran and not sums.passed_over and not sums.closures
        )
        # The lists change places: the next step fills the other one.
        self._previous_stepped, self._stepped = self._stepped, self._previous_stepped
        self._stepped.clear()
        self._emit(
            ended,
            (MICRO if sums.backwards > 1 else 0) | (0 if self._ran else SKIPPED),
            samples,
            (ended - began) * _NS if began and certain else _NAN,
            sums.data * _NS if sums.batches and certain else _NAN,
            sums.forward * _NS if sums.forward_known and not sums.closures else _NAN,
            sums.backward * _NS if sums.backwards else _NAN,
            sums.optimizer * _NS if self._ran and not sums.closures else _NAN,
            loss,
        )
        sums.reset()

    def _waited(self, began: int, ended: int) -> int:
        return self._waits.between(began, ended) if self._waits is not None else 0

    def _settle_waits(self, sums: Sums, began: int, ended: int) -> None:
        """Tell how much of the step that is about to be emitted was a wait for other ranks."""
        waits, tell = self._waits, self._tell_waits
        if waits is None or tell is None:
            return
        if began and not sums.doubtful and waits.covers(began):
            parts = sums.data_waited, sums.forward_waited, sums.backward_waited
            tell(ended, waits.between(began, ended), *parts, sums.optimizer_waited)
        waits.step_ended(ended)

    def _loss(self, sums: Sums) -> Value:
        losses = sums.losses if len(sums.losses) == sums.backwards else ()
        return loss_of_step(losses, sums, optimizers=len(self._stepped), micro=self._micro)
