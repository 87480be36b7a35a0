"""One way to train, chosen by a word: the loop around it is the same for all of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from distconsole_training.api.checkpoints import Checkpoints
from distconsole_training.api.loading import Batches, map_tensors
from distconsole_training.api.placement import SetupError
from distconsole_training.api.world import World, current_world

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch.optim import Optimizer

    Prepared = tuple[nn.Module, Optimizer]

COMPRESSIONS = ("none", "fp16", "bf16")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Type of the model's computations; its parameters stay float32."""


class Autocast(nn.Module):  # type: ignore[misc]  # torch is not needed for checking types
    """A module under autocast that answers in float32, in each of DataParallel's threads as well."""

    def __init__(self, module: nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self._device_type = device_type
        self._dtype = dtype

    def forward(self, *args: Any, **options: Any) -> Any:
        with torch.autocast(self._device_type, dtype=self._dtype):
            answer = self.module(*args, **options)
        return map_tensors(lambda each: each.float() if each.is_floating_point() else each, answer)


class Settings(NamedTuple):
    """Settings of every strategy; ``strategy()`` describes each."""

    precision: str
    compression: str
    accumulate: int
    clip: float | None
    options: Mapping[str, Any]


class Strategy:
    """Training in one process; the other strategies change the parts that differ.

    Attributes:
        model: The model as the script made it, without wrappers: to evaluate, to save.
        optimizer: The optimizer to give to a schedule.
    """

    model: nn.Module
    optimizer: Optimizer

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self._scaler = _scaler_for(settings.precision, world.device)
        self._loaders: list[Batches] = []
        self._done = 0
        self._group = settings.accumulate

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> Prepared:
        """Return the network that the loop calls instead of ``model``, and the optimizer to give a schedule.

        The model is moved to the rank's device; all ranks begin with rank 0's weights.
        """
        self.model = model.to(self.world.device)
        network, self.optimizer = self._wrap(self.model, optimizer)
        self._share_gradients(is_last=self._group == 1)
        return network, self.optimizer

    def loader(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        global_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> Batches:
        """Return this rank's share of a data set (anything with a length and indices), in batches.

        Args:
            batch_size: Samples that a rank reads at once, or:
            global_batch: samples of one optimizer step, over all ranks and accumulated batches.
            shuffle: In another order each epoch, by ``seed``, the same on all ranks.
            drop_last: Leave out the last, smaller batch of an epoch.
            options: For DataLoader (``num_workers``, ``pin_memory``, ``collate_fn``…).
        """
        batches = Batches(
            dataset,
            self._batch_size(batch_size, global_batch),
            self.world,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            accumulate=self.settings.accumulate,
            before_batch=self._before_batch,
            options=options,
        )
        self._loaders.append(batches)
        return batches

    def step(self, loss: torch.Tensor) -> bool:
        """Train on one batch; ``loss`` is the mean of its samples on this rank.

        Returns True if the optimizer's turn has come, every ``accumulate`` batches: then the gradients
        of all ranks were averaged, clipped and used (or, in fp16, left out because they overflowed).
        """
        share = loss if self._group == 1 else loss / self._group
        self._scaler.scale(share).backward()
        self._done += 1
        if self._done < self._group:
            self._share_gradients(is_last=self._done + 1 == self._group)
            return False
        self._update()
        self._done, self._group = 0, self.settings.accumulate
        self._share_gradients(is_last=self._group == 1)
        for loader in self._loaders:
            loader.trained()
        return True

    def checkpoints(self, folder: str | Path, *, keep: int = 3, **parts: Any) -> Checkpoints:
        """Return checkpoints of everything here, and of ``parts`` (a schedule, say); see ``Checkpoints``."""
        own = {"model": self.model, "optimizer": self.optimizer, "scaler": self._scaler}
        places = {f"loader{number}": loader for number, loader in enumerate(self._loaders)}
        return Checkpoints(folder, world=self.world, keep=keep, **own, **places, **parts)

    def _wrap(self, model: nn.Module, optimizer: Optimizer) -> Prepared:
        return self._in_precision(model), optimizer

    def _in_precision(self, model: nn.Module) -> nn.Module:
        if self.settings.precision == "fp32":
            return model
        dtype = PRECISIONS[self.settings.precision]
        return Autocast(model, self.world.device.type, dtype)

    def _share_gradients(self, *, is_last: bool) -> None:
        """Say before a forward whether its backward completes the gradients."""

    def _update(self) -> None:
        if self.settings.clip is not None:
            self._scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad()

    def _before_batch(self, left: int) -> None:
        # The last group of an epoch may be smaller: its mean is over its own batches.
        if self._done == 0:
            self._group = min(self.settings.accumulate, left)
            self._share_gradients(is_last=self._group == 1)

    def _batch_size(self, batch_size: int | None, global_batch: int | None) -> int:
        if (batch_size is None) == (global_batch is None):
            raise ValueError("either batch_size= or global_batch= is needed")
        if batch_size is not None:
            return batch_size
        assert global_batch is not None
        shares = self.world.world_size * self.settings.accumulate
        if global_batch < 1 or global_batch % shares:
            raise ValueError(
                f"global_batch={global_batch} cannot be shared equally by {self.world.world_size} "
                f"ranks with accumulate={self.settings.accumulate}"
            )
        return global_batch // shares


class SeveralGpus(Strategy):
    """``dp``: torch's DataParallel, one process for all GPUs of a host."""

    def _wrap(self, model: nn.Module, optimizer: Optimizer) -> Prepared:
        inner = self._in_precision(model)
        if self.world.device.type != "cuda":
            return inner, optimizer
        # DataParallel wants the GPU that holds the parameters first.
        first = self.world.device.index
        device_ids = sorted(range(torch.cuda.device_count()), key=lambda gpu: gpu != first)
        return nn.DataParallel(inner, device_ids, **self.settings.options), optimizer


class Distributed(Strategy):
    """``ddp``: torch's DistributedDataParallel."""

    def __init__(self, world: World, settings: Settings) -> None:
        super().__init__(world, settings)
        if settings.compression == "bf16" and world.device.type != "cuda":
            raise SetupError("compression='bf16' needs GPUs and NCCL: take 'fp16' here")
        world.needs_torch()
        self._unshared = contextlib.ExitStack()
        self._is_shared = True

    def _wrap(self, model: nn.Module, optimizer: Optimizer) -> Prepared:
        is_cuda = self.world.device.type == "cuda"
        self._network = nn.parallel.DistributedDataParallel(
            self._in_precision(model),
            device_ids=[self.world.device.index] if is_cuda else None,
            **self.settings.options,
        )
        if self.settings.compression != "none":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            hook = getattr(default_hooks, f"{self.settings.compression}_compress_hook")
            self._network.register_comm_hook(None, hook)
        return self._network, optimizer

    def _share_gradients(self, *, is_last: bool) -> None:
        if is_last and not self._is_shared:
            self._unshared.close()
        elif self._is_shared and not is_last:
            self._unshared.enter_context(self._network.no_sync())
        self._is_shared = is_last


class WithHorovod(Strategy):
    """``horovod``: Horovod's DistributedOptimizer."""

    def __init__(self, world: World, settings: Settings) -> None:
        super().__init__(world, settings)
        self._hvd = world.needs_horovod()
        self._compression = getattr(self._hvd.Compression, settings.compression, None)
        if self._compression is None:
            raise ValueError(
                f"compression={settings.compression!r}: this Horovod has none and fp16"
            )

    def _wrap(self, model: nn.Module, optimizer: Optimizer) -> Prepared:
        hvd = self._hvd
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        # hvd.broadcast_optimizer_state takes a step to make the state: decay would change weights.
        state = hvd.broadcast_object(optimizer.state_dict(), root_rank=0)
        shared = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=self._compression,
            backward_passes_per_step=self.settings.accumulate,
            **self.settings.options,
        )
        shared.load_state_dict(state)
        return self._in_precision(model), shared

    def _update(self) -> None:
        # Averaged first: only then do all ranks see the same overflow, and the same norm.
        self.optimizer.synchronize()
        with self.optimizer.skip_synchronize():
            super()._update()


STRATEGIES: dict[str, type[Strategy]] = {
    "single": Strategy,
    "dp": SeveralGpus,
    "ddp": Distributed,
    "horovod": WithHorovod,
}


def strategy(
    name: str,
    *,
    world: World | None = None,
    precision: str = "fp32",
    compression: str = "none",
    accumulate: int = 1,
    clip: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> Strategy:
    """Return one way to train, by its name: ``single``, ``dp``, ``ddp`` or ``horovod``.

    Args:
        world: The result of ``setup()``; by default the one that it made last.
        precision: ``fp32``, ``bf16`` or ``fp16`` (with loss scaling); parameters stay float32.
        compression: Format in which gradients are sent: ``none``, ``fp16``, or (``ddp``) ``bf16``.
        accumulate: How many batches make one step of the optimizer.
        clip: The largest norm of all gradients together, after averaging.
        options: Handed on to DataParallel, DistributedDataParallel or DistributedOptimizer.

    Raises:
        ValueError: for a name or a setting that does not exist.
        SetupError: if this job cannot train in this way; it holds the reason.
    """
    world = world or current_world()
    if name not in STRATEGIES:
        raise ValueError(f"strategy {name!r} is not one of {', '.join(STRATEGIES)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is not one of {', '.join(PRECISIONS)}")
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression={compression!r} is not one of {', '.join(COMPRESSIONS)}")
    if accumulate < 1:
        raise ValueError(f"accumulate={accumulate}: at least 1 batch makes a step")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip}: the largest norm is above 0")
    settings = Settings(precision, compression, accumulate, clip, options or {})
    return _suitable(name, world)(world, settings)


def _suitable(name: str, world: World) -> type[Strategy]:
    kind = STRATEGIES[name]
    if kind in (Strategy, SeveralGpus) and world.world_size > 1:
        raise SetupError(
            f"strategy {name!r} is for one process, and this job has {world.world_size} ranks: "
            f"each would train a model of its own. Take 'ddp', or start one process"
        )
    return Strategy if world.world_size == 1 and kind is not SeveralGpus else kind


def _scaler_for(precision: str, device: torch.device) -> Any:
    """Return a GradScaler, idle but for fp16; raises ValueError if this torch has none for the device."""
    is_needed = precision == "fp16"
    with contextlib.suppress(AttributeError):
        return torch.amp.GradScaler(device.type, enabled=is_needed)
    if is_needed and device.type != "cuda":
        raise ValueError(f"precision='fp16' on {device.type} needs torch 2.3 or newer: use bf16")
    return torch.cuda.amp.GradScaler(enabled=is_needed)
