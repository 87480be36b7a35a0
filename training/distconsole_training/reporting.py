"""What ``report`` does: it puts what the script says of itself into the ring."""

from __future__ import annotations

import sys
from functools import partial

from distconsole_training.guard import guarded
from distconsole_training.process import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from distconsole_training.recorder import Recorder

_MAX_STEP = (1 << 62) - 1


class _Reader:
    """Holds the reader of device scalars, made when the first tensor is reported."""

    scalars: Any = None


def _report(step: Any, samples: Any, metrics: dict[str, Any]) -> None:
    recorder = process.recorder()
    if recorder is None:
        return
    known = whole(step)
    at = _current_step() if known is None else known
    weight = whole(samples) or 0
    at = min(max(at, 0), _MAX_STEP)
    for name, value in metrics.items():
        _report_one(recorder, name, at, value, weight)
    if process.late:
        process.deliver_late()


def whole(value: Any) -> int | None:
    """Return ``value`` as a whole number; None where there is none, or to ask for it would wait for a device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return None
    return None if value is None else int(value)


def _put(recorder: Recorder, name: str, step: int, value: Any, samples: int) -> None:
    number = _number(value, step)
    if isinstance(number, float):
        recorder.metric(name, step, number, samples)
    elif number is not None:
        process.later(number, partial(_write_late, recorder, name, step, samples))


def _write_late(
    recorder: Recorder, name: str, step: int, samples: int, value: float | None
) -> None:
    if value is not None:
        recorder.metric(name, step, value, samples)


def _number(value: Any, step: int) -> Any:
    """Return ``value`` as a float, as a value on its way from a device, or None if it is neither."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.numel() != 1:
            return None
        if _Reader.scalars is None:
            from distconsole_training.torch_hook.torch_loss import ScalarReader

            _Reader.scalars = ScalarReader(torch, thinned=False)
        return _Reader.scalars.read(value.detach(), step)
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        return None
    return float(value)


def _current_step() -> int:
    patches = sys.modules.get("distconsole_training.torch_hook.torch_patches")
    watching = getattr(patches, "watching", ())
    return watching[0].current_step() if watching else process.last_step


_report_one = guarded(_put)
put = guarded(_report)
