"""This user's processes that may train, read from /proc: of their environment only the variables of ranks."""

from __future__ import annotations

import os
from typing import NamedTuple

from distconsole_agent.supervisor.proctree import EMBEDDED, read_in_time
from distconsole_agent.system.command_lines import is_ours, read_target, split_words
from distconsole_agent.system.procfs import Process, all_processes
from distconsole_agent.telemetry.mapping import VISIBLE

MAX_PROCESSES = 1024
"""Of one user that are looked into; the newest."""


class Scheme(NamedTuple):
    """The variables of one engine: rank, world size, and both on this host."""

    rank: str
    size: str
    local: str
    local_size: str
    launcher: str


SCHEMES = (
    Scheme("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "by hand"),
    *(
        Scheme(f"{of}_RANK", f"{of}_SIZE", f"{of}_LOCAL_RANK", f"{of}_LOCAL_SIZE", launcher)
        for of, launcher in (
            ("HOROVOD", "horovodrun"),
            ("OMPI_COMM_WORLD", "mpirun"),
            ("MV2_COMM_WORLD", "mpirun"),
        )
    ),
    Scheme("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec"),
    Scheme("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "srun"),
)
"""Nearest engine first, as the hook reads them (``distconsole_training.identity``)."""

KEPT = frozenset(
    (
        *(name for scheme in SCHEMES for name in scheme[:4] if name),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"),
        *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "PMI_PORT"),
        *("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"),
        *("TORCH_WORKER_SERVER_SOCKET", "DISTCONSOLE_RUN_DIR", EMBEDDED, *VISIBLE),
    )
)
"""An environment holds secrets: whatever is not named here is forgotten as it is read."""

MAX_VALUE = 256
MAX_DEPTH = 64

LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run"), "torchrun"),
    "torch.distributed.launch": "torch.distributed.launch",
    **dict.fromkeys(("accelerate", "accelerate.commands.launch"), "accelerate"),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.launch"), "deepspeed"),
    **dict.fromkeys(("horovodrun", "horovod.runner.launch"), "horovodrun"),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "orted", "prted"), "mpirun"),
    **dict.fromkeys(("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy"), "mpiexec"),
    **dict.fromkeys(("srun", "slurmstepd"), "srun"),
}
"""By program, module or name in the kernel, its usual name."""

SPAWNED = "multiprocessing.spawn"


class SeenProcess(NamedTuple):
    """A process of this user; ``words`` is its command line, ``told`` its environment's variables of ``KEPT``."""

    process: Process
    words: tuple[str, ...]
    told: dict[str, str]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_python(self) -> bool:
        names = (_base(self.words[0]) if self.words else "", self.process.name)
        return any(name.startswith(("python", "pt_main_thread")) for name in names)

    @property
    def fitness(self) -> int:
        """How surely this process is the one that trains, and no wrapper around it."""
        return self.is_python + (self.process.name == "pt_main_thread")

    @property
    def spawned(self) -> bool:
        """Whether ``multiprocessing`` has started it by spawn, as ``mp.spawn`` does."""
        return any(SPAWNED in word and "spawn_main" in word for word in self.words[:8])

    @property
    def script(self) -> str:
        """The script's file or module, without its arguments; empty without one."""
        if self.is_python:
            target = read_target(self.words)
            return target.option if target.option == "-c" else target.name
        return _base(self.words[0]) if self.words else ""

    @property
    def launcher(self) -> str:
        """This launcher's name; empty for another process."""
        if self.words and self.is_python:
            return LAUNCHERS.get(_base(self.script), "")
        first = _base(self.words[0]) if self.words else ""
        return LAUNCHERS.get(first) or LAUNCHERS.get(self.process.name, "")


Tree = dict[int, Process]


def read_processes(root: str = "/proc") -> tuple[Tree, dict[int, SeenProcess]]:
    """Return all processes, and those of this user that may train or launch, each by pid."""
    tree = all_processes(root)
    own = [each for each in tree.values() if each.uid == os.getuid() and not each.has_ended]
    own = sorted((each for each in own if each.pid != os.getpid()), key=lambda one: -one.starttime)
    own = own[:MAX_PROCESSES]
    lines = read_in_time([f"{root}/{each.pid}/cmdline" for each in own])
    seen: dict[int, SeenProcess] = {}
    for each, line in zip(own, lines.values()):
        words = split_words(line or b"")
        if not is_ours(words):
            seen[each.pid] = SeenProcess(each, words, {})
    launchers = {pid for pid, one in seen.items() if one.launcher}
    launchers |= {pid for pid, each in tree.items() if each.name in LAUNCHERS}
    looked = [pid for pid, one in seen.items() if one.is_python or one.process.ppid in launchers]
    texts = read_in_time([f"{root}/{pid}/environ" for pid in looked])
    node = os.environ.get(EMBEDDED)
    for pid, text in zip(looked, texts.values()):
        told = _keep(text or b"")
        if node is not None and told.get(EMBEDDED) != node:
            del seen[pid]
        else:
            seen[pid] = seen[pid]._replace(told=told)
    return tree, seen


def launcher_above(pid: int, tree: Tree, seen: dict[int, SeenProcess]) -> str:
    """Return the name of the nearest launcher above a process; empty without one."""
    for _ in range(MAX_DEPTH):
        above = tree.get(pid)
        if above is None or above.ppid < 1:
            break
        pid = above.ppid
        if pid in seen and seen[pid].launcher:
            return seen[pid].launcher
        if pid in tree and tree[pid].name in LAUNCHERS:
            return LAUNCHERS[tree[pid].name]
    return ""


def _keep(text: bytes) -> dict[str, str]:
    kept = {}
    for word in text.split(b"\0"):
        name, equals, value = word.partition(b"=")
        if equals and name.decode("ascii", "replace") in KEPT:
            kept[name.decode("ascii")] = value[:MAX_VALUE].decode("utf-8", "replace")
    return kept


def _base(path: str) -> str:
    return path.rpartition("/")[2].lstrip("-")
