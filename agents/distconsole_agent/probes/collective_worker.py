"""Script: one rank of a short torch job that verifies collectives to the last bit and times them.

``collective_worker.py SECONDS BACKEND JOB``; rank and rendezvous are in the environment, as torch's
``env://`` wants them. JOB is JSON: ``{"seed", "timeout_seconds", "cases": [{"op", "dtype",
"elements", "iterations"}]}``. Each line printed is a mark and an object: ``stage`` (how far the rank
came), ``group`` (what it finds itself to be), ``case`` (one verified case).

Inputs are a function of seed, index and rank, so that every rank knows the right result by itself.
They are whole numbers, small enough that every partial sum is exact in the type whatever the order
of addition: the tolerance is zero (the method of nccl-tests' verifiable.cu).
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import sys
import time
from typing import Any

MARK = "distconsole-rank "
MANTISSA_BITS = {
    "float16": 11,
    "bfloat16": 8,
    "float32": 24,
    "float64": 53,
    "int32": 24,
    "int64": 53,
}
VERIFIED_VALUES = 1 << 24
"""Input values that a rank computes to verify one case, over all ranks; the rest is timed only."""


def say(**what: Any) -> None:
    """Print one line at once."""
    sys.stdout.write(MARK + json.dumps(what) + "\n")
    sys.stdout.flush()


def stage(name: str) -> None:
    """Say how far this rank is."""
    say(stage=name, t=time.time())


def magnitudes(index: Any, rank: int, seed: int, limit: int) -> Any:
    """Whole numbers from 0 to ``limit`` - 1, for each index, of one rank."""
    mixed = index * 2654435761 + rank * 40503 + seed * 7919
    mixed = (mixed ^ (mixed >> 15)) & 0x7FFFFFFF
    mixed = (mixed * 48271) & 0x7FFFFFFF
    return (mixed ^ (mixed >> 11)) % limit


def signs(index: Any, seed: int) -> Any:
    """+1 or -1 for each index, the same on every rank, so that sums do not cancel by chance."""
    return 1 - 2 * (((index * 40503 + seed) >> 3) & 1)


class Case:
    """One collective of one type and size."""

    def __init__(self, job: dict[str, Any], torch: Any, dist: Any, device: Any) -> None:
        self.op, self.dtype_name = job["op"], job["dtype"]
        self.elements, self.iterations = int(job["elements"]), int(job["iterations"])
        self.torch, self.dist, self.device = torch, dist, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.dtype = getattr(torch, self.dtype_name)
        self.limit = max(2, (1 << MANTISSA_BITS[self.dtype_name]) // (2 * self.world))
        self.limit = min(self.limit, 1 << 20)

    def values(self, rank: int, seed: int, count: int | None = None) -> Any:
        """The input of ``rank`` as whole numbers."""
        index = self.torch.arange(
            self.elements if count is None else count, dtype=self.torch.int64
        )
        numbers = magnitudes(index, rank, seed, self.limit) * signs(index, seed)
        if self.op in ("all_reduce", "reduce_scatter") and self.dtype_name == "bfloat16":
            # Beyond 256 ranks even zeros and ones would not add up exactly in eight bits.
            numbers = numbers if rank < 256 // max(1, self.limit - 1) else numbers * 0
        return numbers

    def mine(self, seed: int) -> Any:
        """This rank's input."""
        return self.values(self.rank, seed).to(self.dtype).to(self.device)

    def run_all_reduce(self, tensor: Any, reduce_op: Any = None) -> Any:
        """In place."""
        self.dist.all_reduce(tensor, op=reduce_op or self.dist.ReduceOp.SUM)
        return tensor

    def run_all_reduce_max(self, tensor: Any) -> Any:
        """In place."""
        return self.run_all_reduce(tensor, self.dist.ReduceOp.MAX)

    def run_broadcast(self, tensor: Any) -> Any:
        """From the last rank."""
        self.dist.broadcast(tensor, src=self.world - 1)
        return tensor

    def run_all_gather(self, tensor: Any) -> Any:
        """All inputs, in the order of ranks."""
        parts = [self.torch.empty_like(tensor) for _ in range(self.world)]
        self.dist.all_gather(parts, tensor)
        return self.torch.cat(parts)

    def run_reduce_scatter(self, tensor: Any) -> Any:
        """The sum of what every rank holds for this one."""
        part = self.torch.empty_like(tensor)
        self.dist.reduce_scatter(part, [tensor.clone() for _ in range(self.world)])
        return part

    def run_all_to_all(self, tensor: Any) -> Any:
        """Everybody sends the same to everybody: the result is an all-gather's."""
        result = self.torch.empty(self.elements * self.world, dtype=self.dtype, device=self.device)
        self.dist.all_to_all_single(result, tensor.repeat(self.world))
        return result

    def expected(self, seed: int, count: int) -> Any:
        """The first ``count`` right values, computed here alone."""
        torch = self.torch
        if self.op == "broadcast":
            return self.values(self.world - 1, seed, count)
        if self.op in ("all_gather", "all_to_all"):
            return torch.cat([self.values(rank, seed) for rank in range(self.world)])
        parts = (self.values(rank, seed, count) for rank in range(self.world))
        total = next(parts)
        for part in parts:
            total = torch.maximum(total, part) if self.op == "all_reduce_max" else total + part
        return total

    def wrong(self, seed: int) -> tuple[int, int]:
        """Run once and count the values that are not bit for bit right, and those looked at."""
        result = getattr(self, "run_" + self.op)(self.mine(seed))
        self.synchronize()
        count = min(self.elements, max(1, VERIFIED_VALUES // self.world))
        expected = self.expected(seed, count).to(self.dtype)
        result = result.cpu()[: expected.numel()]
        return int((result != expected).sum()), expected.numel()

    def seconds(self, seed: int) -> float:
        """Mean seconds of one operation over the iterations."""
        tensor, run = self.mine(seed), getattr(self, "run_" + self.op)
        self.dist.barrier()
        self.synchronize()
        began = time.perf_counter()
        for _ in range(self.iterations):
            run(tensor)
        self.synchronize()
        return (time.perf_counter() - began) / self.iterations

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def report(self, seed: int) -> None:
        """Verify (which warms up too), then time."""
        wrong, verified = self.wrong(seed)
        took = self.seconds(seed + 1) if self.iterations else None
        say(
            case=self.op,
            dtype=self.dtype_name,
            elements=self.elements,
            element_bytes=self.torch.empty(0, dtype=self.dtype).element_size(),
            wrong=wrong,
            verified=verified,
            time_us=None if took is None else took * 1e6,
        )


def run_case(job: dict[str, Any], seed: int, torch: Any, dist: Any, device: Any) -> None:
    """One case; a type or an operation that this build does not have is said, not a failure."""
    stage(f"case {job['op']} {job['dtype']} {job['elements']}")
    try:
        Case(job, torch, dist, device).report(seed)
    except (NotImplementedError, AttributeError, TypeError) as error:
        say(
            case=job["op"],
            dtype=job["dtype"],
            elements=job["elements"],
            unsupported=str(error)[:300],
        )
    except RuntimeError as error:
        text = str(error)
        lacks = (
            "not support",
            "nsupported",
            "not implemented",
            "Invalid scalar type",
            "not built",
        )
        if not any(word in text for word in lacks):
            raise
        say(case=job["op"], dtype=job["dtype"], elements=job["elements"], unsupported=text[:300])


def main(seconds: float, backend: str, job: dict[str, Any]) -> None:
    """Meet the others, do every case, part in order."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 5.0)
    sys.path[:] = [entry for entry in sys.path if entry and not entry.startswith("/dev/fd")]
    stage("started")
    import torch
    import torch.distributed as dist

    stage("imported torch")
    device = torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group(
        backend, timeout=datetime.timedelta(seconds=float(job["timeout_seconds"]))
    )
    stage("joined the group")
    say(
        group={
            "rank": dist.get_rank(),
            "world_size": dist.get_world_size(),
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "torch": torch.__version__,
            "backend": dist.get_backend(),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if backend == "nccl" else None,
        }
    )
    for number, case in enumerate(job["cases"]):
        run_case(case, int(job["seed"]) + 2 * number, torch, dist, device)
    stage("done")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
