"""From processes to jobs: which rank of which world each is, by environment, arguments, parents and sockets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from distconsole_agent.survey.processes import SCHEMES, Scheme, SeenProcess, Tree, launcher_above

MAX_RANK = 1_000_000
LOOPBACK = ("localhost", "127.", "::1", "[::1]")
END_OF_STEPS = 1 << 31
"""Step numbers from here on are Slurm's own, such as that of the batch script."""

_ARGUMENT = re.compile(r"--?(local[_-]rank|rank|world[_-]size)(?:=(\d+))?")
_ENDPOINT = re.compile(r"tcp://([\w.\-\[\]:]+:\d+)")


@dataclass
class Rank:
    """A process that is a rank; ``local`` on its host, -1 if unknown."""

    rank: int
    local: int
    seen: SeenProcess


@dataclass
class SurveyedJob:
    """The part of a world that runs here.

    Attributes:
        here: Whether its endpoint means this host alone.
        size: Of the world; 0 if unknown.
        local_size: Ranks that were started on this host; 0 if unknown.
        spawned: Ranks are counted from 0 on this host, in the order of their start.
    """

    launcher: str
    script: str
    endpoint: str
    ident: str
    here: bool
    size: int = 0
    local_size: int = 0
    spawned: bool = False
    run: str = ""
    ranks: dict[int, Rank] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return (
            "|".join((self.endpoint, self.ident)) if self.endpoint or self.ident else self.script
        )

    def gone(self) -> list[int]:
        """Return the ranks that were started here, of which no process is left."""
        known = [each for each in self.ranks.values() if each.local >= 0]
        firsts = {each.rank - each.local for each in known}
        if len(firsts) != 1 or len(known) != len(self.ranks):
            return []
        first = firsts.pop()
        return [rank for rank in range(first, first + self.local_size) if rank not in self.ranks]


def find_jobs(
    tree: Tree,
    seen: dict[int, SeenProcess],
    meets: Callable[[Sequence[int]], str] = lambda _pids: "",
) -> list[SurveyedJob]:
    """Return the jobs of these processes, the one with the most ranks first.

    Args:
        meets: Where processes meet by their sockets: the address to which all of them have a connection.
    """
    jobs: dict[str, SurveyedJob] = {}
    parents = _spawning(seen)
    for one in sorted(seen.values(), key=lambda each: (each.process.starttime, each.pid)):
        if one.launcher or one.spawned or one.pid in parents:
            continue
        found = _by_variables(one) or _by_arguments(one) or _alone(one, tree, seen)
        if found is None:
            continue
        job, rank = found
        job.launcher = launcher_above(one.pid, tree, seen) or job.launcher
        _add(jobs, job, rank)
    for pid, children in parents.items():
        job = _spawn_job(seen[pid], children, meets)
        for index, child in enumerate(children):
            _add(jobs, job, Rank(index, index, child))
    return sorted(jobs.values(), key=lambda job: (-len(job.ranks), job.key))


def _add(jobs: dict[str, SurveyedJob], job: SurveyedJob, rank: Rank) -> None:
    """Add a rank; of several processes with one number, the fittest stands for it (``SeenProcess.fitness``)."""
    known = jobs.setdefault(job.key, job)
    known.local_size = known.local_size or job.local_size
    before = known.ranks.get(rank.rank)
    if before is None or rank.seen.fitness > before.seen.fitness:
        known.ranks[rank.rank] = rank
        known.script = job.script


def _number(text: str | None, most: int = MAX_RANK) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 11 and int(text) <= most else -1


def _by_variables(one: SeenProcess) -> tuple[SurveyedJob, Rank] | None:
    told = one.told
    in_step = _number(told.get("SLURM_STEP_ID"), END_OF_STEPS) >= 0
    for scheme in SCHEMES:
        rank, size = _number(told.get(scheme.rank)), _number(told.get(scheme.size))
        if rank < 0 or (scheme.launcher == "srun" and not in_step):
            continue
        # Slurm's own plugin (mpi/pmi2) sets them, too; an mpiexec inside a step sets its own, with other ranks.
        slurms = told.get("SLURM_PROCID"), told.get("SLURM_NTASKS")
        if (
            scheme.rank == "PMI_RANK"
            and in_step
            and slurms == (told["PMI_RANK"], told.get("PMI_SIZE"))
        ):
            continue
        endpoint, ident = _meeting_of(scheme, told)
        job = SurveyedJob(
            launcher=scheme.launcher,
            script=_name(one.script),
            endpoint=endpoint,
            ident=ident,
            here=endpoint.startswith(LOOPBACK) or not (endpoint or ident),
            size=max(size, 0),
            local_size=max(0, _number(told.get(scheme.local_size))),
            run=told.get("DISTCONSOLE_RUN_DIR", "").rstrip("/").rpartition("/")[2],
        )
        return job, Rank(rank, _number(told.get(scheme.local)), one)
    return None


def _meeting_of(scheme: Scheme, told: dict[str, str]) -> tuple[str, str]:
    if scheme.rank == "RANK":
        address, port = told.get("MASTER_ADDR", ""), told.get("MASTER_PORT", "")
        return f"{address}:{port}".strip(":"), told.get("TORCHELASTIC_RUN_ID", "")
    if scheme.rank == "HOROVOD_RANK":
        names = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
        address, port = (told.get(name, "") for name in names)
        return f"{address}:{port}".strip(":"), ""
    if scheme.launcher == "srun":
        return "", f"Slurm job {told.get('SLURM_JOB_ID', '')}.{told['SLURM_STEP_ID']}"
    idents = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_PORT")
    return "", next((told[name] for name in idents if told.get(name)), "")


def _by_arguments(one: SeenProcess) -> tuple[SurveyedJob, Rank] | None:
    if not one.is_python:
        return None
    given: dict[str, int] = {}
    for word, after in zip(one.words, (*one.words[1:], "")):
        match = _ARGUMENT.fullmatch(word)
        if match is not None:
            given[match[1].replace("-", "_")] = _number(match[2] or after)
    if min(given.get("rank", -1), given.get("world_size", -1)) < 0:
        return None
    endpoint = next((m[1] for word in one.words if (m := _ENDPOINT.search(word))), "")
    here = endpoint.startswith(LOOPBACK)
    job = SurveyedJob("by hand", _name(one.script), endpoint, "", here, given["world_size"])
    return job, Rank(given["rank"], given.get("local_rank", -1), one)


def _alone(
    one: SeenProcess, tree: Tree, seen: dict[int, SeenProcess]
) -> tuple[SurveyedJob, Rank] | None:
    """Return a world of one: a process with torch's name for a main thread, started by no other of its script."""
    above = tree.get(one.process.ppid)
    if one.process.name != "pt_main_thread" or (
        above is not None and above.name == one.process.name
    ):
        return None
    if one.process.ppid in seen and seen[one.process.ppid].script == one.script:
        return None
    job = SurveyedJob("by hand", _name(one.script), "", f"pid {one.pid}", here=True, size=1)
    return job, Rank(0, 0, one)


def _spawning(seen: dict[int, SeenProcess]) -> dict[int, list[SeenProcess]]:
    """Return each script that has started two or more of its ranks by ``mp.spawn``, and these in order."""
    children: dict[int, list[SeenProcess]] = {}
    for one in sorted(seen.values(), key=lambda each: (each.process.starttime, each.pid)):
        above = seen.get(one.process.ppid)
        if one.spawned and one.process.name != "pt_data_worker" and above is not None:
            children.setdefault(above.pid, []).append(one)
    return {
        pid: each
        for pid, each in children.items()
        if len(each) > 1
        and not (seen[pid].spawned or seen[pid].launcher or _by_variables(seen[pid]))
    }


def _spawn_job(
    parent: SeenProcess, children: list[SeenProcess], meets: Callable[[Sequence[int]], str]
) -> SurveyedJob:
    endpoint = meets([child.pid for child in children])
    here = endpoint.startswith(LOOPBACK) or not endpoint
    ident = f"pid {parent.pid}" if here else ""
    script, count = _name(parent.script), len(children)
    return SurveyedJob(
        "mp.spawn", script, endpoint, ident, here, 0 if endpoint else count, count, spawned=True
    )


def _name(script: str) -> str:
    return "".join(
        letter if letter.isprintable() else "?" for letter in script.rpartition("/")[2]
    )[:128]
