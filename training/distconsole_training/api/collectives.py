"""Sums, broadcasts and barriers over the ranks, for torch.distributed and Horovod alike.

They are exact: whole numbers are added as int64, others as float64.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

Number = TypeVar("Number", int, float)


class Collectives(Protocol):
    """Collectives of an engine; the result is a new tensor."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks, on every rank."""

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return rank 0's tensor on every rank; all pass the same shape and type."""


class Alone:
    """One process: it agrees with itself."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


_last_sent: deque[torch.Tensor] = deque(maxlen=2)
"""Holders (see ``_hold_in_cpp``) of tensors that torch's threads may not have released yet."""


def _outlive_threads() -> None:
    """Have the tensors that were sent last outlive the interpreter.

    A thread of gloo lets go of a tensor some time after the collective. Where that leaves one reference
    in C++, torch (seen in 2.13) waits for the GIL to let go of the Python object. If Python is ending,
    the thread is ended there and the process dies by SIGABRT ("terminate called without an active exception").
    """
    for holder in _last_sent:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))


def _hold_in_cpp(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that holds ``tensor`` in C++, so that two references stay when a thread's goes.

    Another reference in Python would not do: all of Python's count as one.
    """
    holder = tensor.new_empty(()).expand(tensor.shape)
    holder.grad = tensor
    return holder


atexit.register(_outlive_threads)


class TorchCollectives:
    """Over torch.distributed's default process group."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._wire = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        sent = self._copy_to_wire(tensor)
        self._dist.all_reduce(sent)
        return sent.to(tensor.device, copy=True)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        sent = self._copy_to_wire(tensor)
        self._dist.broadcast(sent, src=0)
        return sent.to(tensor.device, copy=True)

    def _copy_to_wire(self, tensor: torch.Tensor) -> torch.Tensor:
        sent = tensor.detach().to(self._wire, copy=True).contiguous()
        _last_sent.append(_hold_in_cpp(sent))
        return sent


class HorovodCollectives:
    """Over Horovod, whose ``allreduce`` returns the result and averages by default."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._hvd.allreduce(tensor.detach().contiguous(), op=self._hvd.Sum)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._hvd.broadcast(tensor.detach().contiguous(), root_rank=0)


def in_use() -> Collectives:
    """Return the engine that runs in this process, also if the script has initialised it."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return TorchCollectives()
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized():
        return HorovodCollectives()
    return Alone()


@overload
def reduce_sum(value: Number) -> Number: ...
@overload
def reduce_sum(value: torch.Tensor) -> torch.Tensor: ...
def reduce_sum(value: Any) -> Any:
    """Return the sum of ``value`` over all ranks, on every rank; every rank must call it.

    Numbers give a number of their kind. A tensor gives a new tensor on its device: int64 for
    whole numbers and truth values, else of its own type, added up in float64.
    """
    exact = _exact(value)
    total = in_use().sum(exact)
    if not isinstance(value, torch.Tensor):
        return total.item()
    return total.to(value.device, value.dtype if value.is_floating_point() else torch.int64)


def reduce_mean(value: Any, samples: float = 1) -> Any:
    """Return the mean of ``value`` over all ranks, on every rank; every rank must call it.

    Numbers give a float, tensors a new tensor on their device (float64 for whole numbers).
    ``samples``: how many this rank's value is the mean of; a rank with 0 does not count.

    Raises ZeroDivisionError if no rank has a sample.
    """
    exact = _exact(value).to(torch.float64)
    flat = torch.cat((exact.reshape(-1), torch.ones(1, dtype=torch.float64)))
    # A rank without samples has no mean: it may be NaN, and 0 times NaN is NaN.
    weighted = flat * samples if samples else torch.zeros_like(flat)
    total = in_use().sum(weighted)
    if not total[-1]:
        raise ZeroDivisionError("reduce_mean: no rank has a sample")
    mean = (total[:-1] / total[-1]).reshape(exact.shape)
    if not isinstance(value, torch.Tensor):
        return mean.item()
    return mean.to(value.device, value.dtype if value.is_floating_point() else torch.float64)


def barrier() -> None:
    """Wait until every rank is here."""
    in_use().sum(torch.ones(1, dtype=torch.int64)).item()


def broadcast_bytes(content: bytes, collectives: Collectives) -> bytes:
    """Return rank 0's ``content`` on every rank."""
    size = collectives.broadcast(torch.tensor([len(content)], dtype=torch.int64))
    length = int(size)
    sent = torch.zeros(length, dtype=torch.uint8)
    if len(content) == length and length:
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return bytes(collectives.broadcast(sent).numpy().tobytes()) if length else b""


def gather_bytes(
    content: bytes, collectives: Collectives, rank: int, world_size: int
) -> Sequence[bytes]:
    """Return the content of every rank, by rank, on every rank."""
    sizes = torch.zeros(world_size, dtype=torch.int64)
    sizes[rank] = len(content)
    sizes = collectives.sum(sizes)
    longest = -(-int(sizes.max()) // 4) * 4
    table = torch.zeros(world_size, longest, dtype=torch.uint8)
    table[rank, : len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    # As int32, for Horovod adds no uint8. Only one rank's row is not 0, so no digit is carried.
    gathered = collectives.sum(table.view(torch.int32)).view(torch.uint8)
    return [gathered[number, : int(size)].numpy().tobytes() for number, size in enumerate(sizes)]


def _exact(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        floating = value.is_floating_point()
        return value.detach().cpu().to(torch.float64 if floating else torch.int64)
    is_whole = isinstance(value, int)
    return torch.tensor(value, dtype=torch.int64 if is_whole else torch.float64)
