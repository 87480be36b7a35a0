"""Checks of group ``coll``: what the ranks of short jobs over all hosts found, by torch and by the engines."""

from __future__ import annotations

from functools import partial

from distconsole.checks.engine.rule import (
    HostView,
    NotApplicable,
    Rule,
    RuleResults,
    hint,
    host_rule,
    rule,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.jobs import (
    CollFacts,
    HorovodCollFacts,
    HorovodMpiFacts,
    MpiCollFacts,
    RankReport,
)
from distconsole.checks.facts.node import MpiFacts, OsFacts
from distconsole.checks.rules.software.ranks import (
    Judged,
    judge_end,
    judge_meeting,
    judge_places,
    judge_values,
)
from distconsole.checks.rules.system.limits import lower_than_a_login
from distconsole.model.requests import Level

JUDGES = (judge_meeting, judge_places, judge_values, judge_end)
TORCH = Judged(CollFacts)
HOROVOD = Judged(
    HorovodCollFacts,
    "look at the variables HOROVOD_RANK and HOROVOD_SIZE: does --setup change them?",
)
MPI = Judged(
    MpiCollFacts,
    "the MPI library is not that of the mpirun on the PATH: put one MPI first by --setup, e.g.\n"
    "--setup 'export PATH=/opt/openmpi/bin:$PATH LD_LIBRARY_PATH=/opt/openmpi/lib'",
)
BY_MPI = Judged(
    HorovodMpiFacts,
    mend="HOROVOD_CONTROLLER=gloo does without MPI; else put one MPI first on the PATH by --setup",
)


@rule("horovod.by_mpi", "coll", Level.FULL, HorovodMpiFacts)
@hint("HOROVOD_CONTROLLER=gloo, or one MPI for Horovod and mpirun.")
def _by_mpi(view: View) -> RuleResults:
    """A Horovod that works by Gloo and not by MPI, where it was built with both: ranks that do not meet, wrong sums.

    All that is asked of a job, the first that is wrong.
    """
    for judge in JUDGES:
        said = list(judge(BY_MPI, view))
        yield from said
        if said:
            return


@host_rule("mpi.limits", "coll", Level.STANDARD, MpiCollFacts, MpiFacts, OsFacts)
@hint("Look for ulimit in what runs before the ranks.")
def _limits(host: HostView) -> RuleResults:
    """Less locked memory or fewer open files below mpirun than in a login: RDMA fails in jobs only.

    What mpirun's ranks may, against what a process of the agent may.
    """
    facts = host.of(MpiCollFacts)
    found = next(filter(None, map(_soft_limits, facts.ranks)), None)
    if found is None:
        yield NotApplicable(facts.refused or "no rank told its limits")
        return
    hint = "look for ulimit in --setup and in what the shell runs before the ranks"
    yield from lower_than_a_login("mpirun's ranks", host, found, hint)


def _soft_limits(rank: RankReport) -> dict[str, int | None] | None:
    for group in (said.get("group") for said in rank.said):
        limits = group.get("limits") if isinstance(group, dict) else None
        if isinstance(limits, dict):
            return {
                key: pair[0]
                for key, pair in limits.items()
                if isinstance(pair, list) and pair and isinstance(pair[0], int | None)
            }
    return None


def _judge_job(job: Judged, *rows: tuple[str, str, str]) -> list[Rule]:
    """Return the checks of one job, of each row: name, what it catches, what to do."""
    return [
        Rule(name, "coll", Level.STANDARD, (job.kind,), catches, hint, partial(judge, job))
        for judge, (name, catches, hint) in zip(JUDGES, rows, strict=True)
    ]


NOT_MET = "See the findings of net.* and os.hostname_bindable."
CRASHED = "Look at the rank's last lines."

RULES: tuple[Rule, ...] = (
    *_judge_job(
        TORCH,
        (
            "coll.init",
            "Ranks that do not meet; names those that did not arrive, within seconds.",
            NOT_MET,
        ),
        (
            "coll.rank_size",
            "Ranks that are not who they should be: world size 1 everywhere, a rank twice.",
            "Look at the variables RANK and WORLD_SIZE of the hosts.",
        ),
        (
            "coll.correct",
            "Wrong sums, and collectives that hang from some size on (MTU, locked memory).",
            "Take the host out; for a hang, look at the size at which it began.",
        ),
        ("coll.ending", "Ranks that crash when the group is taken down.", CRASHED),
    ),
    *_judge_job(
        HOROVOD,
        (
            "horovod.init",
            "Horovod's ranks, started as `run --launcher horovod` starts them, do not meet; names the missing.",
            NOT_MET,
        ),
        (
            "horovod.rank_size",
            "Horovod's rank, size, local and cross rank are not as planned: every rank has local_rank 0.",
            "Look at the HOROVOD_* variables of the hosts.",
        ),
        (
            "horovod.correct",
            "Wrong sums by Horovod, and collectives of it that hang.",
            "Rebuild Horovod against the torch that is there.",
        ),
        ("horovod.ending", "Ranks that crash in hvd.shutdown().", CRASHED),
    ),
    _by_mpi,
    *_judge_job(
        MPI,
        (
            "mpi.launch",
            "mpirun, as `run --launcher mpi` starts it (no ssh between hosts), does not start its ranks: "
            "no daemon on the PATH, MPIs that differ, a network that does not lead back.",
            "Put one MPI first on the PATH of every host by --setup.",
        ),
        (
            "mpi.rank_size",
            "MPI says size 1 everywhere: the library is another MPI's than mpirun.",
            "Put the right MPI first on PATH and LD_LIBRARY_PATH.",
        ),
        (
            "mpi.correct",
            "Wrong sums by MPI, and an all-reduce that hangs (docker0's address on several hosts).",
            "Include the real network by its subnet: btl_tcp_if_include.",
        ),
        ("mpi.ending", "Ranks that crash in MPI_Finalize.", CRASHED),
    ),
    _limits,
)
