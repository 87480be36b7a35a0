"""torch.distributed as the engine of a short collective job; the ranks meet by ``env://``."""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any

from distconsole_agent.probes.collectives.values import Case, Prepared, stage


class Torch:
    """A process group over ``backend`` (``gloo``, ``nccl``), joined when this is made."""

    def __init__(self, backend: str, timeout_seconds: float) -> None:
        import torch
        import torch.distributed as dist

        stage("imported torch")
        self.torch, self._dist = torch, dist
        self.device = torch.device("cpu")
        self._nccl = backend == "nccl"
        if self._nccl:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.set_num_threads(1)
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_seconds))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def place(self) -> dict[str, Any]:
        torch, cuda = self.torch, self.device.type == "cuda"
        return {
            "rank": self.rank,
            "world_size": self.world,
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "torch": torch.__version__,
            "backend": self._dist.get_backend(),
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if self._nccl else None,
        }

    def prepare(self, case: Case, tensor: Any) -> Prepared:
        prepared: Prepared = getattr(self, "_" + case.op)(tensor)
        return prepared

    def barrier(self) -> None:
        self._dist.barrier()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def greatest(self, seconds: float) -> float:
        """Return the greatest of all ranks' values."""
        tensor = self.torch.tensor([seconds], dtype=self.torch.float64, device=self.device)
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX)
        return float(tensor.item())

    def close(self) -> None:
        self._dist.barrier()
        self._dist.destroy_process_group()

    def _all_reduce(self, tensor: Any) -> Prepared:
        return Prepared(lambda: self._dist.all_reduce(tensor), lambda: tensor)

    def _all_reduce_max(self, tensor: Any) -> Prepared:
        greatest = self._dist.ReduceOp.MAX
        return Prepared(lambda: self._dist.all_reduce(tensor, op=greatest), lambda: tensor)

    def _broadcast(self, tensor: Any) -> Prepared:
        last = self.world - 1
        return Prepared(lambda: self._dist.broadcast(tensor, src=last), lambda: tensor)

    def _reduce(self, tensor: Any) -> Prepared:
        last = self.world - 1
        return Prepared(lambda: self._dist.reduce(tensor, dst=last), lambda: tensor)

    def _all_gather(self, tensor: Any) -> Prepared:
        whole = tensor.new_empty(tensor.numel() * self.world)
        if self._nccl:
            into = self._dist.all_gather_into_tensor
            return Prepared(lambda: into(whole, tensor), lambda: whole)
        parts = list(whole.chunk(self.world))
        return Prepared(lambda: self._dist.all_gather(parts, tensor), lambda: whole)

    def _reduce_scatter(self, tensor: Any) -> Prepared:
        part = tensor.new_empty(tensor.numel() // self.world)
        if self._nccl:
            into = self._dist.reduce_scatter_tensor
            return Prepared(lambda: into(part, tensor), lambda: part)
        parts = list(tensor.chunk(self.world))
        return Prepared(lambda: self._dist.reduce_scatter(part, parts), lambda: part)

    def _all_to_all(self, tensor: Any) -> Prepared:
        whole = self.torch.empty_like(tensor)
        return Prepared(lambda: self._dist.all_to_all_single(whole, tensor), lambda: whole)

    def _send_recv(self, tensor: Any) -> Prepared:
        dist, came = self._dist, self.torch.empty_like(tensor)
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world

        def run() -> None:
            if self.world == 1:
                came.copy_(tensor)
                return
            works = [dist.P2POp(dist.isend, tensor, after), dist.P2POp(dist.irecv, came, before)]
            for work in dist.batch_isend_irecv(works):
                work.wait()

        return Prepared(run, lambda: came)

    def _barrier(self, tensor: Any) -> Prepared:
        return Prepared(self._dist.barrier, lambda: tensor)
