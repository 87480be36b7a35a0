"""torch.distributed and Horovod as engines of a short collective job, and their tensors."""

from __future__ import annotations

import datetime
import os
import socket
from functools import partial
from typing import Any

from distconsole_agent.probes.collectives.values import (
    PERIOD,
    Case,
    PreparedCollective,
    adds,
    limit_of,
    magnitudes,
    signs,
    stage,
)


class TensorEngine:
    """Shared by both engines: this rank's device, and operations by their names."""

    def __init__(self, torch: Any, communicator: Any, cuda_device: int | None) -> None:
        self.torch, self._communicator = torch, communicator
        self.device = torch.device("cpu")
        if cuda_device is not None:
            torch.cuda.set_device(cuda_device)
            self.device = torch.device("cuda", cuda_device)
        self.rank = self.world = 0
        torch.set_num_threads(1)

    def place(self) -> dict[str, object]:
        cuda = self.device.type == "cuda"
        return {
            "rank": self.rank,
            "world_size": self.world,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "torch": self.torch.__version__,
            "device": self.torch.cuda.get_device_name() if cuda else "cpu",
        }

    def prepare(self, case: Case, tensor: Any) -> PreparedCollective:
        """Return the operation of ``case``; raises NotImplementedError without one."""
        found = getattr(self, "_" + case.op, None)
        if found is None:
            raise NotImplementedError(f"{type(self).__name__} has no {case.op}")
        prepared: PreparedCollective = found(tensor)
        return prepared

    def barrier(self) -> None:
        self._communicator.barrier()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def _barrier(self, tensor: Any) -> PreparedCollective:
        return PreparedCollective(self.barrier, lambda: tensor)


class Torch(TensorEngine):
    """A process group over ``gloo`` or ``nccl``, joined by ``env://`` when this is made."""

    def __init__(self, backend: str, timeout_seconds: float) -> None:
        import torch
        import torch.distributed as dist

        stage("imported torch")
        self._dist, self._nccl = dist, backend == "nccl"
        super().__init__(torch, dist, int(os.environ["LOCAL_RANK"]) if self._nccl else None)
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_seconds))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def place(self) -> dict[str, object]:
        nccl = self.torch.cuda.nccl.version() if self._nccl else None
        return {
            **super().place(),
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "backend": self._dist.get_backend(),
            "nccl": None if nccl is None else ".".join(map(str, nccl)),
        }

    def greatest(self, seconds: float) -> float:
        tensor = self.torch.tensor([seconds], dtype=self.torch.float64, device=self.device)
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX)
        return float(tensor.item())

    def close(self) -> None:
        self.barrier()
        self._dist.destroy_process_group()

    def _all_reduce(self, tensor: Any) -> PreparedCollective:
        return PreparedCollective(lambda: self._dist.all_reduce(tensor), lambda: tensor)

    def _all_reduce_max(self, tensor: Any) -> PreparedCollective:
        greatest = self._dist.ReduceOp.MAX
        return PreparedCollective(
            lambda: self._dist.all_reduce(tensor, op=greatest), lambda: tensor
        )

    def _broadcast(self, tensor: Any) -> PreparedCollective:
        last = self.world - 1
        return PreparedCollective(lambda: self._dist.broadcast(tensor, src=last), lambda: tensor)

    def _reduce(self, tensor: Any) -> PreparedCollective:
        last = self.world - 1
        return PreparedCollective(lambda: self._dist.reduce(tensor, dst=last), lambda: tensor)

    def _all_gather(self, tensor: Any) -> PreparedCollective:
        whole = tensor.new_empty(tensor.numel() * self.world)
        if self._nccl:
            into = self._dist.all_gather_into_tensor
            return PreparedCollective(lambda: into(whole, tensor), lambda: whole)
        parts = list(whole.chunk(self.world))
        return PreparedCollective(lambda: self._dist.all_gather(parts, tensor), lambda: whole)

    def _reduce_scatter(self, tensor: Any) -> PreparedCollective:
        part = tensor.new_empty(tensor.numel() // self.world)
        if self._nccl:
            into = self._dist.reduce_scatter_tensor
            return PreparedCollective(lambda: into(part, tensor), lambda: part)
        parts = list(tensor.chunk(self.world))
        return PreparedCollective(lambda: self._dist.reduce_scatter(part, parts), lambda: part)

    def _all_to_all(self, tensor: Any) -> PreparedCollective:
        whole = self.torch.empty_like(tensor)
        return PreparedCollective(
            lambda: self._dist.all_to_all_single(whole, tensor), lambda: whole
        )

    def _send_recv(self, tensor: Any) -> PreparedCollective:
        dist, came = self._dist, self.torch.empty_like(tensor)
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world

        def run() -> None:
            if self.world == 1:
                came.copy_(tensor)
                return
            works = [dist.P2POp(dist.isend, tensor, after), dist.P2POp(dist.irecv, came, before)]
            for work in dist.batch_isend_irecv(works):
                work.wait()

        return PreparedCollective(run, lambda: came)


class Horovod(TensorEngine):
    """Horovod's world, joined when this is made; its variables are in the environment.

    Each operation has a name of its own kind, so that its cache of responses works as in a training.
    """

    def __init__(self) -> None:
        import torch

        stage("imported torch")
        import horovod.torch as hvd

        stage("imported Horovod")
        self._hvd = hvd
        hvd.init()
        super().__init__(torch, hvd, hvd.local_rank() if torch.cuda.is_available() else None)
        self.rank, self.world = hvd.rank(), hvd.size()

    def place(self) -> dict[str, object]:
        hvd = self._hvd
        return {
            **super().place(),
            "local_rank": hvd.local_rank(),
            "local_size": hvd.local_size(),
            "cross_rank": hvd.cross_rank(),
            "cross_size": hvd.cross_size(),
            "backend": "gloo" if hvd.gloo_enabled() else "mpi" if hvd.mpi_enabled() else "",
        }

    def greatest(self, seconds: float) -> float:
        mine = self.torch.tensor([seconds], dtype=self.torch.float64)
        return float(self._hvd.allgather(mine, name="greatest").max())

    def close(self) -> None:
        self.barrier()
        self._hvd.shutdown()

    def _all_reduce(self, tensor: Any) -> PreparedCollective:
        hvd = self._hvd
        name = f"all_reduce.{tensor.dtype}.{tensor.numel()}"
        return PreparedCollective(
            lambda: hvd.allreduce_(tensor, name=name, op=hvd.Sum), lambda: tensor
        )

    def _broadcast(self, tensor: Any) -> PreparedCollective:
        hvd, last = self._hvd, self.world - 1
        name = f"broadcast.{tensor.dtype}.{tensor.numel()}"
        return PreparedCollective(lambda: hvd.broadcast_(tensor, last, name=name), lambda: tensor)

    def _all_gather(self, tensor: Any) -> PreparedCollective:
        return self._kept(self._hvd.allgather, tensor, "all_gather")

    def _reduce_scatter(self, tensor: Any) -> PreparedCollective:
        work = partial(self._hvd.reducescatter, op=self._hvd.Sum)
        return self._kept(work, tensor, "reduce_scatter")

    def _all_to_all(self, tensor: Any) -> PreparedCollective:
        return self._kept(self._hvd.alltoall, tensor, "all_to_all")

    def _kept(self, work: Any, tensor: Any, op: str) -> PreparedCollective:
        """Return an operation that makes its own result, which Horovod's API gives no buffer for."""
        name = f"{op}.{tensor.dtype}.{tensor.numel()}"
        came: list[Any] = [None]

        def run() -> None:
            came[0] = work(tensor, name=name)

        return PreparedCollective(run, lambda: came[0])


class TensorValues:
    """Every rank's input and the right results, as patterns that repeat."""

    def __init__(self, torch: Any, world: int, seed: int) -> None:
        self._torch, self._world, self._seed = torch, world, seed
        self._patterns: dict[tuple[str, int, bool], Any] = {}
        self._totals: dict[tuple[str, str], Any] = {}

    def of(self, case: Case, rank: int, first: int, count: int, shift: int) -> Any:
        """Return ``count`` values of a rank's input from index ``first``, in the case's type."""
        summed = case.op in ("all_reduce", "reduce", "reduce_scatter")
        pattern = self._pattern(case.dtype, rank, summed)
        return self._tiled(pattern, case.dtype, first + shift, count)

    def reduced(self, case: Case, first: int, count: int, shift: int) -> Any:
        """Return the sum over all ranks; the greatest for ``all_reduce_max``."""
        key = (case.dtype, "max" if case.op == "all_reduce_max" else "sum")
        if key not in self._totals:
            summed = key[1] == "sum"
            total = self._pattern(case.dtype, 0, summed).clone()
            for rank in range(1, self._world):
                part = self._pattern(case.dtype, rank, summed)
                total = total + part if summed else self._torch.maximum(total, part)
            self._totals[key] = total
        return self._tiled(self._totals[key], case.dtype, first + shift, count)

    def joined(self, parts: list[Any]) -> Any:
        return self._torch.cat(parts)

    def buffer(self, values: Any, engine: Any) -> Any:
        return values.to(engine.device)

    def compare(self, _case: Case, result: Any, right: Any) -> tuple[int, int]:
        found, count = result.cpu().reshape(-1), right.numel()
        return int((found != right).sum()) if found.numel() == count else count, count

    def clear(self, given: Any) -> None:
        """Zero an input: repeated in place a sum would run out of its type."""
        given.zero_()

    def _pattern(self, dtype: str, rank: int, summed: bool) -> Any:
        limit = limit_of(dtype, self._world)
        key = (dtype, rank, summed)
        if key not in self._patterns:
            index = self._torch.arange(PERIOD, dtype=self._torch.int64)
            numbers = magnitudes(index, rank, self._seed, limit) * signs(index, self._seed)
            live = adds(dtype, rank, limit) or not summed
            self._patterns[key] = numbers if live else numbers * 0
        return self._patterns[key]

    def _tiled(self, pattern: Any, dtype: str, first: int, count: int) -> Any:
        turned = self._torch.roll(pattern, -(first % PERIOD)).to(getattr(self._torch, dtype))
        return turned.repeat(-(-count // PERIOD) or 1)[:count]
