"""A job as its script wants it."""

from __future__ import annotations

from dataclasses import dataclass, field


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
        shell: Launches of a shell script, or of Python that starts a launcher.
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
