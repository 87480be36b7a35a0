"""Everything an operator can ask, as frozen values: the grammar makes them, ``operations`` does them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from distconsole.model.ranks import RankSpans


class Request:
    """What somebody asks for; each kind has a row in ``model.verbs``."""

    __slots__ = ()


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
    TORCH_LAUNCH = "torch-launch"
    INIT_METHOD = "init-method"


class EmitKind(StrEnum):
    """Files that ``run --emit`` writes, for other starters."""

    SBATCH = "sbatch"
    MPIRUN = "mpirun"
    TORCHRUN = "torchrun"


class Level(StrEnum):
    """How deep a check goes."""

    QUICK = "quick"
    STANDARD = "standard"
    FULL = "full"


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    TENSORBOARD = "tensorboard"
    PROMETHEUS = "prometheus"


class ExportTable(StrEnum):
    """The tables of ``export --format csv``."""

    METRICS = "metrics"
    WINDOWS = "windows"
    RANK_METRICS = "rank_metrics"
    GPUS = "gpus"
    NODES = "nodes"
    RANKS = "ranks"
    PHASES = "phases"
    FINDINGS = "findings"
    LOGS = "logs"
    NUMBERS = "numbers"


class StrategyName(StrEnum):
    """The ways to train that ``bench strategies`` compares."""

    SINGLE = "single"
    DP = "dp"
    DDP = "ddp"
    DDP_FP16 = "ddp+fp16"
    DDP_BF16 = "ddp+bf16"
    HOROVOD = "horovod"
    HOROVOD_FP16 = "horovod+fp16"
    HOROVOD_MPI = "horovod+mpi"


class PrecisionName(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class CollectiveName(StrEnum):
    """Operations that ``bench collectives`` measures."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"
    BARRIER = "barrier"


@dataclass(frozen=True, slots=True)
class Where:
    """Which hosts, as given on the command line; ``config.hosts`` turns it into a ``Cluster``."""

    hosts: str | None = None
    hostfile: str | None = None
    cluster: str | None = None
    ssh_config: str | None = None
    python: str | None = None
    setup: str | None = None

    @property
    def names_hosts(self) -> bool:
        """Whether it says which hosts, and not only how to reach them."""
        return any(name is not None for name in (self.hosts, self.hostfile, self.cluster))

    def over(self, kept: Where) -> Where:
        """Return ``kept`` with what is said here put over it; hosts named here replace its hosts."""
        names = self if self.names_hosts else kept
        return Where(
            hosts=names.hosts,
            hostfile=names.hostfile,
            cluster=names.cluster,
            ssh_config=self.ssh_config or kept.ssh_config,
            python=self.python or kept.python,
            setup=self.setup or kept.setup,
        )

    def beyond(self, kept: Where) -> Where:
        """Return the least that has to be said over ``kept`` to mean this."""
        names = ("hosts", "hostfile", "cluster")
        same = all(getattr(self, name) == getattr(kept, name) for name in names)
        unsaid = {name: None for name in names if same}
        for name in ("ssh_config", "python", "setup"):
            if getattr(self, name) == getattr(kept, name):
                unsaid[name] = None
        return replace(self, **unsaid)


def count_of_hosts(nnodes: str | None) -> tuple[int, int] | None:
    """Return the fewest and the most hosts that ``--nnodes`` asks for; None where it is not given."""
    if nnodes is None:
        return None
    fewest, _, most = nnodes.partition(":")
    return int(fewest), int(most or fewest)


LOST_AFTER_SECONDS = 120.0
"""A node that was not heard of for so long is lost, unless ``--lost-after`` says otherwise."""


@dataclass(frozen=True, slots=True)
class Run(Request):
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
        fewest, most = count_of_hosts(self.nnodes) or (0, 0)
        return fewest < most

    @property
    def submits_from(self) -> Where | None:
        """The host that submits the job of ``--slurm``, where it was given; else None."""
        if self.slurm_login is None:
            return None
        return replace(self.where, hosts=self.slurm_login, hostfile=None, cluster=None)


@dataclass(frozen=True, slots=True)
class Rerun(Request):
    run: str
    where: Where = Where()
    exclude: tuple[str, ...] = ()
    json: bool = False
    detach: bool = False
    notify: str | None = None


@dataclass(frozen=True, slots=True)
class Foresee(Request):
    """Plan a launch as ``run`` would, say what is in its way, and start nothing.

    Attributes:
        launchers: Also say of every launcher why it would not do.
    """

    run: Run
    launchers: bool = False


@dataclass(frozen=True, slots=True)
class Launches(Request):
    """List what was launched from here: each launch once, the newest first, at most ``limit``."""

    limit: int = 50


@dataclass(frozen=True, slots=True)
class Stop(Request):
    run: str
    where: Where = Where()
    grace_seconds: float | None = None
    yes: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A launch to check.

    Attributes:
        ranks: On all hosts together; None leaves it to ``run.nproc``.
        address: Where the command has the ranks meet, and at which ``port``.
        notes: What a person should know about how the command was read.
    """

    run: Run
    command: tuple[str, ...]
    starter: str = ""
    python: str | None = None
    ranks: int | None = None
    address: str = ""
    port: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check(Request):
    """Judge the hosts.

    Attributes:
        target: The launch that is checked; None checks the hosts for any.
        prove: Whether cures are tried; None leaves it to the level.
        write_profile: A file for the cures that were proven; empty for the project's own.
    """

    where: Where = Where()
    level: Level = Level.STANDARD
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    nproc: int | None = None
    budget_seconds: float | None = None
    strict: bool = False
    json: bool = False
    junit: str | None = None
    emit_hostfile: str | None = None
    target: Target | None = None
    prove: bool | None = None
    details: bool = False
    write_profile: str | None = None

    @property
    def proves(self) -> bool:
        """Whether cures are tried: as asked, else from level standard on."""
        by_level = self.level is not Level.QUICK or self.write_profile is not None
        return by_level if self.prove is None else self.prove


@dataclass(frozen=True, slots=True)
class Explain(Request):
    check: str


@dataclass(frozen=True, slots=True)
class Top(Request):
    """Show load and GPUs of the hosts, live; with ``once`` also by conditions, as ``Show`` has them."""

    where: Where = Where()
    once: bool = False
    json: bool = False
    interval_seconds: float = 1.0
    only: str | None = None
    fail_if: str | None = None
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Prepare(Request):
    """Bring what the hosts lack (``setup``).

    Attributes:
        dry_run: Say what would be done and do nothing.
        rebuild: Also where the Horovod that is there fits.
    """

    where: Where = Where()
    source: str | None = None
    yes: bool = False
    dry_run: bool = False
    rebuild: bool = False


@dataclass(frozen=True, slots=True)
class Runs(Request):
    """List past and present runs; by conditions as ``Show`` has them.

    Attributes:
        as_found: Each as soon as it is read, in no order, and without conditions; one may come again
            with what its hosts say.
    """

    where: Where = Where()
    json: bool = False
    only: str | None = None
    fail_if: str | None = None
    as_found: bool = False


@dataclass(frozen=True, slots=True)
class Show(Request):
    """One run's summary, or those of its ranks that conditions are about.

    Attributes:
        fail_if: What matches this one, too, is bad: it decides the exit code.
    """

    run: str
    where: Where = Where()
    json: bool = False
    only: str | None = None
    fail_if: str | None = None


@dataclass(frozen=True, slots=True)
class Attach(Request):
    """Follow a run that is going on, from its beginning."""

    run: str
    where: Where = Where()
    json: bool = False
    notify: str | None = None
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Logs(Request):
    """Lines that a run printed.

    Attributes:
        ranks: First and last of each span; empty for all.
        since: As ``model.moments.parse_since`` has it; a span counts back from the run's end, or
            from now while it goes on.
    """

    run: str
    where: Where = Where()
    ranks: RankSpans = ()
    host: str | None = None
    stream: str | None = None
    grep: str | None = None
    errors: bool = False
    since: str | None = None
    fold: bool = False
    follow: bool = False
    tail: int | None = None


@dataclass(frozen=True, slots=True)
class Why(Request):
    run: str
    where: Where = Where()


@dataclass(frozen=True, slots=True)
class Replay(Request):
    """Show a past run in the console, as it was at the moment ``at``; None is its end."""

    run: str
    at: str | None = None
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Compare(Request):
    """Lay runs side by side, next to the first of them."""

    runs: tuple[str, ...]
    json: bool = False


@dataclass(frozen=True, slots=True)
class Export(Request):
    """Write a run's events to a file or to stdout.

    Attributes:
        run: None stands for the hosts themselves, without a run; with Prometheus only.
        interval_seconds: Between two writings of a file for Prometheus.
    """

    run: str | None
    format: ExportFormat = ExportFormat.JSONL
    output: str | None = None
    table: ExportTable | None = None
    follow: bool = False
    listen: tuple[str, int] | None = None
    where: Where = Where()
    interval_seconds: float = 5.0

    @property
    def goes_on(self) -> bool:
        return self.follow or self.listen is not None

    @property
    def writes_tables(self) -> bool:
        """Whether it is about all tables of CSV."""
        return self.format is ExportFormat.CSV and self.table is None


@dataclass(frozen=True, slots=True)
class ReportPage(Request):
    """Write one run as a self-contained page."""

    run: str
    output: str
    where: Where = Where()


@dataclass(frozen=True, slots=True)
class Bench(Request):
    """Measure strategies over the hosts; sizes that are None follow from the hosts."""

    what: str
    where: Where = Where()
    only: tuple[StrategyName, ...] = ()
    skip: tuple[StrategyName, ...] = ()
    rounds: int = 3
    images: int | None = None
    batch: int | None = None
    epochs: int = 3
    width: int | None = None
    precision: PrecisionName = PrecisionName.FP32
    nproc: str | None = None
    json: bool = False


@dataclass(frozen=True, slots=True)
class BenchCollectives(Request):
    """Measure collectives over the hosts; nothing in ``ops`` or ``sizes`` stands for the usual ones.

    Attributes:
        sizes: In bytes.
    """

    where: Where = Where()
    launcher: LauncherName = LauncherName.TORCH
    ops: tuple[CollectiveName, ...] = ()
    sizes: tuple[int, ...] = ()
    nproc: str | None = None
    budget_seconds: float | None = None
    json: bool = False


@dataclass(frozen=True, slots=True)
class OpenConsole(Request):
    """Open the full-screen console on the hosts given.

    Requests that open it on something have the same two.
    """

    where: Where = Where()
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Demo(Request):
    """An embedded cluster on this machine: check, then train."""

    nodes: int = 2
    headless: bool = False
    json: bool = False
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Notify(Request):
    """Say how one is told of what becomes of a run; with ``test`` tell so once."""

    test: bool = False


@dataclass(frozen=True, slots=True)
class Trust(Request):
    """Trust the project's file that is read for ``folder``, as it is now; with ``revoke`` no longer."""

    folder: str = "."
    revoke: bool = False


@dataclass(frozen=True, slots=True)
class ShowHelp(Request):
    """Print text that the grammar made (``--help``, ``--version``)."""

    text: str
