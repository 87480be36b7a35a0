"""What runs inside a rank. It imports neither torch nor anything else that the script has not.

A script may say of itself what cannot be seen from outside::

    from distconsole_training import report

    report(loss=loss, accuracy=correct / len(batch), samples=len(batch))
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["__version__", "report"]

__version__ = "0.1.0"


def report(*, step: int | None = None, samples: int | None = None, **metrics: Any) -> None:
    """Show ``metrics`` of this rank in the console; without a console it does nothing.

    It never raises and never waits: a tensor on a GPU is copied behind the work that is queued
    there and shown a little later. The console reduces each metric over the ranks at equal steps.

    Args:
        step: The training step that the values belong to. Without it: the step that is going on,
            or the last one in between.
        samples: How many samples the values are means of; the console weighs ranks by it.
        metrics: Numbers: Python's, numpy's, or tensors with one element. Anything else is left
            out. At most 64 names in one process. ``loss`` replaces the loss that the console
            takes from ``backward``.
    """
    if not os.environ.get("DISTCONSOLE_RINGS"):
        return
    from distconsole_training.reporting import put

    put(step, samples, metrics)
