"""Writes the steps of a training into this process's ring."""

from __future__ import annotations

import sys
from functools import partial
from time import monotonic_ns

from distconsole_training.guard import guarded
from distconsole_training.identity import from_process_group
from distconsole_training.process import process
from distconsole_training.records import ALONE, BATCH, LOSS, OFFSET_WANTED, STEP, WAIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from distconsole_training.loss import Value
    from distconsole_training.recorder import Recorder

_NAN = float("nan")


def write_step(
    ended_ns: int,
    flags: int,
    samples: int,
    seconds: float,
    data: float,
    forward: float,
    backward: float,
    optimizer: float,
    loss: Value,
) -> None:
    step = process.last_step = next(process.steps)
    recorder = process.made or process.recorder()
    if recorder is None:
        return
    value = loss if type(loss) is float else _NAN
    parts = seconds, data, forward, backward, optimizer
    recorder.write(STEP, step, ended_ns, flags, 0, samples, *parts, value)
    if step == 0:
        recorder.phase("first_step", ended_ns, flags=ALONE if _is_alone() else 0)
        refine_identity()
    # Cases that a NaN in the record of a step leaves open: a loss that is NaN, or comes later.
    if isinstance(loss, float):
        if loss != loss:
            recorder.write(LOSS, step, ended_ns, value=loss)
    elif loss is not None:
        process.later(loss, partial(_write_loss, recorder, step))
    if process.late:
        process.deliver_late()
    if recorder.map[OFFSET_WANTED] != process.wanted:
        _trace(recorder, step)


def write_batch(
    ended_ns: int,
    samples: int,
    spent: Sequence[float],
    waited: Sequence[float] | None,
    loss: Value,
) -> None:
    """Write a batch of a process that has made no step yet; none of a DataLoader's worker that reads
    from another loader."""
    recorder = process.made
    if recorder is None:
        if sys.modules["torch.utils.data"].get_worker_info() is not None:
            return
        recorder = process.recorder()
    if recorder is not None:
        batch = next(process.batches)
        if waited is not None:
            a, b, c = waited
            recorder.write(WAIT, batch, ended_ns, a=a, b=b, c=c, d=0.0, e=0.0)
        a, b, c = spent
        value = loss if type(loss) is float else _NAN
        recorder.write(BATCH, batch, ended_ns, samples=samples, a=a, b=b, c=c, value=value)
        if loss is not None and not isinstance(loss, float):
            process.later(loss, partial(_write_loss, recorder, batch))
    process.deliver_late()


@guarded
def _trace(recorder: Recorder, step: int) -> None:
    """A trace is wanted, or going on."""
    from distconsole_training.torch_hook.tracing import trace

    trace(recorder, step)


def _write_loss(recorder: Recorder, step: int, value: float | None) -> None:
    if value is not None:
        recorder.write(LOSS, step, monotonic_ns(), value=value)


def _is_alone() -> bool:
    """Whether nothing is to be seen by which this process trains together with others."""
    if process.grouped or "mpi4py.MPI" in sys.modules:
        return False
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        return process.marked_step < 0  # a script without torch meets the others in its own way
    if not distributed.is_available():
        return True
    calls = sys.modules.get("torch.distributed.rpc")
    by_calls = getattr(calls, "_is_current_rpc_agent_set", bool)
    return not (distributed.is_initialized() or by_calls())


def refine_identity() -> None:
    """Take rank and world from ``torch.distributed``, if the script has initialised it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None:
        inherited = process.inherited_local_rank
        process.identify(lambda known: from_process_group(distributed, known, inherited))
