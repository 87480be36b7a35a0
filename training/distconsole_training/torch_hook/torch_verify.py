"""``run --verify-sync N``: every N steps a rank writes checksums of its parameters, optimizer and batch.

The console compares them between ranks: no collective, nothing that waits.
"""

# The package does without pathlib.
# ruff: noqa: PTH105, PTH123

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import weakref
import zlib
from functools import partial
from time import monotonic_ns

from distconsole_training import records
from distconsole_training.guard import guarded
from distconsole_training.process import process
from distconsole_training.torch_hook.step_records import write_step
from distconsole_training.torch_hook.torch_replicas import Replicas
from distconsole_training.torch_hook.torch_sums import Gathered, Summer, bits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from distconsole_training.torch_hook.torch_steps import TorchSteps
    from distconsole_training.torch_hook.torch_sums import Number

_BATCH_TENSORS = 8
_BATCH_BYTES = 256 * 1024
"""Of each tensor of a batch: enough to tell two batches apart."""
_BATCH_DEPTH = 3
_DETAILS_A_RECORD = 8
_NAME_CHARS = 120


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
        """Listen to what ``TorchSteps`` does not: which optimizer it was, and what a batch holds."""
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
        """Write a finished step as always, and check where it is its turn."""
        write_step(*step)
        self._after_step(step[1])

    def arrived(self, iterator: Any, batch: Any) -> None:
        """A batch arrived."""
        if iterator._num_yielded == 1:
            self._pass_began(iterator)
        if self._watch is None or self._dispatch_active():
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
        if any(kind.__name__ == "DistributedSampler" for kind in type(sampler).__mro__):
            shuffles = sampler.shuffle and sampler.num_replicas > 1
            self._pass = (weakref.ref(sampler), int(sampler.epoch)) if shuffles else None
        else:
            self._pass = None

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
        if self._capturing():
            return
        replicas, summer = self._replicas, self._summer
        parameters = replicas.parameters()
        states = replicas.states(parameters)
        batch = [] if replicas.sharded else self._batches.pop(step, [])
        self._batches.clear()
        sums: list[list[Number]] = [
            [summer.sum_of(one) for one in parameters],
            [
                bits_of(one) if isinstance(one, (int, float)) else summer.sum_of(one)
                for one in states
            ],
            batch,
        ]
        unscaled = not (skipped or self._watch is None or self._watch.scales)
        with_gradient = [
            place
            for place, one in enumerate(parameters)
            if unscaled and one.grad is not None and summer.takes(one.grad) and one.grad.numel()
        ]
        sums.append([summer.badness(parameters[place].grad) for place in with_gradient])
        flags = self._epoch_flag() | (records.WRAPPED if replicas.wrapped else 0)
        for found, flag in (
            (parameters, records.HAS_PARAMETERS),
            (states, records.HAS_STATE),
            (batch, records.HAS_BATCH),
        ):
            flags |= flag if found else 0
        self._write_names()
        write = partial(self._write, step, flags, replicas.layout, with_gradient)
        process.later(Gathered(self._torch, sums), write)

    def _capturing(self) -> bool:
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _write_names(self) -> None:
        """Lay beside the ring what the details are of, where it changed."""
        recorder = process.recorder()
        layout = self._replicas.layout
        if recorder is None or layout == self._told_layout:
            return
        self._told_layout = layout
        names = [_join_names(part) for part in _parts(self._replicas.names)]
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
    """Add the tensors of a batch to ``found``."""
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
    """Return neighbours together where there are more than fit."""
    size = _part_size(len(items))
    return [items[first : first + size] for first in range(0, len(items), size)]


def _join_names(names: list[str]) -> str:
    shown = [name[-_NAME_CHARS:] for name in names]
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


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
