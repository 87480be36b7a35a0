"""The ordinary events of the ordinary step, written out; everything else is handed to ``TorchSteps``.

A training evicts our code from the caches between any two of these calls, so what they cost is how
much memory they touch: one function, one object and one clock each.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import repeat
from struct import Struct
from time import monotonic_ns
from types import MethodType

from distconsole_training import records
from distconsole_training.guard import caught, drop_this_frame, guarded, tally
from distconsole_training.lane import (
    BACKWARD_DONE,
    BETWEEN,
    FETCHED,
    FETCHING,
    IN_BACKWARD,
    OUTSIDE,
    STEPPING,
)
from distconsole_training.loss import NOT_LOOKED_AT, UNKNOWN
from distconsole_training.process import process
from distconsole_training.torch_hook.torch_steps import write_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from distconsole_training.torch_hook.torch_steps import ThreadSteps, TorchSteps

_NS = 1e-9
_put = Struct("<q").pack_into
_pack = records.PLAIN_STEP.pack_into
_KIND, _SIZE = records.STEP, records.RECORD.size
_FIRST, _WRITTEN = records.RECORDS_OFFSET, records.OFFSET_WRITTEN
_BACKWARD_TAKES = (
    "tensors",
    "grad_tensors",
    "retain_graph",
    "create_graph",
    "grad_variables",
    "inputs",
)
_BACKWARD_DEFAULTS = (None, None, False, None, None)


class NextAndTell:
    """Stands for ``__next__`` in the class of DataLoader's iterators.

    Its call has no Python frame of ours: a warning of torch that names its caller's line, an
    exception from the data set and a look at the stack from within it find what they would find
    without us.
    """

    __slots__ = ("_began", "_lane", "_original", "_told")

    def __init__(
        self,
        original: Callable[[Any], Any],
        watch: TorchSteps,
        look: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """``look``: what every batch is shown to, with its iterator."""
        self._original = original
        self._lane = watch.first
        self._began: Callable[[Any], Any] = guarded(watch.fetch_began)
        told = _batch_told(watch)
        self._told = told if look is None else _and_shown(told, look)

    def __get__(self, iterator: Any, kind: Any = None) -> Any:
        if iterator is None:
            return self._original
        lane = self._lane
        try:
            source = iterator._distconsole_source
            full = source.full if iterator._num_yielded + 1 < source.full_until else 0
        except AttributeError:
            source, full = None, 0
        if source is not None and lane.place == lane.fetches_from and get_ident() == lane.thread:
            lane.place = FETCHING
            lane.source = source.number
            lane.samples = full
            lane.fetch_began = source.began = monotonic_ns()
        elif self._began(iterator) is None:
            return MethodType(self._original, iterator)
        again = repeat(iterator)
        return map(self._told, map(self._original, again), again).__next__


def _batch_told(watch: TorchSteps) -> Callable[[Any, Any], Any]:
    """Return what is called with a batch and its iterator, and returns the batch."""
    lane, fetched = watch.first, guarded(watch.fetched)

    def told(batch: Any, iterator: Any) -> Any:
        if lane.place == FETCHING and lane.samples and get_ident() == lane.thread:
            lane.place = FETCHED
            lane.fetched = monotonic_ns()
            iterator._distconsole_source.began = 0
        else:
            fetched(iterator, batch)
        return batch

    return told


def _and_shown(
    told: Callable[[Any, Any], Any], look: Callable[[Any, Any], None]
) -> Callable[[Any, Any], Any]:
    def told_and_shown(batch: Any, iterator: Any) -> Any:
        told(batch, iterator)
        look(iterator, batch)
        return batch

    return told_and_shown


def backward_that_tells(original: Callable[..., Any], watch: TorchSteps) -> Callable[..., Any]:
    """Return ``torch.autograd.backward``, told to ``watch``; ``Tensor.backward`` calls it too."""
    known = _takes_what_we_know(original)
    return (_known_backward if known else _any_backward)(original, watch)


def _known_backward(original: Callable[..., Any], watch: TorchSteps) -> Callable[..., Any]:
    lane = watch.first
    began, ended = guarded(watch.backward_began), guarded(watch.backward_ended)
    reader = watch.reader
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
        if (
            lane.place == lane.trains_from
            and grad_tensors is None
            and not lane.scaled
            and get_ident() == lane.thread
        ):
            try:
                # What ``read`` does with nearly every loss on a CPU, without its call.
                if (
                    type(tensors) is tensor
                    and not functions()
                    and not dispatchers()
                    and tensors.is_cpu
                    and type(loss := tensors.item()) is float
                ):
                    lane.loss = loss, NOT_LOOKED_AT
                else:
                    lane.loss = read(tensors), NOT_LOOKED_AT
            except Exception as error:  # noqa: BLE001 - as the guard, without its call
                lane.loss = UNKNOWN
                if not _is_no_scalar(tensors, error):
                    caught(error)
            lane.place = IN_BACKWARD
            lane.backward_began = now
            told: ThreadSteps | None = lane
        else:
            told = began(tensors, grad_tensors)
        try:
            result = original(
                tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
            )
        except BaseException:
            if told is not None:
                ended(told, True)
            drop_this_frame()
            raise
        if told is lane and lane.place == IN_BACKWARD:
            lane.place = BACKWARD_DONE
            lane.backward_ended = monotonic_ns()
        elif told is not None:
            ended(told, False)
        return result

    return backward


def _is_no_scalar(tensors: Any, error: Exception) -> bool:
    """Whether it was ``item`` that raised ``error``, because there are more elements, or none."""
    trace = error.__traceback__
    return trace is not None and trace.tb_next is None and tensors.numel() != 1


def _takes_what_we_know(original: Any) -> bool:
    code = getattr(original, "__code__", None)
    return (
        code is not None
        and code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] == _BACKWARD_TAKES
        and not code.co_kwonlyargcount
        and not code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
        and original.__defaults__ == _BACKWARD_DEFAULTS
    )


def _any_backward(original: Callable[..., Any], watch: TorchSteps) -> Callable[..., Any]:
    """As ``_known_backward``, for a version of torch with other parameters."""
    began, ended = guarded(watch.backward_began), guarded(watch.backward_ended)

    @functools.wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        told = began(tensors, grad_tensors)
        try:
            result = original(tensors, grad_tensors, *args, **kwargs)
        except BaseException:
            if told is not None:
                ended(told, True)
            drop_this_frame()
            raise
        if told is not None:
            ended(told, False)
        return result

    return backward


def optimizer_hooks(watch: TorchSteps) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return what torch is to call before and after every step of an optimizer."""
    lane, is_compiling = watch.first, watch.is_compiling
    began, ended = guarded(watch.optimizer_began), guarded(watch.optimizer_ended)
    end_step, writes = lane.end_step, lane.emit is write_step

    # In a compiled step ``is_compiling()`` is a constant, and nothing of ours is left in its graph.

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        if (
            lane.place == BACKWARD_DONE
            and lane.optimizer == id(optimizer)
            and get_ident() == lane.thread
        ):
            lane.place = STEPPING
            lane.optimizer_began = monotonic_ns()
            return
        began(optimizer)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        if not (
            lane.place == STEPPING
            and not lane.nested
            and lane.optimizer == id(optimizer)
            and not watch.scales
            and get_ident() == lane.thread
        ):
            ended(optimizer)
            return
        try:
            now = monotonic_ns()
            loss = lane.loss[0]
            recorder = process.made
            if (
                type(loss) is not float
                or loss != loss
                or recorder is None
                or process.late
                or lane.trains_from != FETCHED
                or not writes
            ):
                end_step(now)
                return
            # ``end_step``, ``write_step`` and ``Recorder.write``, without their calls.
            step_began = lane.previous_end
            lane.previous_end = now
            lane.place = BETWEEN
            fetched = lane.fetched
            backward_began = lane.backward_began
            process.last_step = step = process.next_step()
            sequence = recorder.next_sequence()
            _pack(
                recorder.map,
                _FIRST + (sequence - 1) % recorder.capacity * _SIZE,
                sequence,
                step,
                now,
                _KIND + (lane.samples << 32),
                (now - step_began) * _NS,
                (fetched - lane.fetch_began) * _NS,
                (backward_began - fetched) * _NS,
                (lane.backward_ended - backward_began) * _NS,
                (now - lane.optimizer_began) * _NS,
                loss,
            )
            _put(recorder.map, _WRITTEN, sequence)
        except Exception as error:  # noqa: BLE001 - as the guard, without its call
            caught(error)
            if tally.spent:
                lane.place = OUTSIDE

    return before_step, after_step
