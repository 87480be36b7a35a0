"""What a step's backwards say about its loss: the truth, or NaN; it reads no tensor."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Optional, Protocol, Union

    class Late(Protocol):
        """A value that is on its way from a device."""

        def value(self) -> float | None:
            """Return it, or None while it has not arrived; never waits."""

    Value = Union[float, Late]
    Seen = tuple[Value, Optional[float]]
    """A loss, unscaled where a GradScaler scaled it, and the number that it was divided by last:
    ``None`` where none is to be seen, ``NOT_LOOKED_AT``."""

NOT_LOOKED_AT = -1.0

UNKNOWN: Seen = (math.nan, NOT_LOOKED_AT)

MAX_LOSSES = 256
"""Backwards of one step whose losses are kept; a script that never steps an optimizer has more."""


class LateMean:
    """The mean, or the sum, of values of which some are on their way from a device."""

    __slots__ = ("_divisor", "_values")

    def __init__(self, values: Sequence[Value], divisor: float) -> None:
        self._values = values
        self._divisor = divisor

    def value(self) -> float | None:
        """Return it, or None while one of the values has not arrived."""
        total = 0.0
        for value in self._values:
            arrived = value if isinstance(value, float) else value.value()
            if arrived is None:
                return None
            total += arrived
        return total / self._divisor


def loss_of_step(
    losses: Sequence[Seen], *, batches: int, optimizers: int, closure: bool, micro: bool
) -> Value:
    """Return the loss of a step, NaN where it is not certain.

    Args:
        losses: One per backward, in order.
        batches: How many batches the backwards were called for.
        optimizers: How many outermost optimizers stepped.
        closure: Whether an optimizer called the backwards (LBFGS): the first one then tells the
            loss at the step's beginning, as ``optimizer.step(closure)`` returns it.
        micro: Whether the script accumulates gradients, so that even a lone loss may be a share.
    """
    if not losses:
        return math.nan
    if closure:
        return losses[0][0]
    if len(losses) == 1:
        value, divisor = losses[0]
        return math.nan if micro and divisor is not None else value
    if optimizers != 1 or batches != len(losses):
        return math.nan
    return _of_micro_batches(losses)


def _of_micro_batches(losses: Sequence[Seen]) -> Value:
    divisors = {divisor for _, divisor in losses}
    if divisors == {None}:
        divisor = float(len(losses))
    elif divisors == {float(len(losses))}:
        divisor = 1.0
    else:
        return math.nan
    mean = LateMean([value for value, _ in losses], divisor)
    now = mean.value()
    return mean if now is None else now
