"""This process's rank, by its environment, its script or its process group."""

from __future__ import annotations

import os
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_SOURCES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
"""Nearest engine first: a rank of torchrun below srun carries both sets, and torchrun's counts."""


class Identity(NamedTuple):
    """``rank`` and ``local_rank`` are -1 and ``world_size`` is 0 if unknown."""

    rank: int = -1
    local_rank: int = -1
    world_size: int = 0


def from_environment(environment: Mapping[str, str]) -> Identity:
    """Return rank and world by the variables of the engine that started this process."""
    for rank_name, local_name, size_name in _SOURCES:
        rank = _number(environment.get(rank_name))
        if rank >= 0:
            size = _number(environment.get(size_name))
            return Identity(rank, _number(environment.get(local_name)), max(size, 0))
    return Identity()


_ASKED_BY_PLACE = ("backend", "init_method", "timeout", "world_size", "rank")


def from_request(
    arguments: Sequence[Any], keywords: Mapping[str, Any], environment: Mapping[str, str]
) -> Identity:
    """Return the place that a call of ``init_process_group`` with these arguments asks for."""
    given = {**dict(zip(_ASKED_BY_PLACE, arguments)), **keywords}
    if given.get("backend") == "mpi":
        return Identity()
    method = str(given.get("init_method") or "").partition("?")[2]
    in_method = dict(pair.partition("=")[::2] for pair in method.split("&"))
    asked = [
        given[name]
        if isinstance(given.get(name), int) and given[name] >= 0
        else _number(in_method.get(name) or environment.get(name.upper()))
        for name in ("rank", "world_size")
    ]
    return Identity(asked[0], -1, max(asked[1], 0))


def from_process_group(distributed: Any, known: Identity, inherited: str | None) -> Identity:
    """Return rank and world by ``torch.distributed``, or ``known`` while it is not initialised.

    ``inherited``: the parent's ``LOCAL_RANK``, which is not this process's.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return known
    rank = int(distributed.get_rank())
    named = os.environ.get("LOCAL_RANK")
    own = -1 if named == inherited else _number(named)
    local = known.local_rank if known.rank == rank else own
    return Identity(rank, local, int(distributed.get_world_size()))


def from_horovod(basics: Any, known: Identity) -> Identity:
    """Return rank and world by an initialised ``horovod.common.basics.HorovodBasics``."""
    rank = basics.rank()
    if rank is None or rank < 0:
        return known
    return Identity(int(rank), int(basics.local_rank()), int(basics.size()))


def _number(text: str | None) -> int:
    """Return ``text`` as a number of 31 bits, or -1."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return -1
    return int(text)
