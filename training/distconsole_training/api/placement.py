"""This process's place among the ranks, by its launcher."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_PORT = 12000
PORTS = 20000
"""Slurm jobs meet at a port made of their id: below the ports that the kernel gives away."""


class SetupError(RuntimeError):
    """A rank's place, device or engine, as given to it, cannot be used."""


class Launcher(str, Enum):
    """The launcher whose variables give the rank."""

    ARGUMENTS = "arguments"
    ENV = "env"
    HOROVOD = "horovod"
    OPEN_MPI = "open-mpi"
    MPICH = "mpich"
    SLURM = "slurm"
    NONE = "none"


_OMPI = "OMPI_COMM_WORLD"
_VARIABLES = (
    (Launcher.HOROVOD, "HOROVOD_RANK", ("HOROVOD_SIZE",), "HOROVOD_LOCAL_RANK"),
    (Launcher.ENV, "RANK", ("WORLD_SIZE",), "LOCAL_RANK"),
    (Launcher.OPEN_MPI, f"{_OMPI}_RANK", (f"{_OMPI}_SIZE",), f"{_OMPI}_LOCAL_RANK"),
    (Launcher.MPICH, "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID"),
    (Launcher.SLURM, "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID"),
)
"""Rank, world size (the first that is set counts) and local rank; the first launcher that set a rank counts."""


@dataclass(frozen=True)
class Placement:
    """This process among its ranks.

    Attributes:
        local_rank: Its number on its host, from 0; None if unknown.
        init_method: The rendezvous of torch.distributed; empty if Horovod brings the ranks together,
            or for a single rank.
    """

    launcher: Launcher
    rank: int
    world_size: int
    local_rank: int | None
    init_method: str = ""


def find_placement(
    environment: Mapping[str, str],
    *,
    init_method: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    needs_meeting: bool = True,
) -> Placement:
    """Return this process's place by the arguments of ``setup()``, or else by the environment.

    ``needs_meeting=False`` leaves out the rendezvous of torch.distributed.

    Raises SetupError if arguments or variables are incomplete or contradictory; it names the variable.
    """
    rank, world_size, local_rank = (
        None if number is None or number < 0 else number
        for number in (rank, world_size, local_rank)
    )
    if (rank is None) != (world_size is None):
        lacking = "world_size" if world_size is None else "rank"
        raise SetupError(f"rank and world_size belong together: {lacking}= was not given")
    if rank is not None and world_size is not None:
        found = Placement(Launcher.ARGUMENTS, rank, world_size, _number(environment, "LOCAL_RANK"))
        where = "rank= and world_size="
    else:
        found, where = _find_launcher(environment)
    if not 0 <= found.rank < found.world_size:
        raise SetupError(
            f"{where}: rank {found.rank} does not fit a world of {found.world_size} "
            f"(ranks count from 0)"
        )
    if local_rank is not None:
        found = replace(found, local_rank=local_rank)
    if init_method and init_method != "env://":
        return replace(found, init_method=_usable(init_method, found))
    if needs_meeting and found.world_size > 1 and found.launcher is not Launcher.HOROVOD:
        return replace(found, init_method=_meeting_point(environment, found))
    return found


def first_host(nodes: str) -> str:
    """Return the first name of a Slurm node list: ``gpu[03-07,9],x1`` gives ``gpu03``."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]*)\])?([^,]*)", nodes)
    if match is None:
        raise SetupError(f"SLURM_STEP_NODELIST={nodes!r} is not a list of nodes")
    name, numbers, rest = match.groups()
    return f"{name}{re.split('[-,]', numbers)[0]}{rest}" if numbers else name


def _find_launcher(environment: Mapping[str, str]) -> tuple[Placement, str]:
    for launcher, rank, world_sizes, local_rank in _VARIABLES:
        own = _number(environment, rank)
        # sbatch gives its script a SLURM_PROCID as well: only srun starts a step, and ranks.
        if own is None or (launcher is Launcher.SLURM and "SLURM_STEP_ID" not in environment):
            continue
        size = next(filter(None, (_number(environment, name) for name in world_sizes)), None)
        if size is None:
            raise SetupError(f"{rank} is set, but {world_sizes[-1]} is not")
        place = Placement(launcher, own, size, _number(environment, local_rank))
        return place, f"{rank} and {world_sizes[-1]}"
    if (_number(environment, "WORLD_SIZE") or 1) > 1:
        raise SetupError("WORLD_SIZE is set, but RANK is not: which of the ranks is this?")
    return Placement(Launcher.NONE, 0, 1, 0), "this process alone"


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise SetupError(f"{name}={text!r} is not a number") from None


def _usable(init_method: str, place: Placement) -> str:
    if not init_method.startswith(("tcp://", "file://")):
        raise SetupError(f"init_method={init_method!r}: it begins with tcp://, file:// or env://")
    if place.launcher is Launcher.NONE:
        raise SetupError(
            f"init_method={init_method!r} says where to meet but not who this is: "
            f"give rank= and world_size=, or start the ranks with a launcher"
        )
    if init_method.startswith("file://") and not Path(init_method[len("file://") :]).is_absolute():
        raise SetupError(f"init_method={init_method!r}: file:/// and an absolute path are needed")
    return init_method


def _meeting_point(environment: Mapping[str, str], place: Placement) -> str:
    address, port = environment.get("MASTER_ADDR"), _number(environment, "MASTER_PORT")
    if place.launcher in (Launcher.ENV, Launcher.ARGUMENTS):
        # torch reads the rest itself: under torchrun the store is the agent's.
        lacking = "MASTER_ADDR" if not address else "MASTER_PORT" if port is None else ""
        if lacking:
            raise SetupError(f"{lacking} is not set: where do the {place.world_size} ranks meet?")
        return "env://"
    if place.launcher is Launcher.SLURM:
        address = address or _slurm_address(environment)
        port = port or _slurm_port(environment)
    if address and port is not None:
        return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
    if not address and (shared := _find_session_folder(environment, place)):
        return f"file://{shared}/distconsole-store"
    lacking = "MASTER_PORT" if address else "MASTER_ADDR"
    example = (
        "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500"
        if place.launcher is Launcher.OPEN_MPI
        else "mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500"
    )
    raise SetupError(
        f"{lacking} is not set, and MPI does not tell torch where its ranks meet: {example}"
    )


def _slurm_address(environment: Mapping[str, str]) -> str:
    if _number(environment, "SLURM_STEP_NUM_NODES") == 1:
        return "127.0.0.1"
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environment.get(name):
            return first_host(environment[name])
    raise SetupError("SLURM_STEP_NODELIST is not set: on which node do the ranks meet?")


def _slurm_port(environment: Mapping[str, str]) -> int:
    job = _number(environment, "SLURM_JOB_ID")
    if job is None:
        raise SetupError("SLURM_JOB_ID is not set, and neither is MASTER_PORT")
    return FIRST_PORT + (job * 31 + (_number(environment, "SLURM_STEP_ID") or 0)) % PORTS


def _find_session_folder(environment: Mapping[str, str], place: Placement) -> str | None:
    """Return Open MPI's own folder of this job, if all its ranks are on this host."""
    if _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") != place.world_size:
        return None
    for name in ("OMPI_MCA_orte_jobfam_session_dir", "PMIX_SERVER_TMPDIR"):
        folder = environment.get(name)
        if folder and Path(folder).is_dir():
            return folder
    return None
