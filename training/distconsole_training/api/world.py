"""``setup()``: this process becomes a rank of its job, whichever launcher started it."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from distconsole_training.api import collectives
from distconsole_training.api.placement import Launcher, Placement, SetupError, find_placement

if TYPE_CHECKING:
    from types import TracebackType

ENGINES = ("auto", "torch", "horovod")
BACKENDS = ("nccl", "gloo")

_worlds: list[World] = []
"""The world that this process is in: at most one."""
_left: list[Any] = []
"""Groups that were left. One that DDP is the last to hold joins Gloo's thread with the GIL held (pytorch#56297)."""


class World:
    """The ranks of a job, seen from one of them. A context manager: leaving it closes it.

    Attributes:
        device: This rank's own GPU, or the CPU. It is torch's current device as well.
        backend: The backend of its collectives: ``nccl``, ``gloo``, ``horovod`` or, alone, ``none``.
        launcher: The launcher whose variables gave the rank.
    """

    def __init__(
        self, placement: Placement, device: torch.device, backend: str, timeout_seconds: float
    ) -> None:
        self.rank = placement.rank
        self.local_rank = placement.local_rank or 0
        self.world_size = placement.world_size
        self.device = device
        self.backend = backend
        self.launcher = placement.launcher
        self._placement = placement
        self._timeout = timedelta(seconds=timeout_seconds)
        self._owns_group = False
        self._closed = False

    @property
    def collectives(self) -> collectives.Collectives:
        """The collectives for this world's figures."""
        return collectives.Alone() if self.world_size == 1 else collectives.in_use()

    def close(self) -> None:
        """Wait for the other ranks, whose gloo would abort without us, then leave; once."""
        self._close(waits=True, leaves=True)

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After a failure NCCL would wait for operations that the others never join.
        self._close(waits=kind is None, leaves=kind is None or self.backend != "nccl")

    def needs_torch(self) -> None:
        """Form torch's process group of all ranks, also if Horovod brought them together."""
        import torch.distributed as dist

        if self.world_size == 1 or dist.is_initialized():
            return
        init_method = self._placement.init_method
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        backend = self.backend if self.backend in BACKENDS else backend
        store = None if init_method else _store_over_horovod(self, self._timeout)
        try:
            dist.init_process_group(
                backend,
                init_method=init_method or None,
                store=store,
                rank=self.rank,
                world_size=self.world_size,
                timeout=self._timeout,
            )
        except (RuntimeError, ValueError) as error:
            raise SetupError(
                f"rank {self.rank} of {self.world_size} could not meet the others "
                f"({init_method or 'over Horovod'}, {backend}): {error}"
            ) from error
        self._owns_group = True

    def needs_horovod(self) -> Any:
        """Return ``horovod.torch``, initialised and of one mind with this world; raises SetupError."""
        hvd = _horovod(self._placement)
        if (hvd.rank(), hvd.size()) != (self.rank, self.world_size):
            raise SetupError(
                f"Horovod takes this process for rank {hvd.rank()} of {hvd.size()}, "
                f"{self.launcher.value} for rank {self.rank} of {self.world_size}: "
                f"start it with distconsole run --launcher horovod, horovodrun or mpirun"
            )
        return hvd

    def _close(self, *, waits: bool, leaves: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self in _worlds:
            _worlds.remove(self)
        atexit.unregister(self._at_exit)
        if waits and self.world_size > 1:
            self.collectives.sum(torch.ones(1, dtype=torch.int64)).item()
        if leaves and self._owns_group:
            import torch.distributed as dist

            if dist.is_initialized():
                _left.append(dist.group.WORLD)
                dist.destroy_process_group()
        horovod = sys.modules.get("horovod.torch")
        if waits and horovod is not None and horovod.is_initialized():
            horovod.shutdown()

    def _at_exit(self) -> None:
        # The others may be gone or busy: a script that ends without ``close`` waits for none of them.
        failed = getattr(sys, "last_value", None) is not None
        self._close(waits=False, leaves=not failed or self.backend != "nccl")


def setup(
    *,
    init_method: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    device: str | torch.device | None = None,
    backend: str | None = None,
    engine: str = "auto",
    timeout_seconds: float = 1800.0,
) -> World:
    """Become a rank: find the others, take a device, connect.

    The rank comes from the arguments, or else from the launcher's environment. Without
    either the process is alone, and nothing is connected.

    Args:
        init_method: The rendezvous: ``tcp://HOST:PORT``, ``file:///shared/path`` (it must
            not exist yet) or ``env://``. By default it is worked out from the launcher.
        rank, world_size: Arguments of a platform; negative means "not given".
        local_rank: Which GPU of this host.
        device: Instead of the GPU of ``local_rank``, or the CPU without one.
        backend: ``nccl`` or ``gloo`` instead of the device's usual one.
        engine: ``torch``, ``horovod`` or ``auto``: Horovod if Horovod's launcher started this
            process, or if mpirun did and the script has imported ``horovod.torch``; else torch.
        timeout_seconds: How long a rank waits for another.

    Raises:
        SetupError: if that cannot work; it names the variable and the remedy.
    """
    if _worlds:
        raise SetupError("setup() was called already in this process: close() that world first")
    if engine not in ENGINES:
        raise SetupError(f"engine={engine!r} is not one of {', '.join(ENGINES)}")
    if backend not in (None, *BACKENDS):
        raise SetupError(f"backend={backend!r} is neither nccl nor gloo")
    place = partial(
        find_placement,
        os.environ,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
    )
    # If Horovod brings the ranks together, torch's rendezvous is not needed.
    is_horovods = _is_horovods(engine, place(needs_meeting=False))
    placement = place(needs_meeting=not is_horovods)
    own_device = _own_device(device, placement)
    chosen = backend or ("nccl" if own_device.type == "cuda" else "gloo")
    if placement.world_size == 1:
        chosen = "none"
    elif is_horovods:
        chosen = "horovod"
    else:
        _suits(chosen, own_device)
    world = World(placement, own_device, chosen, timeout_seconds)
    if chosen == "horovod":
        world.needs_horovod()
    else:
        world.needs_torch()
    _worlds.append(world)
    atexit.register(world._at_exit)
    return world


def current_world() -> World:
    """Return the world that ``setup()`` made; without one, this process alone."""
    if _worlds:
        return _worlds[0]
    placement = find_placement({})
    return World(placement, _own_device(None, placement), "none", 0)


def _is_horovods(engine: str, placement: Placement) -> bool:
    if engine != "auto":
        return engine == "horovod"
    if placement.launcher in (Launcher.OPEN_MPI, Launcher.MPICH):
        return "horovod.torch" in sys.modules
    return placement.launcher is Launcher.HOROVOD and not placement.init_method


def _own_device(wanted: str | torch.device | None, placement: Placement) -> torch.device:
    if wanted is None and not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda" if wanted is None else wanted)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise SetupError(f"device={str(wanted)!r}, but torch sees no GPU here")
    count = torch.cuda.device_count()
    index = device.index
    if index is None:
        local_rank = placement.local_rank
        if local_rank is None:
            local_rank = placement.rank % count
        # A launcher may show each rank its own GPU only: then it is the first.
        index = 0 if count == 1 else local_rank
    if index >= count:
        raise SetupError(
            f"local rank {placement.local_rank} needs GPU {index}, but this host shows {count} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}): "
            f"start at most {count} ranks here"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _suits(backend: str, device: torch.device) -> None:
    import torch.distributed as dist

    if not dist.is_available():
        raise SetupError("this torch was built without torch.distributed")
    if backend == "nccl" and device.type != "cuda":
        raise SetupError("backend='nccl' needs a GPU, and this rank has none: use gloo")
    if backend == "nccl" and not dist.is_nccl_available():
        raise SetupError("this torch was built without NCCL: use backend='gloo'")


def _horovod(placement: Placement) -> Any:
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise SetupError(
            f"Horovod is asked for, but {sys.executable} cannot import horovod.torch: {error}"
        ) from error
    # Horovod without a launcher ends the process from C++ instead of raising.
    if placement.launcher in (Launcher.HOROVOD, Launcher.OPEN_MPI, Launcher.MPICH) or any(
        name in os.environ for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    ):
        hvd.init()
        return hvd
    raise SetupError(
        f"Horovod is asked for, but {placement.launcher.value} does not start it (HOROVOD_RANK is "
        f"not set): use distconsole run --launcher horovod, horovodrun or mpirun"
    )


def _store_over_horovod(world: World, timeout: timedelta) -> Any:
    """Return a store that rank 0 holds on a free port; Horovod broadcasts the address."""
    import torch.distributed as dist

    hvd = world.needs_horovod()
    if world.rank:
        address, port = hvd.broadcast_object(None, root_rank=0, name="distconsole.store")
        return dist.TCPStore(address, port, world.world_size, False, timeout)
    address = _address_towards(os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"))
    store = dist.TCPStore(address, 0, world.world_size, True, timeout, wait_for_workers=False)
    hvd.broadcast_object((address, store.port), root_rank=0, name="distconsole.store")
    return store


def _address_towards(peer: str | None) -> str:
    """Return this host's address on the way to ``peer``; nothing is sent."""
    if not peer:
        return socket.gethostbyname(socket.gethostname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])
