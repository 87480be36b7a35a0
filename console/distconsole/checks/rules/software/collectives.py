"""Checks of group ``coll``: what the ranks of short jobs over all hosts found, by torch and by the engines."""

from __future__ import annotations

from collections.abc import Callable

from distconsole.checks.engine.results import NotApplicable, RuleResults, warn
from distconsole.checks.engine.rule import HostView, Judge, Rule, hint, host_rule, rule
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.jobs import (
    CollFacts,
    HorovodCollFacts,
    HorovodMpiFacts,
    MpiCollFacts,
    MpiSshFacts,
    RankReport,
)
from distconsole.checks.facts.node import MpiFacts, OsFacts
from distconsole.checks.rules.network.ssh import NEEDED_BY
from distconsole.checks.rules.software.ranks import (
    Job,
    judge_end,
    judge_meeting,
    judge_places,
    judge_values,
)
from distconsole.checks.rules.system.limits import find_lower_limits
from distconsole.model.requests import Level

JUDGES = (judge_meeting, judge_places, judge_values, judge_end)


def _judge_job(kind: type[CollFacts], mend: str, *rows: tuple[str, str, str]) -> tuple[Rule, ...]:
    """Return the checks of one job, of each row: name, what it catches, what to do.

    ``mend`` is what to do where its ranks are not who they should be.
    """

    def judge_by(judge: Callable[[Job], RuleResults]) -> Judge:
        return lambda view: judge(Job(kind, view, mend))

    return tuple(
        Rule(name, "coll", Level.STANDARD, (kind,), catches, hint, judge_by(judge))
        for judge, (name, catches, hint) in zip(JUDGES, rows, strict=True)
    )


NOT_MET = "See the findings of net.* and os.hostname_bindable."
CRASHED = "Look at the rank's last lines."

TORCH_RULES = _judge_job(
    CollFacts,
    "look at the variables RANK and WORLD_SIZE that the ranks get",
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
)
HOROVOD_RULES = _judge_job(
    HorovodCollFacts,
    "look at the variables HOROVOD_RANK and HOROVOD_SIZE: does --setup change them?",
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
)


@hint("HOROVOD_CONTROLLER=gloo, or one MPI for Horovod and mpirun.")
@rule("horovod.by_mpi", "coll", Level.FULL, HorovodMpiFacts)
def _by_mpi(view: View) -> RuleResults:
    """A Horovod that works by Gloo and not by MPI, where it was built with both: ranks that do not meet, wrong sums."""
    mend = (
        "HOROVOD_CONTROLLER=gloo does without MPI; else put one MPI first on the PATH by --setup"
    )
    for judge in JUDGES:
        said = list(judge(Job(HorovodMpiFacts, view, mend)))
        yield from said
        if said:
            return


MPI_RULES = _judge_job(
    MpiCollFacts,
    "the MPI library is not that of the mpirun on the PATH: put one MPI first by --setup, e.g.\n"
    "--setup 'export PATH=/opt/openmpi/bin:$PATH LD_LIBRARY_PATH=/opt/openmpi/lib'",
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
)


@hint("Look for ulimit in what runs before the ranks.")
@host_rule("mpi.limits", "coll", Level.STANDARD, MpiCollFacts, MpiFacts, OsFacts)
def _limits(host: HostView) -> RuleResults:
    """Less locked memory or fewer open files below mpirun than in a login: RDMA fails in jobs only."""
    facts = host.of(MpiCollFacts)
    found = next(filter(None, map(_soft_limits, facts.ranks)), None)
    if found is None:
        yield NotApplicable(facts.refused or "no rank told its limits")
        return
    hint = "look for ulimit in --setup and in what the shell runs before the ranks"
    yield from find_lower_limits("mpirun's ranks", host, found, hint)


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


MPI_HINTS = {
    "orted": "the daemon is not on the PATH that ssh gives: move the export of PATH to the top of "
    "~/.bashrc (ssh.path_noninteractive), or mpirun --prefix",
    "unable to launch the specified application": "the same Python at the same path on all hosts",
}


@hint("Move the export of PATH above the interactive guard of ~/.bashrc, or mpirun --prefix.")
@host_rule("mpi.ssh", "coll", Level.STANDARD, MpiSshFacts)
def _mpi(host: HostView) -> RuleResults:
    """A plain mpirun over ssh, where the first host reaches all others so, that does not start its ranks."""
    facts = host.of(MpiSshFacts)
    places = sorted((group.get("rank"), group.get("world_size")) for group in facts.groups)
    size, text = len(facts.hosts), "\n".join(facts.said)
    met = places == [(rank, size) for rank in range(size)] and facts.exit_code == 0
    if met or not size:
        return
    reason = next((line for line in facts.said if not line.startswith(" ")), "")
    if {world for _, world in places} == {1}:
        reason = "every rank says size 1"
    elif facts.exit_code is None:
        reason = reason or "it did not end in time"
    yield warn(
        f"a plain mpirun over ssh on {host} does not start one rank on each of {size} hosts: "
        f"{reason or f'exit code {facts.exit_code}'}",
        facts.hosts,
        seen="\n".join((f"ranks: {places}", *facts.said)),
        expected=f"ranks 0 to {size - 1} of {size}",
        hint=next((hint for words, hint in MPI_HINTS.items() if words in text), NEEDED_BY),
    )
