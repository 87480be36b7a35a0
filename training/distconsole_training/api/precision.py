"""Numbers in fewer bits: autocast around a model, and the scaler that fp16 needs."""

from __future__ import annotations

import contextlib
from enum import Enum
from typing import Any

import torch
from torch import nn


class Precision(str, Enum):
    """What the model computes in; its parameters stay float32."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


class Autocast(nn.Module):  # type: ignore[misc]  # torch is not needed for checking types
    """A module that computes under autocast and answers in float32.

    It is a module, so that DataParallel's threads each enter autocast for themselves.
    """

    def __init__(self, module: nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self._device_type = device_type
        self._dtype = dtype

    def forward(self, *args: Any, **options: Any) -> Any:
        with torch.autocast(self._device_type, dtype=self._dtype):
            answer = self.module(*args, **options)
        return _in_float32(answer)


def in_precision(model: nn.Module, precision: Precision, device: torch.device) -> nn.Module:
    """Return ``model``, computing in ``precision``."""
    if precision is Precision.FP32:
        return model
    return Autocast(model, device.type, DTYPES[precision])


def scaler_for(precision: Precision, device: torch.device) -> Any:
    """Return a GradScaler; for anything but fp16 it passes everything through.

    Raises:
        ValueError: if this torch has none for the device.
    """
    is_needed = precision is Precision.FP16
    with contextlib.suppress(AttributeError):
        return torch.amp.GradScaler(device.type, enabled=is_needed)
    if is_needed and device.type != "cuda":
        raise ValueError(f"precision='fp16' on {device.type} needs torch 2.3 or newer: use bf16")
    return torch.cuda.amp.GradScaler(enabled=is_needed)


def _in_float32(answer: Any) -> Any:
    if isinstance(answer, torch.Tensor):
        return answer.float() if answer.is_floating_point() else answer
    if isinstance(answer, dict):
        return type(answer)((name, _in_float32(value)) for name, value in answer.items())
    if isinstance(answer, tuple) and hasattr(answer, "_fields"):
        return type(answer)(*map(_in_float32, answer))
    if isinstance(answer, (list, tuple)):
        return type(answer)(map(_in_float32, answer))
    return answer
