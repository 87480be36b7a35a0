"""A rank's share of a data set, batch by batch, with its place in it."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distconsole_training.api.world import World


class Share(Sampler):  # type: ignore[misc]  # torch is not needed for checking types
    """The indices of one rank in one epoch, from a place on.

    All ranks shuffle alike (by seed and epoch) and take every ``world_size``-th index: a step
    of all ranks then reads the same samples as the step of one rank with the whole batch. At an
    epoch's end up to ``world_size - 1`` samples are left out, so that all ranks do as many steps.
    """

    def __init__(
        self, total: int, world: World, *, shuffle: bool, seed: int, whole_batch: int | None
    ) -> None:
        self.total = total
        self.epoch = 0
        self.first = 0
        self._world = world
        self._shuffle = shuffle
        self._seed = seed
        self._unit = whole_batch or world.world_size

    def __len__(self) -> int:
        return self.size_from(self.first)

    def size_from(self, first: int) -> int:
        """Return how many indices a rank has from a place to the epoch's end."""
        left = self.total - first
        return (left - left % self._unit) // self._world.world_size

    def __iter__(self) -> Iterator[int]:
        if self._shuffle:
            generator = torch.Generator()
            generator.manual_seed(self._seed + self.epoch)
            order = torch.randperm(self.total, generator=generator)[self.first :].tolist()
        else:
            order = list(range(self.first, self.total))
        ranks = self._world.world_size
        return iter(order[self._world.rank : len(self) * ranks : ranks])


class Batches:
    """One rank's batches, on its device. Each pass is an epoch, or the rest of one that was begun.

    A checkpoint keeps the place: a job that goes on later, on any number of ranks, reads exactly
    the samples that were not trained on yet.

    Attributes:
        batch_size: How many samples a rank reads at once.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        world: World,
        *,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        accumulate: int,
        before_batch: Callable[[int], None],
        options: dict[str, Any],
    ) -> None:
        self.batch_size = batch_size
        self._device = world.device
        self._step_samples = batch_size * world.world_size
        self._accumulate = accumulate
        self._before_batch = before_batch
        self._share = Share(
            len(dataset),
            world,
            shuffle=shuffle,
            seed=seed,
            whole_batch=self._step_samples if drop_last else None,
        )
        if not len(self._share):
            raise ValueError(
                f"{len(dataset)} samples are too few for {world.world_size} ranks "
                f"with {batch_size} each" + (" and drop_last" if drop_last else "")
            )
        self._read = self._trained = 0
        self._loader = DataLoader(dataset, batch_size=batch_size, sampler=self._share, **options)

    @property
    def epoch(self) -> int:
        """The epoch of the pass going on or to come, from 0."""
        return self._share.epoch

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        return self._batches_from(0)

    @property
    def steps(self) -> int:
        """How often the optimizer steps in a whole epoch."""
        return -(-len(self) // self._accumulate)

    def __iter__(self) -> Iterator[Any]:
        share = self._share
        share.first = self._read = self._trained
        left = self._batches_from(share.first)
        for batch in self._loader:
            self._read = min(self._read + self._step_samples, self._end)
            self._before_batch(left)
            left -= 1
            yield to_device(batch, self._device)
        share.epoch += 1
        share.first = self._read = self._trained = 0

    def trained(self) -> None:
        """Note that the optimizer has made use of everything that was read."""
        self._trained = self._read

    def state_dict(self) -> dict[str, int]:
        """Return the place: the epoch, and how many samples of it all ranks have trained on."""
        if self._trained >= self._end:
            return {"epoch": self.epoch + 1, "trained": 0, "samples": self._share.total}
        return {"epoch": self.epoch, "trained": self._trained, "samples": self._share.total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a place; ValueError if it is one in another data set."""
        if state["samples"] != self._share.total:
            raise ValueError(
                f"the checkpoint is of a data set of {state['samples']} samples, "
                f"this one has {self._share.total}"
            )
        self._share.epoch = state["epoch"]
        self._share.first = self._read = self._trained = state["trained"]

    @property
    def _end(self) -> int:
        """How many samples of the epoch all ranks read together, if they read on to its end."""
        ranks = self._step_samples // self.batch_size
        return self._share.first + len(self._share) * ranks

    def _batches_from(self, first: int) -> int:
        return -(-self._share.size_from(first) // self.batch_size)


def to_device(batch: Any, device: torch.device) -> Any:
    """Return ``batch``, however nested, with its tensors on ``device``."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return ``value`` with ``function`` applied to each tensor in its dictionaries, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        mapped = copy(value)
        for name, inner in value.items():
            mapped[name] = map_tensors(function, inner)
        return mapped
    if isinstance(value, (list, tuple)):
        inner_values = [map_tensors(function, inner) for inner in value]
        return (
            type(value)(*inner_values) if hasattr(value, "_fields") else type(value)(inner_values)
        )
    return value
