"""``run --verify-sync N``: every N steps a rank writes checksums of its parameters, optimizer and batch.

The console compares them between ranks: no collective, nothing that waits. A checksum is the sum of a
tensor's bytes as 64-bit integers, modulo 2**64: the same in whatever order a device adds.
"""

# The package does without pathlib.
# ruff: noqa: PTH105, PTH123

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import sys
import weakref
import zlib
from functools import partial
from itertools import islice
from time import monotonic_ns

from distconsole_training import records
from distconsole_training.guard import guarded
from distconsole_training.process import process
from distconsole_training.torch_hook.step_records import write_step
from distconsole_training.torch_hook.torch_loss import is_capturing
from distconsole_training.torch_hook.torch_replicas import Replicas

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Union

    from distconsole_training.torch_hook.torch_steps import TorchSteps

    Number = Union[int, Any]
    """A number that is known, or a tensor with one integer on its way to be."""

_BATCH_TENSORS = 8
_BATCH_BYTES = 256 * 1024
"""Of each tensor of a batch: enough to distinguish two batches."""
_BATCH_DEPTH = 3
_DETAILS_A_RECORD = 8
_NAME_CHARS = 120
_WORD_BYTES = 8
_MASK = (1 << 64) - 1


class Verifier:
    """Takes the checks of this process."""

    def __init__(self, torch: Any, every: int) -> None:
        self._torch = torch
        self._every = every
        self._summer = Summer(torch)
        self._replicas = Replicas(torch, self._summer.takes)
        self._dispatch_active = torch._C._len_torch_dispatch_stack
        self._batches: dict[int, list[Number]] = {}
        self._epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._pass: tuple[weakref.ref[Any], int] | None = None
        self._repeats = False
        self._told_layout: int | None = None
        self._after_step = guarded(self._stepped)
        self._watch: TorchSteps | None = None

    def listen(self, torch: Any, watch: TorchSteps) -> None:
        """Listen for facts that ``TorchSteps`` leaves out: the optimizer that stepped, and the contents of a batch."""
        self._watch = watch
        process.on_fork.append(self._forget)
        home: Any = sys.modules["torch.optim.optimizer"]
        trains = guarded(self._replicas.trains)
        is_compiling = watch.is_compiling

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not is_compiling():
                trains(optimizer)

        # First, so that the optimizer is known when the other hook ends the step.
        home.register_optimizer_step_post_hook(after_step)
        watch.look = guarded(self.arrived)

    def emit(self, *step: Any) -> None:
        """Write a finished step as always, and check it if its turn has come."""
        write_step(*step)
        self._after_step(step[1])

    def arrived(self, iterator: Any, batch: Any) -> None:
        if iterator._num_yielded == 1:
            self._pass_began(iterator)
        if self._watch is None or self._dispatch_active() or is_capturing(self._torch):
            return
        step = self._watch.next_step()
        if step % self._every == 0:
            tensors: list[Any] = []
            _collect(batch, self._summer, tensors, _BATCH_DEPTH)
            with self._torch.no_grad():
                self._batches[step] = [
                    self._summer.sum_of(tensor, _BATCH_BYTES) for tensor in tensors
                ]

    def _forget(self) -> None:
        self._batches.clear()
        self._pass = None
        self._told_layout = None

    def _pass_began(self, iterator: Any) -> None:
        sampler: Any = getattr(getattr(iterator, "_index_sampler", None), "sampler", None)
        self._pass = None
        found = any(kind.__name__ == "DistributedSampler" for kind in type(sampler).__mro__)
        if found and sampler.shuffle and sampler.num_replicas > 1:
            self._pass = weakref.ref(sampler), int(sampler.epoch)

    def _stepped(self, flags: int) -> None:
        step = process.last_step
        if self._pass is not None:
            self._note_epoch(*self._pass)
            self._pass = None
        if step % self._every == 0 and not self._dispatch_active():
            with self._torch.no_grad(), self._torch._C.DisableTorchFunction():
                self._check(step, bool(flags & records.SKIPPED))
        elif self._repeats:
            self._write(step, self._epoch_flag(), 0, [], [[], [], [], []])
        if process.late:
            process.deliver_late()

    def _note_epoch(self, known: weakref.ref[Any], epoch: int) -> None:
        sampler = known()
        if sampler is not None:
            if self._epochs.get(sampler) == epoch:
                self._repeats = True
            self._epochs[sampler] = epoch

    def _epoch_flag(self) -> int:
        repeats, self._repeats = self._repeats, False
        return records.SAME_EPOCH if repeats else 0

    def _check(self, step: int, skipped: bool) -> None:
        if is_capturing(self._torch):
            return
        replicas, summer = self._replicas, self._summer
        parameters = replicas.parameters()
        states = replicas.states(parameters)
        batch = [] if replicas.sharded else self._batches.pop(step, [])
        self._batches.clear()
        unscaled = not (skipped or self._watch is None or self._watch.scales)
        with_gradient = [
            place
            for place, one in enumerate(parameters)
            if unscaled and one.grad is not None and summer.takes(one.grad) and one.grad.numel()
        ]
        sums: list[list[Number]] = [
            [summer.sum_of(one) for one in parameters],
            [summer.sum_of(one) for one in states],
            batch,
            [summer.badness(parameters[place].grad) for place in with_gradient],
        ]
        flags = self._epoch_flag() | (records.WRAPPED if replicas.wrapped else 0)
        kinds = records.HAS_PARAMETERS, records.HAS_STATE, records.HAS_BATCH
        for found, flag in zip(sums, kinds):
            flags |= flag if found else 0
        self._write_names()
        write = partial(self._write, step, flags, replicas.layout, with_gradient)
        process.later(Gathered(self._torch, sums), write)

    def _write_names(self) -> None:
        """Write the names of the details into the file beside the ring, if they changed."""
        recorder = process.recorder()
        layout = self._replicas.layout
        if recorder is None or layout == self._told_layout:
            return
        self._told_layout = layout
        names: list[str] = []
        for part in _parts(self._replicas.names):
            first, last = part[0][-_NAME_CHARS:], part[-1][-_NAME_CHARS:]
            names.append(first if len(part) == 1 else f"{first} to {last}")
        text = json.dumps({"layout": layout, "names": names})
        path = recorder.path[: -len(records.RING_SUFFIX)] + records.CHECKED_SUFFIX
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(text)
        os.replace(path + ".new", path)

    def _write(
        self,
        step: int,
        flags: int,
        layout: int,
        with_gradient: Sequence[int],
        sums: list[list[int]],
    ) -> None:
        """Write a check: the ``sums`` of parameters, state and batch, and which gradients are bad."""
        recorder = process.recorder()
        if recorder is None:
            return
        now = monotonic_ns()
        *tensors, badness = sums
        details = [zlib.crc32(_pack_words(part)) for part in _parts(sums[0])]
        rows = range(0, len(details), _DETAILS_A_RECORD)
        for number, first in enumerate(rows):
            row = details[first : first + _DETAILS_A_RECORD]
            packed = struct.pack("<8I", *row, *[0] * (_DETAILS_A_RECORD - len(row)))
            recorder.write_words(
                records.DETAIL, step, now, struct.unpack("<4Q", packed), name=number
            )
        bad = next((place for place, is_bad in zip(with_gradient, badness) if is_bad), None)
        bad_part = 0 if bad is None else bad // _part_size(len(sums[0])) + 1
        place = int.from_bytes(records.PLACE.pack(*_place(), layout), "little")
        recorder.write_words(
            records.CHECK,
            step,
            now,
            [*map(_checksum, tensors), place],
            flags=flags,
            name=len(rows),
            samples=len(details) | bad_part << 16,
        )


def _collect(part: Any, summer: Summer, found: list[Any], depth: int) -> None:
    if len(found) >= _BATCH_TENSORS or depth < 0:
        return
    if summer.takes(part):
        found.append(part)
    elif type(part) is dict:
        for value in part.values():
            _collect(value, summer, found, depth - 1)
    elif isinstance(part, (list, tuple)):
        for value in part[:_BATCH_TENSORS]:
            _collect(value, summer, found, depth - 1)


def _part_size(count: int) -> int:
    return max(-(-count // records.MAX_CHECKED), 1)


def _parts(items: list[Any]) -> list[list[Any]]:
    """Return neighbours together if there are more than fit."""
    size = _part_size(len(items))
    return [items[first : first + size] for first in range(0, len(items), size)]


def _pack_words(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _checksum(numbers: list[int]) -> int:
    digest = hashlib.blake2b(_pack_words(numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little") if numbers else 0


def _place() -> tuple[int, int]:
    """Return rank and world size as the script's own engine has them."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        place = distributed.get_rank(), distributed.get_world_size()
    elif "horovod.common.basics" in sys.modules and process.identity is not None:
        place = process.identity.rank, process.identity.world_size
    else:
        place = -1, 0
    known = 0 <= place[0] < place[1] < records.NOWHERE
    return place if known else (records.NOWHERE, records.NOWHERE)


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
        """Return the sum of a number, or of a tensor that ``takes`` took.

        Only ``most_bytes`` at its beginning count; 0: all.
        """
        torch = self._torch
        if isinstance(tensor, (int, float)):
            return _bits_of(tensor)
        if tensor.numel() == 1 and tensor.is_cpu and not tensor.is_complex():
            return _bits_of(tensor.item())
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
        """Return the elements in the order of the memory, without a copy if they are dense."""
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
        self._torch = torch
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
        if self._coming and is_capturing(self._torch):
            return False
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


def _bits_of(number: float) -> int:
    """Return the 64 bits of a number as a float."""
    bits: int = struct.unpack("<Q", struct.pack("<d", float(number)))[0]
    return bits
