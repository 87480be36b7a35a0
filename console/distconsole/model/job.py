"""A job as its script wants it and as placed: values that the planner makes and the executor reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from distconsole.model.names import HostName, Rank, RunId


@dataclass(frozen=True, slots=True)
class ShellStart:
    """A command of a shell script that starts ranks: the launcher's name, its line and words.

    Attributes:
        left: It is left in the background, and the script waits for nothing.
        remote: It is started by ssh or the like.
    """

    name: str
    line: int
    words: tuple[str, ...]
    left: bool = False
    remote: bool = False


@dataclass(frozen=True, slots=True)
class ShellScript:
    """Launches in a shell script.

    Attributes:
        unread: Why not all of it could be read; empty if all was.
        unknown: Commands that only the host knows: variables that the script does not set, scripts that are not here.
        pythons: Scripts of Python that it starts.
        beside: Two of ``starts`` (or one twice) that run at the same time on a host.
        system: The batch system of its job lines: ``SBATCH`` for ``#SBATCH``; empty without any.
        directives: The options of those lines.
        in_job: It uses variables of such a job.
        ends_as_windows: Its lines end with CRLF.
    """

    starts: tuple[ShellStart, ...] = ()
    unread: str = ""
    unknown: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    beside: tuple[ShellStart, ...] = ()
    system: str = ""
    directives: tuple[str, ...] = ()
    in_job: bool = False
    ends_as_windows: bool = False


@dataclass(frozen=True, slots=True)
class ScriptTraits:
    """Traits of a script; options are as it declares them, and empty otherwise.

    Attributes:
        here: The script is on this machine.
        interpreter: Interpreter of its first line, if that is not Python.
        shell: Launches of a shell script.
        readable: The source could be read and parsed here; else nothing below holds.
        elastic: It uses elastic Horovod (``hvd.elastic``).
        torch: It imports torch, or something that is built on it.
        distributed: It initialises torch.distributed, or uses a library that does.
        data_parallel: It wraps a model in ``nn.DataParallel`` (one process, all GPUs of a node), and opens no process group.
        spawns: It starts its own ranks (``mp.spawn``).
        spawn_flag: The flag without which it starts none.
        ray: It is a driver of Ray, and opens no process group itself.
        slurm: It reads ``SLURM_PROCID`` or the like.
        modules: Top-level modules that it imports; none if it changes ``sys.path``.
        reports: It imports ``distconsole_training``, which comes with a run's hook.
        backend: The backend of its process group if the source fixes it, in lower case.
    """

    here: bool = False
    interpreter: tuple[str, ...] = ()
    shell: ShellScript | None = None
    readable: bool = False
    horovod: bool = False
    elastic: bool = False
    mpi: bool = False
    torch: bool = False
    distributed: bool = False
    data_parallel: bool = False
    spawns: bool = False
    ray: bool = False
    spawn_flag: str = ""
    slurm: bool = False
    local_rank: str = ""
    init_method: str = ""
    rank: str = ""
    world_size: str = ""
    stdin: bool = False
    reports: bool = False
    modules: frozenset[str] = field(default=frozenset(), compare=False)
    backend: str = ""

    @property
    def meets_by_arguments(self) -> bool:
        """True if it declares all options for the ranks' meeting point."""
        return bool(self.init_method and self.rank and self.world_size)


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One process to start.

    Attributes:
        rank: Its global rank; with ``single`` and ``torchrun`` the index of the node.
        argv: The command; ``{port}`` in a word stands for the rendezvous port, known at start, and
            ``{run_dir}`` for the run's folder on the node.
        env: Variables of this rank alone; placeholders as above.
        by_hand: The command to type instead, if it differs.
    """

    rank: Rank
    local_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    by_hand: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Processes of one node.

    Attributes:
        ranks: The processes, in the order of their ranks.
        world_ranks: The global ranks that will live here (more than ``ranks`` under ``torchrun``).
        env: Added to the environment of every process; placeholders as in ``RankPlacement``.
        unset: Variables removed from it first.
        beside: A shell command that has to run beside the ranks when a person starts them by hand;
            in a run of ours the shim does its part.
        driver: The command of a process of the first node's shim that decides which ranks start
            (elastic Horovod); ``{agent}`` stands for our own program there. Empty if all start at once.
    """

    host: HostName
    address: str
    nic: str | None
    ranks: tuple[RankPlacement, ...]
    world_ranks: tuple[Rank, ...]
    env: dict[str, str]
    unset: tuple[str, ...] = ()
    workdir: str | None = None
    setup: str | None = None
    container: str | None = None
    beside: str = ""
    driver: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that starting needs; made by a pure function, printed by ``--dry-run``.

    Attributes:
        engine_ranks: True when the processes are the ranks themselves; False when an engine
            (torchrun, mp.spawn) starts them below and they are found by their recorder.
        slurm_job: The Slurm job that the run is a step of; None outside of Slurm.
        slurm_held: Whether that job was submitted for this run and ends with it.
        slurm_containers: pyxis's options of that step, as ``--slurm`` has them.
        code: The tree that ``--sync`` brings, which becomes ``{run_dir}/code``; None without.
        needs: Scripts that every node must have, or nothing is started.
        starts: The launcher in the script; empty if none is known.
        max_restarts: Restarts of failed ranks by the shims.
        lost_after_seconds: A node without a sign of life for this long is lost.
        min_nodes: The run goes on with at least this many nodes; None ends it with the first lost.
        log_bytes: The most that the ranks' logs may take on each node; None leaves it to the agent.
    """

    run: RunId
    name: str
    launcher: str
    why: str
    world_size: int
    nodes: tuple[NodePlan, ...]
    script: str
    engine_ranks: bool = True
    grace_seconds: float = 10.0
    lost_after_seconds: float = 120.0
    watch: bool = True
    notes: tuple[str, ...] = field(default=())
    slurm_job: str | None = None
    slurm_held: bool = False
    slurm_containers: tuple[str, ...] = ()
    code: str | None = None
    needs: tuple[str, ...] = field(default=())
    starts: str = ""
    min_nodes: int | None = None
    max_restarts: int = 0
    log_bytes: int | None = None
