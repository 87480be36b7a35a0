"""``mark_step()``: a script marks its own training steps that the hook does not see. It needs no torch."""

from __future__ import annotations

import sys
from time import monotonic_ns

from distconsole_training.guard import guarded
from distconsole_training.process import process
from distconsole_training.records import MAX_SAMPLES
from distconsole_training.torch_hook.step_records import write_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from distconsole_training.steps import Emit

_NAN = float("nan")
PARTS = ("data", "forward", "backward", "optimizer")


class MarkedStep:
    """One training step, from the beginning of its ``with`` to the end.

    Attributes:
        samples: How many samples this rank trains on in it; 0 if unknown.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._emit: Emit | None = None
        self._spent: dict[str, int] = {}
        self._part = ""
        self._began = self._part_began = 0

    def begin(self, part: str) -> None:
        """Mark that ``part`` begins (data, forward, backward, optimizer) and the one before ends.

        A rank that waits for others should do so in backward: the console looks there for waiting
        ranks, and in the other parts for slow ones.
        """
        now = monotonic_ns()
        self._spent[self._part] = self._spent.get(self._part, 0) + now - self._part_began
        self._part, self._part_began = part, now

    def __enter__(self) -> MarkedStep:
        self._emit = _open_step()
        self._began = self._part_began = monotonic_ns()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.begin("")
        if kind is None and self._emit is not None:
            ended = self._part_began
            _write(self._emit, ended, ended - self._began, self._spent, self.samples)


def mark_step(samples: int = 0) -> MarkedStep:
    """Return a context manager that is one training step of this process.

    Steps that the hook sees in this process are not shown from then on. A step that ends by an
    exception is none. Without a console it does nothing, and it never raises.

    Args:
        samples: How many samples this rank trains on in the step; 0 if unknown.
    """
    return MarkedStep(samples)


def _find_emit() -> Emit:
    """Return the function that takes the step that begins; the hook emits none of its own within it."""
    process.marked_step = process.last_step + 1
    patches = sys.modules.get("distconsole_training.torch_hook.torch_patches")
    watching = getattr(patches, "watching", ())
    return watching[0].leave_to_script() if watching else write_step


def _write_step(emit: Emit, ended: int, spent: int, parts: dict[str, int], samples: Any) -> None:
    data, forward, backward, optimizer = (parts.get(part, _NAN) * 1e-9 for part in PARTS)
    known = int(samples)
    known = known if 0 <= known <= MAX_SAMPLES else 0
    emit(ended, 0, known, spent * 1e-9, data, forward, backward, optimizer, None)


_open_step = guarded(_find_emit)
_write = guarded(_write_step)
