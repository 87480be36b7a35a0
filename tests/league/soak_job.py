"""A healthy training that does what healthy trainings do, again and again, drawn from ``--at`` as the seed; by phases.

What all ranks do alike is drawn from ``dice``, which is equal on all of them, and what each does for itself from ``own``.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import job
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

EPOCH = 4096
LONGEST_SAVE_SECONDS = 20.0
LINES = 200
"""That a flood prints in a step."""


class SlowFile(job.SlowFile):
    """A file that takes its time once, in however many pieces it is written."""

    def write(self, data: Any) -> int:
        size = super().write(data)
        self._seconds = 0.0
        return size


class Images(job.Images):
    """So few that epochs end."""

    def __len__(self) -> int:
        return EPOCH


class Soak(job.Job):
    """One rank."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)
        self.dice = random.Random(job.asked.at)
        self.own = random.Random(f"{job.asked.at} {rank}")
        self.length = 1.0
        self.noise = 0.02
        self.workers = 0
        self.batches: Iterator[Any] = iter(())

    def save(self, seconds: float) -> None:
        torch.save(self.model.state_dict(), SlowFile(seconds))

    def take_time(self, part: str, share: float) -> None:
        """Sleep for a part of the step."""
        noise = 1 + self.noise * self.own.random()
        time.sleep(job.asked.step_ms / 1000 * share * self.length * noise)

    def train(self) -> None:
        self.model, self.step_it = job.make_model(self)
        time.sleep(6 + self.rank)  # as one that compiles
        while True:
            phase = self.dice.choice(PHASES)
            if self.rank == 0:
                print(f"PHASE {time.time():.3f} {phase.__name__}", flush=True)
            phase(self)
            self.length, self.noise, job.asked.healthy = 1.0, 0.02, ""

    def make_steps(
        self, least: int = 100, most: int = 300, each: Callable[[], Any] | None = None
    ) -> None:
        """Train for a number of steps; ``each`` is done before every one."""
        for _ in range(self.dice.randint(least, most)):
            if each is not None:
                each()
            self.step_it(self._next_batch())
            self.take_time("between", 0.05)
            self.step += 1

    def load(self, workers: int) -> None:
        """Begin an epoch."""
        images = Images(self)
        sampler = DistributedSampler(images, self.world, self.rank, seed=self.step)
        self.batches = iter(DataLoader(images, 1, sampler=sampler, num_workers=workers))
        self.workers = workers

    def _next_batch(self) -> Any:
        batch = next(self.batches, None)
        if batch is None:
            self.load(self.workers)
            batch = next(self.batches)
        return batch


def plain(soak: Soak) -> None:
    soak.make_steps()


def loads_with_workers(soak: Soak) -> None:
    soak.load(soak.dice.choice((1, 2)))
    soak.make_steps()
    soak.load(0)


def evaluates_unevenly(soak: Soak) -> None:
    soak.make_steps(50, 150)
    evaluate(soak, soak.dice.randint(10, 200) + soak.own.randint(0, 60))
    if soak.dice.random() < 0.5:
        dist.all_reduce(torch.zeros(1))
    soak.make_steps(20, 60)


def evaluate(soak: Soak, batches: int) -> None:
    with torch.no_grad():
        for _ in range(batches):
            soak.model(torch.randn(1, 32))


def rank_0_saves(soak: Soak) -> None:
    soak.make_steps(50, 150)
    seconds = soak.dice.uniform(1.0, LONGEST_SAVE_SECONDS)
    if soak.rank == 0:
        soak.save(seconds)
    if soak.dice.random() < 0.5:
        dist.barrier()
    soak.make_steps(20, 60)


def all_save(soak: Soak) -> None:
    soak.make_steps(50, 150)
    soak.save(soak.own.uniform(1.0, LONGEST_SAVE_SECONDS))
    soak.make_steps(20, 60)


def changes_learning_rate(soak: Soak) -> None:
    for group in job.SlowSGD.newest.param_groups:
        group["lr"] *= soak.dice.choice((0.5, 2.0))
    soak.make_steps()


def longer_steps(soak: Soak) -> None:
    soak.length = soak.dice.uniform(1.5, 6.0)
    soak.make_steps(40, 100)


def lengths_vary(soak: Soak) -> None:
    def draw() -> None:
        soak.length = soak.dice.uniform(0.3, 3.0)

    soak.make_steps(each=draw)


def each_rank_varies(soak: Soak) -> None:
    soak.noise = soak.dice.choice((0.05, 0.1, 0.3))
    soak.make_steps()


def accumulates(soak: Soak) -> None:
    job.asked.healthy = "accumulates"
    soak.make_steps()


def compiles_again(soak: Soak) -> None:
    time.sleep(soak.dice.uniform(2.0, 12.0) + soak.own.uniform(0.0, 3.0))
    soak.make_steps(50, 150)


def collects_garbage(soak: Soak) -> None:
    def pause() -> None:
        if soak.own.random() < 0.02:  # with the GIL held, as a collection is
            ctypes.PyDLL(None).usleep(int(1e6 * soak.own.uniform(0.1, 0.8)))

    soak.make_steps(each=pause)


def logs_much(soak: Soak) -> None:
    def flood() -> None:
        if soak.step % 20 == 0:
            print("\n".join(f"step {soak.step}: {at} of {LINES} lines" for at in range(LINES)))

    soak.make_steps(each=flood)


PHASES = (
    *(plain, loads_with_workers, evaluates_unevenly, rank_0_saves, all_save),
    *(changes_learning_rate, longer_steps, lengths_vary, each_rank_varies),
    *(accumulates, compiles_again, collects_garbage, logs_much),
)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Soak(dist.get_rank(), dist.get_world_size()).train()
