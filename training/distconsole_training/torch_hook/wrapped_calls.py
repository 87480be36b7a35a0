"""Wraps the calls of torch that ``TorchSteps`` needs: fetches, backwards and optimizers' steps.

A training evicts our code from the caches between any two calls of it, so calls on the fast path
are written out here.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import repeat
from time import monotonic_ns
from types import MethodType

from distconsole_training import records
from distconsole_training.guard import count_failure, drop_this_frame
from distconsole_training.process import process
from distconsole_training.torch_hook.fast_path import (
    BACKWARD_DONE,
    BETWEEN,
    FETCHED,
    FETCHING,
    IN_BACKWARD,
    STEPPING,
)
from distconsole_training.torch_hook.waits import meter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from distconsole_training.steps import Steps
    from distconsole_training.torch_hook.fast_path import FastPath
    from distconsole_training.torch_hook.torch_steps import TorchSteps
    from distconsole_training.torch_hook.waits import Waits

_NS = 1e-9
_KIND = records.TIMES
_WORDS, _FIRST = records.RECORD.size // 8, records.RECORDS_OFFSET // 8
_WRITTEN = records.OFFSET_WRITTEN // 8

_BACKWARD_TAKES = (
    *("tensors", "grad_tensors", "retain_graph"),
    *("create_graph", "grad_variables", "inputs"),
)
_BACKWARD_DEFAULTS = (None, None, False, None, None)


class NextAndTell:
    """Stands for ``__next__`` in the class of DataLoader's iterators.

    Its call has no Python frame of ours, so that warnings, tracebacks and the data set's own look
    at the stack are as they would be without us.
    """

    def __init__(self, original: Callable[[Any], Any], watch: TorchSteps) -> None:
        self._original = original
        self._fast = watch.fast
        self._began: Callable[[Any], Any] = meter(watch.fetch_began, watch.waits)
        self._told = _take_batch(watch)

    def __get__(self, iterator: Any, kind: Any = None) -> Any:
        if iterator is None:
            return self._original
        fast = self._fast
        try:
            source = iterator._distconsole_source
            may_be_fast = iterator._num_yielded + 1 < source.full_until
        except AttributeError:
            source, may_be_fast = None, False
        if may_be_fast and fast.place == BETWEEN and get_ident() == fast.thread:
            fast.place = FETCHING
            fast.source = source
            fast.fetch_began = monotonic_ns()
        elif self._began(iterator) is None:
            return MethodType(self._original, iterator)
        again = repeat(iterator)
        return map(self._told, map(self._original, again), again).__next__


def _take_batch(watch: TorchSteps) -> Callable[[Any, Any], Any]:
    """Return a function that takes a batch and its iterator, notes its arrival, and returns the batch."""
    fast, fetched, look = watch.fast, meter(watch.fetched, watch.waits), watch.look

    def take(batch: Any, iterator: Any) -> Any:
        if fast.place == FETCHING and get_ident() == fast.thread:
            fast.place = FETCHED
            fast.fetched = monotonic_ns()
        else:
            fetched(iterator, batch)
        if look is not None:
            look(iterator, batch)
        return batch

    return take


def backward_that_tells(original: Callable[..., Any], watch: TorchSteps) -> Callable[..., Any]:
    """Return ``torch.autograd.backward`` that reports to ``watch``; ``Tensor.backward`` calls it too."""
    code = getattr(original, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    more = True if code is None else code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    known = names == _BACKWARD_TAKES and original.__defaults__ == _BACKWARD_DEFAULTS and not more
    told = [meter(each, watch.waits) for each in (watch.backward_began, watch.backward_ended)]
    return _known_backward(original, watch, *told) if known else _any_backward(original, *told)


def _known_backward(
    original: Any, watch: TorchSteps, began: Any, ended: Any
) -> Callable[..., Any]:
    fast, reader = watch.fast, watch.reader
    read, tensor = reader.read, reader.tensor
    functions, dispatchers = reader.functions_active, reader.dispatch_active

    # Its parameters are spelled out: collecting and spreading them costs more than all else here.
    @functools.wraps(original)
    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: Any = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> Any:
        now = monotonic_ns()
        if fast.place == FETCHED and grad_tensors is None and get_ident() == fast.thread:
            try:
                # ``read``'s work for nearly every loss on a CPU.
                if (
                    type(tensors) is tensor
                    and not functions()
                    and not dispatchers()
                    and tensors.is_cpu
                    and tensors.numel() == 1
                    and type(loss := tensors.item()) is float
                ):
                    fast.loss = loss
                else:
                    fast.loss = read(tensors)
            except Exception as error:  # noqa: BLE001 - the guard of this package
                fast.loss = None
                count_failure(error)
            fast.place = IN_BACKWARD
            fast.backward_began = now
            steps: Steps | None = fast.steps
        else:
            steps = began(tensors, grad_tensors)
        try:
            result = original(
                tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
            )
        except BaseException:
            ended(steps, True)
            drop_this_frame()
            raise
        if fast.place == IN_BACKWARD and steps is fast.steps:
            fast.place = BACKWARD_DONE
            fast.backward_ended = monotonic_ns()
        else:
            ended(steps, False)
        return result

    return backward


def _any_backward(original: Any, began: Any, ended: Any) -> Callable[..., Any]:
    """As ``_known_backward``, for a version of torch with other parameters."""

    @functools.wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        steps = began(tensors, grad_tensors)
        try:
            result = original(tensors, grad_tensors, *args, **kwargs)
        except BaseException:
            ended(steps, True)
            drop_this_frame()
            raise
        ended(steps, False)
        return result

    return backward


def hook_before_step(watch: TorchSteps) -> Callable[..., None]:
    """Return the function for torch to call before every step of an optimizer."""
    fast, is_compiling = watch.fast, watch.is_compiling
    began = meter(watch.optimizer_began, watch.waits)

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        # In a compiled step this is a constant, and nothing of ours is left in its graph.
        if is_compiling():
            return
        if (
            fast.place == BACKWARD_DONE
            and fast.optimizer == id(optimizer)
            and get_ident() == fast.thread
        ):
            fast.place = STEPPING
            fast.optimizer_began = monotonic_ns()
        else:
            began(optimizer)

    return before_step


def hook_after_step(watch: TorchSteps) -> Callable[..., None]:
    """Return the function for torch to call after every step of an optimizer."""
    fast, is_compiling, waits = watch.fast, watch.is_compiling, watch.waits
    ended = meter(watch.optimizer_ended, watch.waits)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        # It began on the fast path, so in its thread.
        if fast.place != STEPPING or fast.optimizer != id(optimizer):
            ended(optimizer)
            return
        try:
            now = monotonic_ns()
            step_began, loss, recorder = fast.previous_end, fast.loss, fast.recorder
            fast.previous_end, fast.place = now, BETWEEN
            if now >= waits.due or recorder is None or type(loss) is not float or loss != loss:
                _end_step(fast, waits, now, step_began)
                return
            process.last_step = step = next(process.steps)
            sequence = next(recorder.sequences)
            words, halves = recorder.words, recorder.halves
            at = _FIRST + (sequence - 1) % recorder.capacity * _WORDS
            words[at + 1] = step
            words[at + 2] = now
            words[at + 3] = _KIND + (fast.source.full << 32)
            # Each moment takes the upper half of the one before it, and the loss that of the last.
            words[at + 4] = step_began
            halves[at + 4] = fast.fetch_began
            words[at + 5] = fast.fetched
            halves[at + 5] = fast.backward_began
            words[at + 6] = fast.backward_ended
            halves[at + 6] = fast.optimizer_began
            recorder.doubles[at + 7] = loss
            words[at] = words[_WRITTEN] = sequence
        except Exception as error:  # noqa: BLE001 - the guard of this package
            count_failure(error)

    return after_step


def _end_step(fast: FastPath, waits: Waits, now: int, step_began: int) -> None:
    """End a step whose loss is still on its device, or after which other work is due."""
    fetched, backward_began = fast.fetched, fast.backward_began
    fast.emit(
        now,
        0,
        fast.source.full,
        (now - step_began) * _NS,
        (fetched - fast.fetch_began) * _NS,
        (backward_began - fetched) * _NS,
        (fast.backward_ended - backward_began) * _NS,
        (now - fast.optimizer_began) * _NS,
        fast.loss,
    )
    if now >= waits.due:
        waits.step_ended(now)
    if waits.looks or process.wanted < 0:
        fast.leave()
