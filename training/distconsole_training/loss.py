"""The sums over a training step, and its loss by its backwards: certain, or None."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Optional, Protocol, Union

    class Late(Protocol):
        """A value that is on its way from a device."""

        def arrived(self) -> bool:
            """Return True if it is here, or never will be; never waits."""

        def value(self) -> Any:
            """Return it, once it has arrived; None if it was lost on the way."""

    Value = Union[float, Late, None]
    Seen = tuple[Value, Optional[float]]
    """A loss, unscaled where a GradScaler scaled it, and the number that it was divided by last:
    ``None`` where it certainly was not divided, ``NOT_LOOKED_AT`` where that is not known."""

NOT_LOOKED_AT = -1.0

UNKNOWN: Seen = (None, NOT_LOOKED_AT)

MAX_LOSSES = 256
"""Backwards of one step whose losses are kept; a script that never steps an optimizer has more."""


class LateMean:
    """The sum of values, of which some are on their way from a device, divided by ``divisor``."""

    def __init__(self, values: Sequence[float | Late], divisor: float) -> None:
        self._values = values
        self._divisor = divisor

    def arrived(self) -> bool:
        return all(isinstance(value, float) or value.arrived() for value in self._values)

    def value(self) -> float | None:
        total = 0.0
        for value in self._values:
            known = value if isinstance(value, float) else value.value()
            if known is None:
                return None
            total += known
        return total / self._divisor


_ADDED = (
    *("data", "forward", "backward", "optimizer"),
    *("data_waited", "forward_waited", "backward_waited", "optimizer_waited"),
    *("batches", "backwards", "closures", "evaluations", "samples"),
    *("passed_over", "passed_samples", "passed_data"),
)
_JOINED = ("evaluated", "doubtful")


class Sums:
    """A training step so far; times are nanoseconds."""

    def __init__(self) -> None:
        self.losses: list[Seen] = []
        self.reset()

    def reset(self) -> None:
        self.first_fetch = self.data = self.forward = self.backward = self.optimizer = 0
        self.data_waited = self.forward_waited = self.backward_waited = self.optimizer_waited = 0
        self.batches = self.backwards = self.closures = self.evaluations = self.samples = 0
        self.forward_known = self.samples_known = True
        self.passed_over = self.passed_samples = self.passed_data = 0
        self.evaluated = self.doubtful = False
        self.losses.clear()

    def absorb(self, other: Sums) -> None:
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _JOINED:
            setattr(self, name, getattr(self, name) or getattr(other, name))
        self.first_fetch = self.first_fetch or other.first_fetch
        self.forward_known &= other.forward_known
        self.samples_known &= other.samples_known
        self.losses += other.losses


def loss_of_step(losses: Sequence[Seen], sums: Sums, *, optimizers: int, micro: bool) -> Value:
    """Return the loss of a step, None if it is not certain.

    Args:
        losses: One per backward, in order.
        sums: The rest of the step. If an optimizer (LBFGS) evaluated its closure several
            times, the first loss is the one that ``optimizer.step(closure)`` returns.
        optimizers: How many outermost optimizers stepped.
        micro: The script accumulates gradients, so that even a lone loss may be a share.
    """
    if not losses:
        return None
    if sums.closures > 1:
        return losses[0][0] if sums.evaluations == sums.closures == len(losses) else None
    if len(losses) == 1:
        value, divisor = losses[0]
        return value if not micro or divisor in (None, 1.0) else None
    return (
        _mean_micro_batches(losses, sums.batches + sums.passed_over) if optimizers == 1 else None
    )


def _mean_micro_batches(losses: Sequence[Seen], batches: int) -> Value:
    divisors = {divisor for _, divisor in losses}
    if divisors == {None} and batches == len(losses):
        divisor = float(len(losses))
    elif divisors == {float(len(losses))}:
        divisor = 1.0
    else:
        return None
    values = [value for value, _ in losses if value is not None]
    if len(values) < len(losses):
        return None
    mean = LateMean(values, divisor)
    return mean.value() if mean.arrived() else mean
