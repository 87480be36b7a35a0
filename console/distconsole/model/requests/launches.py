"""Requests that start a run, foresee one, or end one. They do nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from distconsole.model.requests.where import Where


class LauncherName(StrEnum):
    """Ways to start a job."""

    AUTO = "auto"
    TORCH = "torch"
    TORCHRUN = "torchrun"
    HOROVOD = "horovod"
    MPI = "mpi"
    SLURM = "slurm"
    SINGLE = "single"


class PassArgs(StrEnum):
    """Arguments that the launcher adds to the script's own."""

    TORCH_LAUNCH = "torch-launch"
    INIT_METHOD = "init-method"


class EmitKind(StrEnum):
    """Files that ``run --emit`` writes, for other starters."""

    SBATCH = "sbatch"
    MPIRUN = "mpirun"
    TORCHRUN = "torchrun"


def hosts_wanted(nnodes: str | None) -> tuple[int, int] | None:
    """Return the fewest and the most hosts that ``--nnodes`` asks for; None where it is not given."""
    if nnodes is None:
        return None
    fewest, _, most = nnodes.partition(":")
    return int(fewest), int(most or fewest)


LOST_AFTER_SECONDS = 120.0
"""A node that was not heard of for so long is lost, unless ``--lost-after`` says otherwise."""


@dataclass(frozen=True, slots=True)
class Run:
    """Launch a script and follow it."""

    script: str
    arguments: tuple[str, ...] = ()
    where: Where = Where()
    launcher: LauncherName = LauncherName.AUTO
    nproc: str | None = None
    nnodes: str | None = None
    module: bool = False
    env: tuple[tuple[str, str], ...] = ()
    env_file: str | None = None
    workdir: str | None = None
    pass_args: PassArgs | None = None
    max_restarts: int = 0
    nic: str | None = None
    name: str | None = None
    grace_seconds: float = 10.0
    lost_after_seconds: float = LOST_AFTER_SECONDS
    detach: bool = False
    dry_run: bool = False
    json: bool = False
    watch: bool = True
    sync: bool | None = None
    verify_sync: int | None = None
    divided: bool = False
    """A ``--`` stood before the script: whatever stands behind it is the script's."""
    slurm: str | None = None
    slurm_login: str | None = None
    emit: EmitKind | None = None
    output: str | None = None
    notify: str | None = None
    log_limit: int | None = None
    """The most bytes that the ranks' logs may take on each host."""
    store_limit: int | None = None
    """The most bytes that the run may take here."""

    @property
    def may_lose_hosts(self) -> bool:
        """Whether the job is asked to go on without some of its hosts."""
        fewest, most = hosts_wanted(self.nnodes) or (0, 0)
        return fewest < most

    @property
    def submits_from(self) -> Where | None:
        """The host that submits the job of ``--slurm``, where it was given; else None."""
        if self.slurm_login is None:
            return None
        return replace(self.where, hosts=self.slurm_login, hostfile=None, cluster=None)


@dataclass(frozen=True, slots=True)
class Rerun:
    """Launch a past run again."""

    run: str
    where: Where = Where()
    exclude: tuple[str, ...] = ()
    json: bool = False
    detach: bool = False
    notify: str | None = None


@dataclass(frozen=True, slots=True)
class Foresee:
    """Plan a launch as ``run`` would, say what is in its way, and start nothing.

    Attributes:
        launchers: Also say of every launcher why it would not do.
    """

    run: Run
    launchers: bool = False


@dataclass(frozen=True, slots=True)
class Launches:
    """List what was launched from here: each launch once, the newest first, at most ``limit``."""

    limit: int = 50


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a run on every host.

    Attributes:
        yes: Ask nothing.
    """

    run: str
    where: Where = Where()
    grace_seconds: float | None = None
    yes: bool = False
