"""Reads the value of a scalar without holding up its device, and without keeping its graph."""

from __future__ import annotations

import ctypes
import time

from distconsole_training.loss import NOT_LOOKED_AT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from distconsole_training.loss import Value

_SLOTS = 256
_AWAITED = 0x7FEDC0DE
"""The bits of a NaN that no arithmetic makes."""
_DIVISIONS = ("DivBackward0", "MulBackward0")
_MAY_HIDE_ONE = ("Div", "Mul", "Add", "Sub")
_SUMS = 2
"""torch's code of ``reduction="sum"``, as a loss function's node saves it."""
_NEAR_NS = 30_000_000
"""Values on a device closer together than this are thinned: to fetch one takes microseconds."""


class ScalarReader:
    """Reads scalars of ``torch``.

    Args:
        next_step: Returns the step that a value is of. With it, values on devices that follow too
            closely are left out.

    Attributes:
        functions_active, dispatch_active: Return the number of the script's modes in force, which
            would see our operations on a tensor.
    """

    def __init__(self, torch: Any, next_step: Callable[[], int] | None = None) -> None:
        self.tensor = torch.Tensor
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self.functions_active = torch._C._len_torch_function_stack
        self.dispatch_active = torch._C._len_torch_dispatch_stack
        self._no_functions = torch._C.DisableTorchFunction
        self._device = _DeviceReader(torch)
        self._next_step = next_step
        self._thinning = _Thinning()

    def read(self, tensor: Any) -> Value:
        """Return the scalar as a float or as a ``Late``; None for another tensor, or one not ours to read.

        A subclass (a DTensor, a fake) may do anything when it is read, and a dispatch mode of the
        script would see it.
        """
        if type(tensor) not in self._plain or tensor.numel() != 1 or self.dispatch_active():
            return None
        if self.functions_active():
            with self._no_functions():
                return self._read_plain(tensor)
        return self._read_plain(tensor)

    def _read_plain(self, tensor: Any) -> Value:
        if tensor.is_cpu:
            value = tensor.item()
            return None if type(value) is complex else float(value)
        if not tensor.is_cuda:
            return None
        if self._next_step is None or self._thinning.keeps(self._next_step()):
            return self._device.read(tensor)
        return None


class _Thinning:
    """Keeps the steps that are divisible by a power of two, so that all ranks keep the same ones."""

    def __init__(self) -> None:
        self._kept = -1
        self._kept_ns = 0
        self._mask = 0

    def keeps(self, step: int) -> bool:
        """Return True if the values of ``step`` are read; the power follows the pace of the steps."""
        if step == self._kept:
            return True
        if step & self._mask:
            return False
        now = time.monotonic_ns()
        since = now - self._kept_ns
        if since < _NEAR_NS:
            self._mask = min(self._mask * 2 + 1, 1023)
        elif since > 4 * _NEAR_NS:
            self._mask //= 2
        self._kept_ns = now
        self._kept = step
        return True


def is_capturing(torch: Any) -> bool:
    """Whether this thread's work goes into a CUDA graph: nearly any other call to CUDA would invalidate it."""
    cuda = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


class _DeviceReader:
    """Copies scalars from CUDA devices into pinned memory, behind the work that is queued there.

    A slot holds ``_AWAITED`` until its copy has arrived: to look there calls nothing of CUDA, and is the
    same for every device and stream.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._buffer: Any = None
        self._bits: Any = None
        self._view: Any = None
        self._uses = 0

    def read(self, tensor: Any) -> Value:
        torch = self._torch
        if torch.cuda.is_current_stream_capturing():
            return None
        if self._buffer is None:
            self._buffer = torch.zeros(_SLOTS, dtype=torch.float32, device="cpu", pin_memory=True)
            self._view = (ctypes.c_float * _SLOTS).from_address(self._buffer.data_ptr())
            self._bits = (ctypes.c_uint32 * _SLOTS).from_address(self._buffer.data_ptr())
        use, self._uses = self._uses, self._uses + 1
        slot = use % _SLOTS
        if self._bits[slot] == _AWAITED:
            return None  # its last copy is still to come
        self._bits[slot] = _AWAITED
        try:
            self._buffer[slot].copy_(tensor.detach().reshape(()), non_blocking=True)
        except BaseException:
            self._bits[slot] = 0
            raise
        return _OnItsWay(self, use)

    def arrived(self, use: int) -> bool:
        return self._uses > use + _SLOTS or self._bits[use % _SLOTS] != _AWAITED

    def value(self, use: int) -> float | None:
        return None if self._uses > use + _SLOTS else float(self._view[use % _SLOTS])


class _OnItsWay:
    """The value of one use of the pinned memory; None once its slot was used again."""

    def __init__(self, reader: _DeviceReader, use: int) -> None:
        self._reader = reader
        self._use = use

    def arrived(self) -> bool:
        return self._reader.arrived(self._use)

    def value(self) -> float | None:
        return self._reader.value(self._use)


def divisor_of(tensor: Any) -> float | None:
    """Return the number that ``tensor`` was divided by last, None for a whole loss.

    ``0.25 * loss`` counts as a division by 4. ``NOT_LOOKED_AT`` if unknown: another
    number than a constant on the CPU, a sum of terms that may have been divided, and a sum
    that is divided, as by the size of the batch to make the mean.
    """
    return _divisor_of(getattr(tensor, "grad_fn", None))


def _divisor_of(made_by: Any) -> float | None:
    name = type(made_by).__name__
    if name not in _DIVISIONS:
        return None if _is_whole(made_by, name) else NOT_LOOKED_AT
    other = getattr(made_by, "_saved_other", None)
    if other is None or not other.is_cpu or other.numel() != 1 or other.is_complex():
        return NOT_LOOKED_AT
    if _is_sum(_before(made_by)):
        return NOT_LOOKED_AT
    number = float(other.item())
    if number == 1.0:
        # Engines divide by 1 if there is nothing to divide by.
        before = _divisor_of(_before(made_by))
        return number if before == NOT_LOOKED_AT else before
    if name == "DivBackward0":
        return number
    # 1/3 has no exact float.
    return round(1 / number, 6) if number else NOT_LOOKED_AT


def _is_whole(made_by: Any, name: str) -> bool:
    """Return True if a loss function of torch, or a mean of undivided terms, made a loss."""
    if name.startswith("MeanBackward"):
        return not type(_before(made_by)).__name__.startswith(_MAY_HIDE_ONE)
    return "LossBackward" in name or "CrossEntropyBackward" in name


def _is_sum(made_by: Any) -> bool:
    if type(made_by).__name__.startswith("NegBackward"):
        made_by = _before(made_by)
    name = type(made_by).__name__
    return name.startswith("SumBackward") or getattr(made_by, "_saved_reduction", 0) == _SUMS


def _before(made_by: Any) -> Any:
    """Return the operation that made the first argument of another."""
    return made_by.next_functions[0][0] if made_by.next_functions else None
