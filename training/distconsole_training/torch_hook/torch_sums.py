"""Bit-exact checksums of tensors, taken on their device and read without waiting for it.

A checksum is the sum of the tensor's bytes as 64-bit integers, modulo 2**64: the same in whatever
order a device adds, so equal tensors have equal sums on every device.
"""

from __future__ import annotations

import math
import struct
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Union

    Number = Union[int, Any]
    """A number that is known, or a tensor with one integer on its way to be."""

_WORD_BYTES = 8
_MASK = (1 << 64) - 1


class Summer:
    """Takes sums with ``torch``; it changes no tensor, no generator and no graph."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        self._channels_last = (torch.channels_last, torch.channels_last_3d)

    def takes(self, tensor: Any) -> bool:
        """Whether ``tensor`` is an ordinary one in ordinary memory; no subclass is touched."""
        return (
            type(tensor) in self._plain
            and tensor.layout is self._torch.strided
            and tensor.device.type in ("cpu", "cuda")
            and not tensor.is_quantized
        )

    def sum_of(self, tensor: Any, most_bytes: int = 0) -> Number:
        """Return the sum of a tensor that ``takes`` took.

        Args:
            tensor: Of any shape and type.
            most_bytes: Only so many bytes at its beginning count; 0: all.
        """
        torch = self._torch
        if tensor.numel() == 1 and tensor.is_cpu and not tensor.is_complex():
            return bits_of(tensor.item())
        flat = self._flat(tensor.detach())
        if flat.is_complex():
            flat = torch.view_as_real(flat).view(-1)
        size = flat.element_size()
        if most_bytes:
            flat = flat[: most_bytes // size]
        if flat.storage_offset() * size % _WORD_BYTES:
            flat = flat.clone()
        whole = flat.numel() - flat.numel() % (_WORD_BYTES // size)
        total = flat[:whole].view(torch.int64).sum()
        if whole < flat.numel():
            total = total + flat[whole:].view(self._integers[size]).sum(dtype=torch.int64)
        return total

    def badness(self, gradient: Any) -> Any:
        """Return a tensor with 0 if all of a gradient that ``takes`` took is finite, else 1."""
        torch = self._torch
        largest = torch.linalg.vector_norm(gradient.detach(), ord=math.inf)
        return torch.isfinite(largest).logical_not().to(torch.int64)

    def _flat(self, tensor: Any) -> Any:
        """Return the elements in the order of the memory, without a copy where they are dense."""
        dense = tensor.is_contiguous() or any(
            tensor.dim() == dimensions and tensor.is_contiguous(memory_format=memory_format)
            for dimensions, memory_format in zip((4, 5), self._channels_last)
        )
        if not dense:
            return tensor.reshape(-1)
        return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


class Gathered:
    """Numbers on their way from one device or several; those on the CPU are here at once."""

    def __init__(self, torch: Any, groups: Sequence[Sequence[Number]]) -> None:
        numbers = [number for group in groups for number in group]
        self._sizes = [len(group) for group in groups]
        self._numbers: list[Any] = numbers
        self._coming: list[tuple[list[int], Any, Any]] = []
        places: dict[Any, list[int]] = {}
        for place, number in enumerate(numbers):
            if not isinstance(number, int):
                places.setdefault(number.device, []).append(place)
        for device, of_device in places.items():
            vector = torch.stack([numbers[place] for place in of_device])
            if device.type == "cpu":
                self._put(of_device, vector)
                continue
            here = torch.empty(vector.shape, dtype=vector.dtype, device="cpu", pin_memory=True)
            here.copy_(vector, non_blocking=True)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            self._coming.append((of_device, here, event))

    def arrived(self) -> bool:
        """Whether all of them are here; never waits."""
        while self._coming and self._coming[0][2].query():
            places, here, _ = self._coming.pop(0)
            self._put(places, here)
        return not self._coming

    def value(self) -> list[list[int]]:
        """Return them by group, from 0 to 2**64 - 1, once they have arrived."""
        numbers = (number & _MASK for number in self._numbers)
        return [list(islice(numbers, size)) for size in self._sizes]

    def _put(self, places: list[int], vector: Any) -> None:
        for place, number in zip(places, vector.tolist()):
            self._numbers[place] = number


def bits_of(number: float) -> int:
    """Return the 64 bits of a number as a float."""
    bits: int = struct.unpack("<Q", struct.pack("<d", float(number)))[0]
    return bits
