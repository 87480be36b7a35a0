"""The hook inside a rank, and the functions that a training script may call. Importing it imports nothing else.

A script may report figures that cannot be seen from outside::

    from distconsole_training import report

    report(loss=loss, accuracy=correct / len(batch), samples=len(batch))

It may mark its own steps if the hook sees none (``mark_step``), and use the parts that
``docs/guide/training.md`` describes (this needs torch)::

    from distconsole_training import evaluate, setup, strategy
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from distconsole_training.api.checkpoints import CheckpointError as CheckpointError
    from distconsole_training.api.checkpoints import Checkpoints as Checkpoints
    from distconsole_training.api.collectives import barrier as barrier
    from distconsole_training.api.collectives import reduce_mean as reduce_mean
    from distconsole_training.api.collectives import reduce_sum as reduce_sum
    from distconsole_training.api.evaluation import evaluate as evaluate
    from distconsole_training.api.loading import Batches as Batches
    from distconsole_training.api.marked_steps import mark_step as mark_step
    from distconsole_training.api.placement import SetupError as SetupError
    from distconsole_training.api.strategies import Strategy as Strategy
    from distconsole_training.api.strategies import strategy as strategy
    from distconsole_training.api.world import World as World
    from distconsole_training.api.world import setup as setup

__version__ = "0.1.0"

_WHERE = {
    "Batches": "loading",
    "CheckpointError": "checkpoints",
    "Checkpoints": "checkpoints",
    "SetupError": "placement",
    "Strategy": "strategies",
    "World": "world",
    "barrier": "collectives",
    "evaluate": "evaluation",
    "mark_step": "marked_steps",
    "reduce_mean": "collectives",
    "reduce_sum": "collectives",
    "setup": "world",
    "strategy": "strategies",
}
"""Name -> its module of ``api``; each is imported at its first use."""

__all__ = ["__version__", "report", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.api.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def report(*, step: int | None = None, samples: int | None = None, **metrics: Any) -> None:
    """Show ``metrics`` of this rank in the console; without a console it does nothing.

    It never raises and never waits: a tensor on a GPU is copied behind the work that is queued
    there and shown a little later. The console reduces each metric over the ranks at equal steps.

    Args:
        step: The training step that the values belong to. Without it: the step that is going on,
            or the last one in between.
        samples: How many samples the values are means of; the console weighs ranks by it. A
            tensor on a GPU, as for ``step``, is not waited for, and counts as not given.
        metrics: Numbers: Python's, numpy's, or tensors with one element. Anything else is left
            out. At most 64 names in one process. ``loss`` replaces the loss that the console
            takes from ``backward``.
    """
    if not os.environ.get("DISTCONSOLE_RINGS"):
        return
    from distconsole_training.process import put

    put(step, samples, metrics)
