"""Everything an operator can ask, as frozen values: the grammar makes them, ``operations`` does them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from distconsole.model.cluster import TransportName
from distconsole.model.names import RankSpans
from distconsole.model.options import Kind, act, needs_trust, needs_trusted_file, plain


class Request:
    """What somebody asks for; each kind has a row in ``model.verbs``.

    A field that is typed has its option. What stands below a verb's class is the help of the verb.
    """


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
    WANDB = "wandb"
    MLFLOW = "mlflow"
    OTLP = "otlp"


SERVICES = (ExportFormat.WANDB, ExportFormat.MLFLOW, ExportFormat.OTLP)
"""Where a run can be shown while it goes on."""


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


NAMES_OF_HOSTS = ("hosts", "hostfile", "cluster")
WAYS_TO_HOSTS = ("ssh_config", "transport", "python", "setup", "container")
"""The fields of ``Where`` that say which hosts, of which one excludes the others, and how to reach them."""


@dataclass(frozen=True)
class Where:
    """Which hosts, as given on the command line; ``config.hosts`` turns it into a ``Cluster``."""

    hosts: str | None = act(
        None,
        "Hosts: [user@]host[:slots][/port],… with ranges such as gpu[01-08,12].  [default: those of "
        "the batch job, or of 'cluster' in distconsole.toml; else this machine]",
        Kind.HOSTS,
        also=("-H",),
    )
    hostfile: str | None = act(
        None,
        "Hosts from a file (Open MPI, Horovod, DeepSpeed, MPICH, Slurm or one per line).",
        Kind.FILE,
        also=("--machinefile",),
    )
    cluster: str | None = act(None, "Hosts of a cluster in distconsole.toml.", Kind.CLUSTER)
    ssh_config: str | None = act(
        None, "OpenSSH's configuration.  [default: ~/.ssh/config]", Kind.FILE
    )
    transport: str | None = act(
        None,
        "What carries the connections: openssh (the system's ssh, for passwords, codes, Kerberos), paramiko "
        "(keys alone, faster), or auto.  [default: auto]",
        TransportName,
        metavar="NAME",
    )
    python: str | None = act(
        None,
        "The nodes' interpreter, for agent, checks and ranks.  [default: python3]",
        Kind.TEXT,
        metavar="PATH",
    )
    setup: str | None = act(
        None, "Run by the node's shell before the interpreter.", Kind.TEXT, metavar="CMD"
    )
    container: str | None = act(
        None,
        "Run ranks and their checks in docker:NAME, podman:NAME, apptainer:FILE, enroot:NAME, or below "
        "a command; further words are the engine's. --python is then a path inside.",
        Kind.TEXT,
        metavar="WHAT",
    )

    @property
    def names_hosts(self) -> bool:
        return any(getattr(self, name) is not None for name in NAMES_OF_HOSTS)

    def over(self, kept: Where) -> Where:
        """Return ``kept`` with what is said here put over it; hosts named here replace its hosts."""
        ways = {name: getattr(self, name) or getattr(kept, name) for name in WAYS_TO_HOSTS}
        return replace(self if self.names_hosts else kept, **ways)

    def beyond(self, kept: Where) -> Where:
        """Return the least that has to be said over ``kept`` to mean this."""
        same = all(getattr(self, name) == getattr(kept, name) for name in NAMES_OF_HOSTS)
        unsaid = [name for name in WAYS_TO_HOSTS if getattr(self, name) == getattr(kept, name)]
        unsaid += NAMES_OF_HOSTS if same else ()
        return replace(self, **dict.fromkeys(unsaid))


def count_of_hosts(nnodes: str | None) -> tuple[int, int] | None:
    """Return the fewest and the most hosts that ``--nnodes`` asks for; None where it is not given."""
    if nnodes is None:
        return None
    fewest, _, most = nnodes.partition(":")
    return int(fewest), int(most or fewest)


LOST_AFTER_SECONDS = 120.0
"""A node that was not heard of for so long is lost, unless ``--lost-after`` says otherwise."""

NPROC_HELP = "Ranks on each host; slots in the host list win.  [default: one per GPU, else 1]"
NPROC_ALSO = ("--nproc-per-node", "--ntasks-per-node", "--npernode")
RANKS_ALSO = ("-np", "--np", "--num-proc", "--num-processes", "--ntasks")


@dataclass(frozen=True, kw_only=True)
class OnHosts:
    where: Where = Where()


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Opens the console on a terminal."""

    theme: str | None = act(
        None,
        "Of the console: dark, light, contrast, terminal, or Textual's.  [default: the last one]",
        Kind.THEME,
    )
    startup: bool | None = act(
        None, "Do the lines of the console's start-up file first.  [default: startup]"
    )


@dataclass(frozen=True, kw_only=True)
class Printed:
    json: bool = plain(False, "Print JSON.")


@dataclass(frozen=True, kw_only=True)
class Noticed:
    notify: str | None = plain(
        None,
        "Report its end, failure and stall by these: bell, desktop, command, webhook, services, "
        "node (its first node posts to the webhook), all, none.  [default: as 'notify' says]",
        Kind.WAYS,
    )


@dataclass(frozen=True, kw_only=True)
class Conditional:
    only: str | None = plain(
        None, "Only what matches this: 'util<10 and host~gpu0'.", Kind.CONDITION, "--where"
    )
    fail_if: str | None = plain(
        None, "Exit with 1 if any of them matches this, and show which.", Kind.CONDITION
    )


@dataclass(frozen=True, kw_only=True)
class PerHost:
    nproc: str | None = plain(None, NPROC_HELP, Kind.NPROC, also=NPROC_ALSO)


@dataclass(frozen=True)
class OfRun:
    """Attributes: run: an id, a unique prefix, a name or ``last``; empty where none was named."""

    run: str


@dataclass(frozen=True)
class Command:
    """The command of another launcher that a launch was read from.

    Attributes:
        starter: What it starts the ranks with, as it was typed; empty where an option of ours says that.
        rows: Each option of it, and what it becomes.
    """

    starter: str = ""
    rows: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Run(OnHosts, Printed, Noticed, Request):
    """Launch SCRIPT with ARGS on every host and follow it to its end.

    In place of SCRIPT stands any command that starts a training: python, torchrun, accelerate launch,
    deepspeed, fabric run, horovodrun, mpirun or srun; --dry-run shows what each option of it becomes.
    Ctrl-C stops the job on every host; a second one kills it, and ends this within 5 seconds.
    Everything behind SCRIPT is the script's own.
    """

    script: str
    arguments: tuple[str, ...] = ()
    launcher: LauncherName = plain(
        LauncherName.AUTO,
        "How the ranks are started. torch: env:// ranks; single: one process a node; slurm: torch or single.",
    )
    nproc: str | None = plain(None, NPROC_HELP, Kind.NPROC, also=NPROC_ALSO)
    ranks: int | None = plain(
        None,
        "Ranks of all hosts together, as mpirun's -np N and srun's -n N.  [default: as --nproc says]",
        Kind.POSITIVE,
        also=RANKS_ALSO,
    )
    nnodes: str | None = plain(
        None,
        "Hosts of the job; with MIN:MAX it goes on while MIN are left (torchrun, elastic Horovod).  "
        "[default: all]",
        Kind.NNODES,
    )
    module: bool = plain(
        False, "SCRIPT is a module, as in python -m.", Kind.FLAG, "--module", "-m"
    )
    env: tuple[tuple[str, str], ...] = needs_trust(
        (), "Set in every rank; may be repeated.", Kind.PAIRS
    )
    env_file: str | None = needs_trusted_file(
        None, "K=V lines, set in every rank; values never appear in argv.", Kind.FILE
    )
    workdir: str | None = needs_trust(
        None,
        "Where the ranks start on the nodes.  [default: this folder]",
        Kind.FOLDER,
        also=("--chdir",),
    )
    sync: bool | None = plain(None, "Bring the code to the nodes first.  [default: no-sync]")
    pass_args: PassArgs | None = plain(
        None, "Add --local_rank, or --init_method --rank --world_size, to the arguments.", PassArgs
    )
    nic: str | None = plain(
        None,
        "The training interface on every host.  [default: auto]",
        Kind.TEXT,
        metavar="NAME|auto",
        also=("--network-interface",),
    )
    max_restarts: int = plain(
        0,
        "Restart the job this often.  [default: 0; with --nnodes MIN:MAX as often as a host may be lost]",
        Kind.COUNT,
        most=1000,
    )
    verify_sync: int | None = plain(
        None, "Every N steps, check that ranks agree.  [default: never]", Kind.POSITIVE
    )
    nccl_debug: bool = plain(
        False, "Report the transports that NCCL uses; its log is in the run's folder.", Kind.FLAG
    )
    log_limit: int | None = plain(
        None,
        "Limit of the ranks' output on each host; more is dropped.  [default: 1GiB]",
        Kind.SIZE,
    )
    store_limit: int | None = plain(
        None,
        "Limit of the run's file here; further output is not kept.  [default: 4GiB]",
        Kind.SIZE,
    )
    slurm: str | None = needs_trust(
        None,
        "Submit a Slurm job with these options of sbatch, and run in it; with any --launcher.",
        Kind.TEXT,
        metavar="OPTIONS",
    )
    slurm_login: str | None = plain(
        None,
        "The host that has Slurm's commands.  [default: this one]",
        Kind.HOSTS,
        metavar="HOST",
    )
    emit: EmitKind | None = plain(
        None, "Write the plan as a file for this starter, and stop.", EmitKind
    )
    output: str | None = needs_trust(
        None, "Where --emit writes to.  [default: stdout]", Kind.FILE, "--output", "-o"
    )
    name: str | None = plain(None, "A name to find the run by.", Kind.TEXT, metavar="NAME")
    grace_seconds: float = plain(
        10.0, "Seconds between SIGTERM and SIGKILL.  [default: 10]", Kind.SECONDS
    )
    lost_after_seconds: float = plain(
        LOST_AFTER_SECONDS,
        "Seconds without a message from a host until it counts as lost.  [default: 120]",
        Kind.SECONDS,
        least=5.0,
    )
    export: str | None = needs_trust(
        None,
        "Send it to these services, too: wandb, mlflow, otlp.  [default: none]",
        Kind.SERVICES,
    )
    watch: bool = plain(True, "Load the hook that counts steps.  [default: watch]")
    detach: bool = plain(False, "Start it, print its id, and leave.", Kind.FLAG, "--detach", "-d")
    dry_run: bool = plain(
        False, "Print what would run on each host, and stop.", Kind.FLAG, "--dry-run", "-n"
    )
    divided: bool = False
    """A ``--`` stood before the script: whatever stands behind it is the script's."""
    command: Command | None = None
    """What the launch was read from where no script was named."""

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


@dataclass(frozen=True)
class Rerun(OnHosts, Printed, Noticed, OfRun, Request):
    """Launch what RUN launched once more."""

    exclude: tuple[str, ...] = plain((), "Without this host; may be repeated.", Kind.HOST_LIST)
    detach: bool = plain(False, "Start it, print its id, and leave.", Kind.FLAG, "--detach", "-d")


@dataclass(frozen=True)
class Foresee(Request):
    """Plan a launch as ``run`` would, say what is in its way; ``launchers``: why each other would not do."""

    run: Run
    launchers: bool = False


@dataclass(frozen=True)
class Launches(Request):
    """List what was launched from here: each launch once, the newest first, at most ``limit``."""

    limit: int = 50


@dataclass(frozen=True)
class Stop(OnHosts, OfRun, Request):
    """Stop RUN: SIGTERM to every process of it, SIGKILL after the grace period."""

    grace_seconds: float | None = plain(
        None,
        "Seconds between SIGTERM and SIGKILL; 0 kills at once.  [default: the run's own]",
        Kind.SECONDS,
    )
    yes: bool = needs_trust(
        False, "Ask nothing (only the console's prompt asks).", Kind.FLAG, "--yes", "-y"
    )


@dataclass(frozen=True)
class Target:
    """A launch to check.

    Attributes:
        python: The interpreter that the command names.
        address: Where the command has the ranks meet, and at which ``port``.
        notes: What a person should know about how the command was read.
    """

    run: Run
    command: tuple[str, ...]
    python: str | None = None
    address: str = ""
    port: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check(OnHosts, Printed, Request):
    """Check that these hosts can train together.

    With SCRIPT or COMMAND, check that launch: the script, its imports, arguments and variables, the
    port, and its collectives. COMMAND is one that run takes, or a whole distconsole run.

    Groups: ssh os python script torch gpu mpi horovod slurm net coll clock fs expect.
    """

    level: Level = plain(Level.STANDARD, "How deep.")
    only: tuple[str, ...] = plain(
        (), "Only these groups or check ids, by prefix.  [default: all]", Kind.GROUPS
    )
    skip: tuple[str, ...] = plain((), "All but these.", Kind.GROUPS)
    budget_seconds: float | None = plain(
        None, "At most this long, for all of it.  [default: no limit]", Kind.SECONDS, least=1.0
    )
    strict: bool = plain(False, "Warnings fail.")
    details: bool = plain(False, "Also evidence, whole hints, and interfaces.")
    junit: str | None = needs_trust(None, "Also write a JUnit report.", Kind.FILE)
    emit_hostfile: str | None = needs_trust(None, "Also write the hosts that passed.", Kind.FILE)
    prove: bool | None = plain(
        None,
        "Try cures: a small test that fails, again with the cure.  [default: from standard on]",
    )
    write_profile: str | None = act(
        None,
        "Put proven cures into distconsole.toml, which run reads.",
        Kind.FILE,
        metavar="[FILE]",
    )
    """Empty for the project's own."""
    nproc: int | None = plain(None, NPROC_HELP, Kind.NPROC, also=NPROC_ALSO)
    target: Target | None = None
    """The launch that is checked; None checks the hosts for any."""

    @property
    def proves(self) -> bool:
        """Whether cures are tried: as asked, else from level standard on."""
        by_level = self.level is not Level.QUICK or self.write_profile is not None
        return by_level if self.prove is None else self.prove


@dataclass(frozen=True)
class Explain(Request):
    check: str


@dataclass(frozen=True)
class Top(OnHosts, Opening, Printed, Conditional, Request):
    """Show the GPUs, processes and load of the hosts, with no run.

    Conditions (--where, --fail-if) are about hosts and GPUs: 'util<10', 'user!=me', 'mem>90%'.
    """

    once: bool = plain(False, "One sample, then stop.")
    interval_seconds: float = plain(
        1.0, "Seconds between samples.  [default: 1]", Kind.SECONDS, least=0.2
    )


@dataclass(frozen=True)
class Prepare(OnHosts, Request):
    """Install Horovod on hosts that lack it, built against their torch.

    It is built once for each kind of host, installed into the Python that the ranks use (--python),
    and checked.
    """

    yes: bool = needs_trust(False, "Ask nothing.", Kind.FLAG, "--yes", "-y")
    dry_run: bool = plain(False, "Print the steps, and stop.")
    source: str | None = needs_trusted_file(
        None, "Horovod's source archive, in place of an index.", Kind.FILE
    )
    rebuild: bool = plain(False, "Build again, also if the installed Horovod fits.")


@dataclass(frozen=True)
class Init(OnHosts, Request):
    """Set this folder up for your hosts: their keys, their Python, and a distconsole.toml.

    Asks for hosts and Python unless they are given, and lists those of ssh_config and of the hosts.
    The file is shown before it is written, and the hosts are checked at the end.
    """

    cluster: str = act(
        "lab", "The hosts' name in the file.  [default: lab]", Kind.TEXT, metavar="NAME"
    )
    yes: bool = needs_trust(
        False, "Ask only before a key is trusted or a file replaced.", Kind.FLAG, "--yes", "-y"
    )


@dataclass(frozen=True)
class Doctor(OnHosts, Printed, Request):
    """Show this installation on one page, to paste into a ticket: it has no secrets.

    Versions, files, keys, terminal, completion and kept runs; hosts only where some are given. Exits with 1
    if something is broken.
    """


COMPLETING_SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class InstallCompletion(Request):
    """Have SHELL complete hosts, runs, checks and options with Tab; without SHELL, your login shell.

    Writes one file of ours, and for bash and zsh a line that reads it into .bashrc or .zshrc.
    """

    shell: str | None = None
    show: bool = act(False, "Print the file, and write nothing.")


@dataclass(frozen=True)
class Runs(OnHosts, Printed, Conditional, Request):
    """List the runs that this machine knows.

    Conditions (--where, --fail-if) are about runs: 'state=failed and age<1d'.
    """

    as_found: bool = False
    """Each as soon as it is read, in no order, and without conditions; one may come again with what its hosts say."""


@dataclass(frozen=True)
class Show(OnHosts, Printed, Conditional, OfRun, Request):
    """Show how RUN went; with a condition those of its ranks that match."""


@dataclass(frozen=True)
class Attach(OnHosts, Opening, Printed, Noticed, OfRun, Request):
    """Follow RUN from its beginning to its end. Leaving it never stops it."""


@dataclass(frozen=True)
class Logs(OnHosts, OfRun, Request):
    """Print the output of RUN's ranks."""

    ranks: RankSpans = plain((), "Only these: 3 or 0-3,8.  [default: all]", Kind.RANKS, "--rank")
    host: str | None = plain(
        None, "Only this host; * stands for anything.  [default: all]", Kind.HOSTS, metavar="H"
    )
    stream: str | None = plain(
        None, "Only stdout, or only stderr.  [default: both]", ("out", "err")
    )
    grep: str | None = plain(None, "Only lines with this; small letters match both.", Kind.PATTERN)
    errors: bool = plain(False, "Only errors, with their tracebacks.")
    since: str | None = plain(
        None,
        "Only from then on: 10m (before the end, or now), 14:05, 2026-11-22T14:05.",
        Kind.SINCE,
    )
    fold: bool = plain(
        False,
        "Print a line of several ranks within seconds once.  [default: no-fold]",
        Kind.FLAG,
        "--fold/--no-fold",
    )
    follow: bool = plain(False, "Go on as lines come.", Kind.FLAG, "--follow", "-f")
    tail: int | None = plain(
        None, "Only the last N lines.  [default: all]", Kind.COUNT, "--tail", "-n"
    )


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which of the jobs is meant that are found on hosts."""

    job: int | None = plain(
        None, "This one of the jobs that are found.  [default: the largest]", Kind.POSITIVE
    )
    pid: int | None = plain(
        None, "The job of this process.  [default: the largest]", Kind.POSITIVE
    )


@dataclass(frozen=True)
class Why(OnHosts, Printed, Chosen, OfRun, Request):
    """Name the rank that the others wait for, its line and its operation.

    Asks all hosts of RUN at once for Python stacks, collectives and process states of the ranks.
    Of a run that is over, the last stored answers are shown.

    With hosts and no RUN, it looks there for your training, whatever started it: torchrun,
    mpirun, horovodrun, srun, mp.spawn, by hand. --hosts alone means those that are configured.
    """

    jobs: bool = False
    """Jobs are looked for, though no hosts are named."""

    @property
    def looks_for_jobs(self) -> bool:
        named = self.jobs or self.where.names_hosts or self.job is not None or self.pid is not None
        return named and not self.run


@dataclass(frozen=True)
class Watch(OnHosts, Opening, Printed, Chosen, Request):
    """Follow training that something else started on the hosts, to its end. Leaving it never stops it.

    It shows the ranks, GPUs and load of the hosts, and output in files. Steps are not seen: only 'run'
    counts them.
    """


@dataclass(frozen=True)
class Trace(OnHosts, OfRun, Request):
    """Profile the ranks of RUN by torch's profiler, into one file for Perfetto.

    RUN goes on, unchanged but for a pause while each rank writes its part. Every rank begins and ends
    where one of its steps ends; ranks are processes there, on one clock, and collectives have arrows.
    """

    seconds: float = plain(1.0, "How long.  [default: 1]", Kind.SECONDS, least=0.01, most=60)
    ranks: RankSpans = plain(
        (), "Only these: 3 or 0-3,8.  [default: all]", Kind.RANKS, "--ranks", "--rank"
    )
    max_mib: int = plain(
        512, "Limit of one rank's part, unpacked, in MiB.  [default: 512]", Kind.POSITIVE
    )
    wait_seconds: float = plain(
        60.0,
        "Longest wait for a rank's next step, and for its part.  [default: 60]",
        Kind.SECONDS,
        "--wait",
        most=600,
    )
    output: str | None = needs_trust(
        None, "The file to write.  [default: RUN-trace.json.gz, here]", Kind.FILE, "--output", "-o"
    )


@dataclass(frozen=True)
class Replay(Opening, OfRun, Request):
    """Show RUN again, on the console's screens; there 'at', 'play' and 'pause' move through it."""

    at: str | None = act(
        None,
        "From there: 14:05:10, 90s after its start, 40%, 'step 1200'.  [default: its end]",
        Kind.MOMENT,
    )


@dataclass(frozen=True)
class Compare(Printed, Request):
    """Compare two to eight runs with the first of them.

    Names the slower run and the cause, then figures with ratios and differences of configuration. In the
    console their curves share one axis: step, time or samples.
    """

    runs: tuple[str, ...]


@dataclass(frozen=True)
class Export(OnHosts, Request):
    """Write RUN as JSON lines, CSV, TensorBoard event files, for Prometheus, Weights & Biases, MLflow, or OpenTelemetry.

    --format prometheus without RUN exports figures of the hosts, as top shows them.
    """

    run: str | None
    format: ExportFormat = plain(ExportFormat.JSONL, "What to write.")
    output: str | None = needs_trust(
        None,
        "File, or folder for tensorboard, wandb, mlflow and the tables of csv.  [default: stdout]",
        Kind.PATH,
        "--output",
        "-o",
    )
    table: ExportTable | None = plain(
        None,
        f"csv: this table alone, of {', '.join(ExportTable)} (every number of the run, one a row).  "
        "[default: all in a folder, else numbers]",
        ExportTable,
        metavar="TABLE",
    )
    follow: bool = plain(False, "Go on with a run until it ends.", Kind.FLAG, "--follow", "-f")
    listen: tuple[str, int] | None = needs_trust(
        None, "prometheus: serve at this loopback address until Ctrl-C.", Kind.LOOPBACK
    )
    interval_seconds: float = plain(
        5.0,
        "prometheus, otlp: seconds between two updates.  [default: 5]",
        Kind.SECONDS,
        least=0.2,
    )

    @property
    def goes_on(self) -> bool:
        return self.follow or self.listen is not None

    @property
    def writes_tables(self) -> bool:
        return self.format is ExportFormat.CSV and self.table is None


@dataclass(frozen=True)
class ReportPage(OnHosts, OfRun, Request):
    """Write RUN, over or going on, as one HTML page that needs no network."""

    output: str | None = needs_trust(
        None, "The page to write.  [default: RUN.html, here]", Kind.FILE, "--output", "-o"
    )


@dataclass(frozen=True)
class Bench(OnHosts, Printed, PerHost, Request):
    """Measure the hosts' collectives, or one model (ResNet-18) under every strategy.

    collectives: every operation from 4 B to 64 MiB, each result verified to the last bit; a table an
    operation with nccl-tests' bandwidths.

    strategies: every strategy that the hosts can run trains on the same generated images, in turns,
    each as an ordinary run; then a table and a chart. Ctrl-C ends it all.
    """

    only: tuple[StrategyName, ...] = plain(
        (), f"Only these strategies: {', '.join(StrategyName)}.  [default: all]", StrategyName
    )
    skip: tuple[StrategyName, ...] = plain((), "All but these.", StrategyName)
    rounds: int = plain(3, "Runs of each strategy.", Kind.POSITIVE)
    epochs: int = plain(3, "Epochs of each run.", Kind.POSITIVE)
    images: int | None = plain(
        None,
        "Images of an epoch, over all ranks.  [default: 50000 on GPUs, else 512]",
        Kind.POSITIVE,
        most=50_000,
    )
    batch: int | None = plain(
        None, "Images that a rank reads at once.  [default: 128 on GPUs, else 32]", Kind.POSITIVE
    )
    width: int | None = plain(
        None,
        "Channels of the network's first stage.  [default: 64 on GPUs, else 16]",
        Kind.POSITIVE,
    )
    precision: PrecisionName = plain(PrecisionName.FP32, "Number format of the model.")


@dataclass(frozen=True)
class BenchCollectives(OnHosts, Printed, PerHost, Request):
    """Measure collectives over the hosts; nothing in ``ops`` or ``sizes`` stands for the usual ones."""

    launcher: LauncherName = plain(
        LauncherName.TORCH,
        "collectives: launcher and library of the ranks.",
        (LauncherName.TORCH, LauncherName.HOROVOD, LauncherName.MPI),
    )
    ops: tuple[CollectiveName, ...] = plain(
        (),
        f"collectives: only these of {', '.join(CollectiveName)}.  [default: all]",
        CollectiveName,
    )
    sizes: tuple[int, ...] = plain(
        (), "collectives: bytes, such as 4,64K,1M.  [default: 4 to 64M]", Kind.SIZES
    )
    budget_seconds: float | None = plain(
        None,
        "collectives: at most this long, for all of it.  [default: no limit]",
        Kind.SECONDS,
        least=1.0,
    )


@dataclass(frozen=True)
class OpenConsole(Opening, OnHosts, Request):
    """Open the full-screen console on the hosts given."""


@dataclass(frozen=True)
class Demo(Printed, Opening, Request):
    """Start an embedded cluster on this machine, check it, and train on it.

    A rank becomes slow and another fails, and the console finds both. The ranks need Python alone.
    """

    nodes: int = plain(2, "Nodes to embed, at most 8.", Kind.POSITIVE, most=8)
    torch: bool = plain(False, "Train a real network with torch, which must be installed.")
    headless: bool = plain(False, "Lines instead of the console.")


@dataclass(frozen=True)
class Notify(Request):
    """List the ways in which a run's end, failure and stall reach you; with test, try them.

    The table [notify] of your configuration sets them; --notify of a run chooses among them.
    """

    test: bool = False


@dataclass(frozen=True)
class Trust(Request):
    """Trust the distconsole.toml of FOLDER, or of this folder, as it is now.

    Keys that can execute a program (python, setup, ssh_config, env …) count only then, until the file
    changes.
    """

    folder: str = "."
    revoke: bool = act(False, "Trust it no longer.")


@dataclass(frozen=True)
class ShowHelp(Request):
    """Print text that the grammar made (``--help``, ``--version``)."""

    text: str
