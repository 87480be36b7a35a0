"""The ordinary events of the ordinary step, written out; everything else is handed to ``TorchSteps``.

A training evicts our code from the caches between any two of these calls, so what they cost is how
much memory they touch: one function, one object and one clock each.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from functools import partial
from itertools import starmap
from time import monotonic_ns
from types import MethodType

from distconsole_training.guard import caught, drop_this_frame, guarded, tally
from distconsole_training.lane import (
    BACKWARD_DONE,
    FETCHED,
    FETCHING,
    IN_BACKWARD,
    OUTSIDE,
    STEPPING,
)
from distconsole_training.loss import NOT_LOOKED_AT, UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from distconsole_training.torch_steps import ThreadSteps, TorchSteps

_ONCE = ((),)


class NextAndTell:
    """Stands for ``__next__`` in the class of DataLoader's iterators.

    Its call has no Python frame of ours: a warning of torch that names its caller's line, an
    exception from the data set and a look at the stack from within it find what they would find
    without us.
    """

    __slots__ = ("_began", "_fetched", "_lane", "_original", "_watch")

    def __init__(self, original: Callable[[Any], Any], watch: TorchSteps) -> None:
        self._original = original
        self._watch = watch
        self._lane = watch.first
        self._began: Callable[[Any], Any] = guarded(watch.fetch_began)
        self._fetched = guarded(watch.fetched)

    def __get__(self, iterator: Any, kind: Any = None) -> Any:
        if iterator is None:
            return self._original
        original = MethodType(self._original, iterator)
        lane = self._lane
        source = getattr(iterator, "_distconsole_source", None)
        if lane.place == lane.fetches_from and source is not None and get_ident() == lane.thread:
            lane.place = FETCHING
            lane.source = source.number
            lane.fetch_began = began = monotonic_ns()
        else:
            begun = self._began(iterator)
            if begun is None:
                return original
            source, began = begun
        told = partial(self._arrived, iterator, source, began)
        return map(told, starmap(original, _ONCE)).__next__

    def _arrived(self, iterator: Any, source: Any, began: int, batch: Any) -> Any:
        lane = self._lane
        if (
            lane.place == FETCHING
            and lane.fetch_began == began
            and iterator._num_yielded < source.full_until
            and get_ident() == lane.thread
        ):
            lane.place = FETCHED
            lane.fetched = monotonic_ns()
            lane.samples = source.full
        else:
            self._fetched(iterator, source, began, batch)
        return batch


class NextAndLook(NextAndTell):
    """Tells as its base does, and shows the batch to ``look``."""

    __slots__ = ("_look",)

    def __init__(
        self,
        original: Callable[[Any], Any],
        watch: TorchSteps,
        look: Callable[[Any, Any], None],
    ) -> None:
        super().__init__(original, watch)
        self._look = look

    def _arrived(self, iterator: Any, source: Any, began: int, batch: Any) -> Any:
        super()._arrived(iterator, source, began, batch)
        self._look(iterator, batch)
        return batch


def backward_that_tells(original: Callable[..., Any], watch: TorchSteps) -> Callable[..., Any]:
    """Return ``torch.autograd.backward``, told to ``watch``; ``Tensor.backward`` calls it too."""
    lane = watch.first
    began, ended = guarded(watch.backward_began), guarded(watch.backward_ended)
    read = watch.read

    @functools.wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        now = monotonic_ns()
        if (
            lane.place == lane.trains_from
            and grad_tensors is None
            and not lane.scaled
            and get_ident() == lane.thread
        ):
            try:
                lane.loss = read(tensors), NOT_LOOKED_AT
            except Exception as error:  # noqa: BLE001 - as the guard, without its call
                lane.loss = UNKNOWN
                caught(error)
            lane.place = IN_BACKWARD
            lane.backward_began = now
            told: ThreadSteps | None = lane
        else:
            told = began(tensors, grad_tensors)
        try:
            result = original(tensors, grad_tensors, *args, **kwargs)
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


def optimizer_hooks(watch: TorchSteps) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return what torch is to call before and after every step of an optimizer."""
    lane, is_compiling = watch.first, watch.is_compiling
    began, ended = guarded(watch.optimizer_began), guarded(watch.optimizer_ended)
    end_step = lane.end_step

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
        if (
            lane.place == STEPPING
            and not lane.nested
            and lane.optimizer == id(optimizer)
            and not watch.scales
            and get_ident() == lane.thread
        ):
            try:
                end_step(monotonic_ns())
            except Exception as error:  # noqa: BLE001 - as the guard, without its call
                caught(error)
                if tally.spent:
                    lane.place = OUTSIDE
            return
        ended(optimizer)

    return before_step, after_step
