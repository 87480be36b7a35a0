"""Turns torch's calls into events for the steps of a thread."""

from __future__ import annotations

import sys
import threading
import weakref
from _thread import get_ident
from functools import partial
from itertools import count
from time import monotonic_ns

from distconsole_training.guard import guarded
from distconsole_training.loss import NOT_LOOKED_AT, UNKNOWN
from distconsole_training.process import process
from distconsole_training.records import MAX_SAMPLES
from distconsole_training.steps import Steps
from distconsole_training.torch_hook.batches import Source
from distconsole_training.torch_hook.fast_path import IN_BACKWARD, FastPath
from distconsole_training.torch_hook.step_records import write_batch, write_step
from distconsole_training.torch_hook.torch_loss import ScalarReader, divisor_of
from distconsole_training.torch_hook.waits import Waits, write_waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    from distconsole_training.loss import Seen
    from distconsole_training.steps import Emit

_MAX_SCALED = 8
_number_of_source = count(1).__next__


def _drop(*_step: Any) -> None:
    """Discard a step."""


class _OtherThread(threading.local):
    def __init__(self, emit: Emit, stepping_calls: Callable[[], int]) -> None:
        self.steps = Steps(emit, stepping_calls)


class TorchSteps:
    """Feeds the ``Steps`` of each thread; ``emit`` takes finished ones, by default ``write_step``.

    Attributes:
        fast: The steps of the thread that imported torch; the same object for good.
        scales: A GradScaler has been used.
        look: Called with every batch and its iterator, unless None.
    """

    def __init__(self, torch: Any, emit: Emit | None = None) -> None:
        self._emit = emit or write_step
        self._taken_by: Emit | None = None
        self.reader = ScalarReader(torch, lambda: process.last_step + 1)
        self._step_code = _code_of_step()
        self._repeats = torch.optim.LBFGS
        self._queue = torch.autograd.Variable._execution_engine.queue_callback
        self.waits = Waits()
        self._done = self.waits.own_is_done
        self._asked: Any = None
        self.fast = FastPath(self._first_steps(), self._emit)
        self._others = _OtherThread(self._emit, self._stepping_calls)
        self._in_backward: Steps | None = None
        self.scales = False
        self.look: Callable[[Any, Any], None] | None = None
        compiler = getattr(torch, "compiler", None)
        self.is_compiling: Callable[[], bool] = getattr(compiler, "is_dynamo_compiling", bool)

    def forget(self) -> None:
        self.waits.begin_again()
        self.fast.__init__(self._first_steps(), self._emit)  # type: ignore[misc]
        self._others = _OtherThread(self._emit, self._stepping_calls)
        self._in_backward = None

    def leave_to_script(self) -> Emit:
        """Emit no step any more, as the script marks its own; return the function that takes those."""
        if self._taken_by is None:
            self._taken_by, self._emit = self._emit, _drop
            self.forget()
        return self._taken_by

    def next_step(self) -> int:
        """Return the index of the step that a batch arriving now most likely belongs to."""
        return process.last_step + (2 if self._is_ahead() else 1)

    def current_step(self) -> int:
        """Return the index of the step that this thread is in, or of its last one in between."""
        return process.last_step + self._is_ahead()

    def finish(self) -> None:
        """Emit the last step of the thread that ends the process."""
        self._steps().finish()

    def fetch_began(self, iterator: Any) -> Source:
        """``next(iterator)`` of a DataLoader begins; return its source."""
        steps = self._steps()
        steps.trains = True
        source: Source | None = getattr(iterator, "_distconsole_source", None)
        if source is None:
            # In the iterator, which cannot be pickled, so that it lives as long and no longer.
            source = iterator._distconsole_source = Source(iterator, _number_of_source())
        source.began = monotonic_ns()
        steps.fetch_begins(source.number, source.began)
        return source

    def fetched(self, iterator: Any, batch: Any) -> None:
        ended_ns = monotonic_ns()
        source: Source = iterator._distconsole_source
        # A script that keeps ``__next__`` and calls it again does not show when a fetch begins.
        began_ns, source.began = source.began or ended_ns, 0
        index = iterator._num_yielded
        samples = source.full if index < source.full_until else source.samples(index, batch)
        known = samples if samples <= MAX_SAMPLES else 0
        self._steps().fetch_ended(source.number, began_ns, ended_ns, known)

    def backward_began(self, tensors: Any, gradients: Any) -> Steps | None:
        """``torch.autograd.backward`` begins; return the thread's steps that it belongs to."""
        now = monotonic_ns()
        steps = self._steps()
        if not steps.trains and self._at_work() is not None:
            return None
        if self.waits.looks and not steps.in_backward and steps is self.fast.steps:
            self.await_own(tensors)
        steps.trains = True
        loss = UNKNOWN if gradients is not None else self._look_at(steps, tensors)
        steps.backward_begins(now, loss)
        self._in_backward = steps
        return steps

    def backward_ended(self, steps: Steps | None, failed: bool) -> None:
        """The backward that ``backward_began`` returned ``steps`` for is over."""
        if steps is None:
            return
        now = monotonic_ns()
        if steps is self.fast.steps:
            self.fast.leave()
            if steps.in_backward == 1:
                self.waits.backward_ended(now)
        steps.backward_ends(now, failed=failed)
        if not steps.in_backward:
            self._in_backward = None

    def await_own(self, tensors: Any) -> None:
        """Note when the engine has computed the last gradient of the backward that begins.

        Callbacks queued for the end, as DDP's wait for gradients, run after that:
        the engine runs them in the order in which they were queued.
        """
        self.waits.own_done = 0
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        node = getattr(tensors, "grad_fn", None)
        if node is None or getattr(compiled, "compiled_autograd_enabled", False):
            return
        if self._asked is not None:
            self._asked.remove()  # of a graph that is kept; else it is gone with it
        self._asked = node.register_prehook(self._ask)

    def _ask(self, _gradients: Any) -> None:
        self._queue(self._done)

    def optimizer_began(self, optimizer: Any) -> None:
        steps = self._steps()
        if not steps.trains:
            steps = self._at_work() or steps
        steps.optimizer_begins(id(optimizer), monotonic_ns(), self._evaluations(optimizer))

    def optimizer_ended(self, optimizer: Any) -> None:
        now = monotonic_ns()
        steps = self._steps()
        if not steps.trains:
            steps = self._at_work() or steps
        skipped = False
        if self.scales:
            # A fused optimizer is called in any case, with a flag to leave the weights alone.
            found = getattr(optimizer, "found_inf", None)
            skipped = found is not None and bool(found.is_cpu and found.item())
        steps.optimizer_ends(id(optimizer), now, skipped, self._evaluations(optimizer))
        if steps is self.fast.steps and not (
            self.scales or self.waits.looks or process.wanted < 0
        ):
            self.fast.enter()

    def scaled(self, outputs: Any, scaled: Any) -> None:
        """A GradScaler made ``scaled`` of ``outputs``; one that is disabled returns its argument."""
        if scaled is outputs:
            return
        self.scales = True
        steps = self._steps()
        if isinstance(scaled, (list, tuple)):
            # Of several losses none is the step's, and none is unscaled.
            steps.scaled.append((weakref.ref(self), UNKNOWN))
        else:
            steps.scaled.append(
                (weakref.ref(scaled), (self.reader.read(outputs), divisor_of(outputs)))
            )
        del steps.scaled[:-_MAX_SCALED]

    def scaler_updates(self, scaler: Any) -> None:
        """A GradScaler ends an iteration: an optimizer that it did not call was skipped."""
        steps = self._steps()
        steps.scaled.clear()
        states = getattr(scaler, "_per_optimizer_states", None)
        if states and getattr(scaler, "_enabled", False):
            done = [one for one, state in states.items() if state["stage"].name == "STEPPED"]
            steps.optimizers_skipped(done, monotonic_ns())

    def _first_steps(self) -> Steps:
        """Return the steps of the thread whose waits are seen; those that a script marks have none."""
        if self._emit is _drop:
            return Steps(self._emit, self._stepping_calls, self.waits)
        tell = partial(guarded(write_waits), self.waits)
        return Steps(self._emit, self._stepping_calls, self.waits, tell, guarded(write_batch))

    def _look_at(self, steps: Steps, tensors: Any) -> Seen:
        """Return the loss that backward is called on, as far as known."""
        if steps.in_backward:
            return UNKNOWN
        if isinstance(tensors, (list, tuple)):
            if len(tensors) != 1:
                return UNKNOWN
            tensors = tensors[0]
        if not steps.scaled:
            divisor = divisor_of(tensors) if steps.shares else NOT_LOOKED_AT
            return self.reader.read(tensors), divisor
        for index, (scaled, loss) in enumerate(steps.scaled):
            if scaled() is tensors:
                del steps.scaled[index]
                return loss
        # Made of a scaled loss, so scaled by a number that we do not know.
        return UNKNOWN

    def _evaluations(self, optimizer: Any) -> int:
        """Return how often an LBFGS has called its closures so far; 0 of others, which call it once."""
        if not isinstance(optimizer, self._repeats):
            return 0
        state = optimizer.state.get(optimizer.param_groups[0]["params"][0]) or {}
        return int(state.get("func_evals", 0))

    def _steps(self) -> Steps:
        if get_ident() != self.fast.thread:
            return self._others.steps
        self.fast.leave()
        return self.fast.steps

    def _is_ahead(self) -> bool:
        mine = get_ident() == self.fast.thread
        return self.fast.is_ahead if mine else self._others.steps.is_ahead

    def _at_work(self) -> Steps | None:
        """Return the steps whose backward is going on, if one is."""
        if self.fast.place == IN_BACKWARD:
            self.fast.leave()
            return self.fast.steps
        return self._in_backward

    def _stepping_calls(self) -> int:
        """Return how many calls of ``step()``, as torch wraps it, are on this thread's stack."""
        calls = 0
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            calls += frame.f_code is self._step_code
            frame = frame.f_back
        return calls


def _code_of_step() -> CodeType | None:
    """Return the code with which torch wraps the ``step`` of every class of optimizers."""
    home: Any = sys.modules["torch.optim.optimizer"]
    wrapped: Any = home.Optimizer.profile_hook_step(_code_of_step)
    code: CodeType = wrapped.__code__
    return code
