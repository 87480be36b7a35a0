"""A training as people write it, with one fault at one moment, by arguments; a step takes its time by sleeping."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Any

AT_START = ("start", "import", "init")
options = argparse.ArgumentParser()
options.add_argument("--engine", default="ddp")
options.add_argument("--fault", default="")
options.add_argument("--place", default="loop")
options.add_argument("--odd", default="", help="ranks, with commas")
options.add_argument("--at", type=int, default=10)
options.add_argument("--steps", type=int, default=100000)
options.add_argument("--slow-ms", type=float, default=0.0)
options.add_argument("--step-ms", type=float, default=30.0)
options.add_argument("--workers", type=int, default=0)
options.add_argument("--spawn", type=int, default=0)
options.add_argument("--healthy", default="")
options.add_argument("--debug", help="torch's own look at collectives: DETAIL")
options.add_argument("--local-rank", "--local_rank", type=int)
asked = options.parse_args()
rank_of_environment = int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "-1")))
is_odd = str(rank_of_environment) in asked.odd.split(",")


def announce() -> None:
    print(f"FAULT {time.time():.3f}", flush=True)


def wait_at_start() -> None:
    announce()
    time.sleep(1e6)  # at: start


if asked.place == "start" and is_odd:
    wait_at_start()
if asked.place == "import" and is_odd:
    announce()
    import slow_import  # type: ignore[import-not-found]  # noqa: F401

if asked.debug:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = asked.debug

import faults  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

torch.set_num_threads(1)


class SlowFile:
    """A file on a disk that takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def write(self, data: Any) -> int:
        time.sleep(self._seconds)  # at: saves
        return len(data)

    def flush(self) -> None:
        pass


class Images(torch.utils.data.Dataset[Any]):
    """Random ones; reading one takes a part of the step."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __len__(self) -> int:
        return 1 << 22

    def __getitem__(self, index: int) -> Any:
        job = self._job
        job.read += 1
        if torch.utils.data.get_worker_info() is not None and job.read == asked.at:
            fail_in_worker(job)
        job.take_time("data", 0.2)
        return torch.randn(32, generator=torch.Generator().manual_seed(index))


def fail_in_worker(job: Job) -> None:
    if not job.odd or not asked.fault.startswith("worker"):
        return
    announce()
    if asked.fault == "worker_stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if asked.fault == "worker_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if asked.fault == "worker_out_of_memory":
        faults.FAULTS["out_of_memory"](job)
    while asked.fault == "worker_busy":
        pass
    time.sleep(1e6)


class Slow(torch.autograd.Function):
    """Takes its time in backward."""

    @staticmethod
    def forward(context: Any, value: Any, job: Any) -> Any:
        context.job = job
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradient: Any) -> Any:
        context.job.happens("backward")
        context.job.take_time("backward", 0.4)
        return gradient[0], None


class Net(nn.Module):
    """Two layers and its time."""

    def __init__(self, job: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 4)
        self.job = [job]

    def forward(self, batch: Any) -> Any:
        self.job[0].happens("forward")
        self.job[0].take_time("forward", 0.3)
        return self.second(Slow.apply(self.first(batch).relu(), self.job[0]))


class SlowSGD(torch.optim.SGD):
    """SGD that takes its time."""

    job: Any = None
    newest: Any = None

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        SlowSGD.newest = self

    def step(self, closure: Any = None) -> Any:
        self.job.happens("optimizer")
        self.job.take_time("optimizer", 0.1)
        return super().step(closure)


class Job:
    """One rank."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.odds = [int(each) for each in asked.odd.split(",") if each]
        self.odd = rank in self.odds
        self.step = self.read = 0
        self.place = asked.place
        self.keep: Any = None
        self.done = False
        self.model: Any = None

    def take_time(self, part: str, share: float) -> None:
        """Sleep for a part of the step, and for what this rank is slow."""
        late = self.odd and asked.fault == "slow" and asked.place == part and self.step >= asked.at
        noise = (self.step * 7919 + self.rank * 104729) % 100 / 100
        noise *= 0.3 if asked.healthy == "noisy" else 0.02
        time.sleep((asked.step_ms * share * (1 + noise) + (asked.slow_ms if late else 0.0)) / 1000)

    def happens(self, place: str) -> None:
        """Have the fault happen, once."""
        if self.done or self.step != asked.at or asked.place != place:
            return
        self.done = True
        if self.odd:
            announce()
        if asked.fault in faults.FAULTS:
            faults.FAULTS[asked.fault](self)

    def evaluate(self, seconds: float) -> None:
        time.sleep(seconds)  # at: evaluates

    def save(self, seconds: float) -> None:
        torch.save(self.model.state_dict(), SlowFile(seconds))

    def train(self) -> None:
        self.model, step_it = make_model(self)
        images = Images(self)
        sampler = DistributedSampler(images, self.world, self.rank, shuffle=False)
        if asked.fault == "same_batch":
            sampler = DistributedSampler(images, 1, 0, shuffle=False)
        for batch in DataLoader(images, 1, sampler=sampler, num_workers=asked.workers):
            if self.step == asked.steps:
                break
            self.happens("loop")
            step_it(batch)
            self.happens("between")
            self.take_time("between", 0.05)
            self.live_well()
            self.step += 1

    def live_well(self) -> None:
        """Do what a healthy training does besides steps."""
        kind, step = asked.healthy, self.step
        if kind == "saves" and step and step % 60 == 0 and self.rank == 0:
            torch.save(self.model.state_dict(), SlowFile(0.4))
        if kind == "compiles" and step == 0:
            time.sleep(6 + self.rank)
        if kind == "evaluates" and step and step % 80 == 0:
            self.evaluate(1.5 + 0.7 * self.rank)
        if kind == "validates_long" and step == 60:
            self.evaluate(8.0)
        if kind == "logs" and self.rank == 0 and step % 20 == 0:
            time.sleep(0.05)
        if kind == "uneven":
            time.sleep((step * 7919 + self.rank * 104729) % 1000 / 1000 * asked.step_ms / 1000)


def make_model(job: Job) -> tuple[Any, Any]:
    """Return the model and what does one step with it."""
    net = Net(job)
    if asked.engine == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(net.first)
        fully_shard(net.second)
        fully_shard(net)
    model: Any = nn.parallel.DistributedDataParallel(net) if asked.engine == "ddp" else net
    SlowSGD.job = job
    optimizer: Any = SlowSGD(model.parameters(), lr=1e-4)
    if asked.engine == "hvd":
        import horovod.torch as hvd  # type: ignore[import-untyped]

        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def step_it(batch: Any) -> None:
        parts = 4 if asked.healthy == "accumulates" else 1
        if job.step % parts == 0:
            optimizer.zero_grad()
        loss = model(batch).square().mean()
        last = job.step % parts == parts - 1
        if asked.engine == "ddp" and not last:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
        job.happens("gradient")
        if asked.engine == "none":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        if last:
            optimizer.step()

    return model, step_it


def main(rank: int, world: int) -> None:
    job = Job(rank, world)
    if asked.place == "init" and job.odd:
        announce()
        faults.FAULTS[asked.fault](job)
    print("MEETS", flush=True)
    if asked.engine == "hvd":
        import horovod.torch as hvd

        hvd.init()
    else:
        dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        job.train()
    except faults.LeaveLoopError:
        leave(job)
    if asked.engine != "hvd":
        dist.destroy_process_group()


def leave(job: Job) -> None:
    """Do what comes behind the loop, on a rank that has fewer batches."""
    if asked.healthy == "then_barrier":
        dist.barrier()  # at: then_barrier
    if asked.healthy == "then_evaluates":
        job.evaluate(1e6)
    if asked.healthy == "then_reports":
        time.sleep(1e6)  # at: then_reports


def in_spawned(local: int, first: int, world: int) -> None:
    main(first + local, world)


if __name__ == "__main__":
    if asked.spawn:
        node = int(os.environ["NODE_RANK"])
        arguments = (node * asked.spawn, asked.spawn * int(os.environ.get("NNODES", "2")))
        torch.multiprocessing.spawn(in_spawned, arguments, nprocs=asked.spawn)
    else:
        world = os.environ.get("WORLD_SIZE") or os.environ["HOROVOD_SIZE"]
        main(rank_of_environment, int(world))
    sys.exit(0)
