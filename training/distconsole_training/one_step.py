"""What was seen of one training step so far; it judges nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from distconsole_training.loss import Seen


class Sums:
    """Times are nanoseconds."""

    __slots__ = (
        "backward",
        "backwards",
        "batches",
        "closures",
        "data",
        "doubtful",
        "evaluated",
        "evaluations",
        "first_fetch",
        "forward",
        "forward_known",
        "losses",
        "optimizer",
        "passed_over",
        "samples",
        "samples_known",
    )

    def __init__(self) -> None:
        self.losses: list[Seen] = []
        self.reset()

    def reset(self) -> None:
        self.first_fetch = self.data = self.forward = self.backward = self.optimizer = 0
        self.batches = self.backwards = self.closures = self.evaluations = self.samples = 0
        self.forward_known = self.samples_known = True
        self.evaluated = self.passed_over = self.doubtful = False
        self.losses.clear()

    def absorb(self, other: Sums) -> None:
        """Add what ``other`` saw later in the same step."""
        self.first_fetch = self.first_fetch or other.first_fetch
        self.data += other.data
        self.forward += other.forward
        self.backward += other.backward
        self.optimizer += other.optimizer
        self.batches += other.batches
        self.backwards += other.backwards
        self.closures += other.closures
        self.evaluations += other.evaluations
        self.samples += other.samples
        self.forward_known &= other.forward_known
        self.samples_known &= other.samples_known
        self.evaluated |= other.evaluated
        self.passed_over |= other.passed_over
        self.doubtful |= other.doubtful
        self.losses += other.losses
