"""Horovod as the engine of a short collective job; its variables are in the environment."""

from __future__ import annotations

import os
import socket
from typing import Any

from distconsole_agent.probes.collectives.values import Case, Prepared, stage


class Horovod:
    """Horovod's world, joined when this is made.

    Each operation has a name of its own kind, so that its cache of responses works as in a training.
    """

    def __init__(self) -> None:
        import torch

        stage("imported torch")
        import horovod.torch as hvd

        stage("imported Horovod")
        self.torch, self._hvd = torch, hvd
        torch.set_num_threads(1)
        hvd.init()
        self.rank, self.world = hvd.rank(), hvd.size()
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(hvd.local_rank())
        self.device = torch.device("cuda", hvd.local_rank()) if cuda else torch.device("cpu")

    def place(self) -> dict[str, Any]:
        hvd, torch = self._hvd, self.torch
        return {
            "rank": self.rank,
            "world_size": self.world,
            "local_rank": hvd.local_rank(),
            "local_size": hvd.local_size(),
            "cross_rank": hvd.cross_rank(),
            "cross_size": hvd.cross_size(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "torch": torch.__version__,
            "backend": "gloo" if hvd.gloo_enabled() else "mpi" if hvd.mpi_enabled() else "",
            "device": "cpu" if self.device.type == "cpu" else torch.cuda.get_device_name(),
        }

    def prepare(self, case: Case, tensor: Any) -> Prepared:
        """Return the operation of ``case`` on ``tensor``; NotImplementedError for what Horovod has not."""
        found = getattr(self, "_" + case.op, None)
        if found is None:
            raise NotImplementedError(f"Horovod has no {case.op}")
        prepared: Prepared = found(tensor)
        return prepared

    def barrier(self) -> None:
        self._hvd.barrier()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def greatest(self, seconds: float) -> float:
        """Return the greatest of all ranks' values."""
        mine = self.torch.tensor([seconds], dtype=self.torch.float64)
        return float(self._hvd.allgather(mine, name="greatest").max())

    def close(self) -> None:
        self._hvd.barrier()
        self._hvd.shutdown()

    def _all_reduce(self, tensor: Any) -> Prepared:
        hvd = self._hvd
        name = f"all_reduce.{tensor.dtype}.{tensor.numel()}"
        return Prepared(lambda: hvd.allreduce_(tensor, name=name, op=hvd.Sum), lambda: tensor)

    def _broadcast(self, tensor: Any) -> Prepared:
        hvd, last = self._hvd, self.world - 1
        name = f"broadcast.{tensor.dtype}.{tensor.numel()}"
        return Prepared(lambda: hvd.broadcast_(tensor, last, name=name), lambda: tensor)

    def _all_gather(self, tensor: Any) -> Prepared:
        return self._kept(self._hvd.allgather, tensor, "all_gather")

    def _reduce_scatter(self, tensor: Any) -> Prepared:
        hvd = self._hvd
        return self._kept(
            lambda given, name: hvd.reducescatter(given, name=name, op=hvd.Sum),
            tensor,
            "reduce_scatter",
        )

    def _all_to_all(self, tensor: Any) -> Prepared:
        return self._kept(self._hvd.alltoall, tensor, "all_to_all")

    def _barrier(self, tensor: Any) -> Prepared:
        return Prepared(self._hvd.barrier, lambda: tensor)

    def _kept(self, work: Any, tensor: Any, op: str) -> Prepared:
        """Return an operation that makes its own result, which Horovod's API gives no buffer for."""
        name = f"{op}.{tensor.dtype}.{tensor.numel()}"
        came: list[Any] = [None]

        def run() -> None:
            came[0] = work(tensor, name=name)

        return Prepared(run, lambda: came[0])
