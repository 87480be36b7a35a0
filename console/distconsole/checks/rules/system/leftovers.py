"""Checks of group ``os`` on what earlier jobs left behind: processes, and files in shared memory."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from distconsole.checks.engine.rule import (
    HERE,
    RuleResult,
    RuleResults,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import PortFacts
from distconsole.checks.facts.node import (
    OsFacts,
    ProcFacts,
    ShmEntry,
    ShmFacts,
    TrainingProcess,
    Who,
)
from distconsole.checks.rules.wording import GIB, list_some, numbers, size, who
from distconsole.model.requests import Level
from distconsole.model.time_text import age_text

SHM = "/dev/shm"  # noqa: S108 - the name of a fact
MAX_LISTED = 6
YOUNG_SECONDS = 60.0
STUCK_SECONDS = 3.0
"""A busy disk, too, holds a process for a second or two."""
HEAVY_SHARE = 0.1
"""Of /dev/shm: leftovers that take more stand in the next job's way."""
MEANT = "if it is no job that is meant to run"


@rule("proc.leftovers", "os", Level.QUICK, ProcFacts)
@hint("The finding says whose they are and which kill ends them.")
def _leftovers(view: View) -> RuleResults:
    """Processes of a run that is over; orphans that hold GPUs; a rendezvous port that somebody listens on; MPI's daemons without an mpirun."""
    facts = view.of(ProcFacts)
    launchers = any(each.role == "launcher" for f in facts.values() for each in f.processes)
    for name, found in facts.items():
        yield from _find_run_processes(name, found)
        foreign = [each for each in found.processes if not each.run and each.state not in "DZ"]
        yield from _on_gpus(name, [each for each in foreign if each.orphan and each.gpus])
        if name not in view.of(PortFacts):
            yield from _on_ports(name, [each for each in foreign if each.ports])
        if not launchers:
            yield from _daemons(name, found.uid, foreign)


def _find_run_processes(name: str, found: ProcFacts) -> RuleResults:
    """Processes that bear the mark of one of our runs."""
    by_run: dict[tuple[str, str], list[TrainingProcess]] = {}
    for each in found.processes:
        if each.run:
            by_run.setdefault((each.run, each.run_state), []).append(each)
    for (run, state), processes in by_run.items():
        if state == "going on":
            yield info(
                f"run {run} is under way on {HERE}",
                (name,),
                seen=_list_processes(processes),
                hint=f"distconsole attach {run}, or: distconsole stop {run}",
            )
        elif min(each.age_seconds or 0.0 for each in processes) > YOUNG_SECONDS:
            over = "has ended" if state == "ended" else "is not known here any more"
            summary = f"processes of run {run}, which {over}, are left on {HERE}"
            expected = "no process of a run that is over"
            yield _report_leftovers(fail, name, processes, summary, expected)


def _on_gpus(name: str, processes: Sequence[TrainingProcess]) -> RuleResults:
    if processes:
        gpus = sorted({gpu for each in processes for gpu in each.gpus})
        holder = who(processes[0])
        summary = f"on {name} GPU {numbers(gpus)} is held by {holder}, which lost its parent"
        expected = "GPUs that nobody computes on; a service, too, has init for its parent"
        yield _report_leftovers(warn, name, processes, summary, expected, MEANT)


def _on_ports(name: str, processes: Sequence[TrainingProcess]) -> RuleResults:
    for each in processes:
        summary = f"{who(each)} listens on the rendezvous port {numbers(each.ports)} of {name}"
        expected = "nobody who answers in place of the next job's rendezvous"
        yield _report_leftovers(warn, name, [each], summary, expected, MEANT)


def _daemons(name: str, uid: int, processes: Sequence[TrainingProcess]) -> RuleResults:
    left = [
        each
        for each in processes
        if each.role == "daemon" and each.uid == uid and (each.age_seconds or 0) > YOUNG_SECONDS
    ]
    if left:
        summary = f"{who(left[0])} is on {name}, and no mpirun on any of these hosts"
        expected = "MPI's daemons only where a job runs"
        yield _report_leftovers(
            warn, name, left, summary, expected, "if no mpirun elsewhere started it"
        )


def _report_leftovers(
    grade: Callable[..., RuleResult],
    name: str,
    processes: Sequence[TrainingProcess],
    summary: str,
    expected: str,
    condition: str = "",
) -> RuleResult:
    """Return the finding on processes that are left, with the kill that ends them."""
    return grade(
        summary,
        (name,),
        seen=_list_processes(processes),
        expected=expected,
        hint=_end(name, processes, condition),
    )


def _list_processes(processes: Sequence[TrainingProcess]) -> str:
    lines = []
    for each in processes:
        held = [f"GPU {numbers(each.gpus)}"] if each.gpus else []
        held += [f"port {numbers(each.ports)}"] if each.ports else []
        lines.append(who(each) + (f" holds {' and '.join(held)}" if held else ""))
    return list_some(lines, MAX_LISTED)


def _end(name: str, processes: Sequence[Who], condition: str = "") -> str:
    pids = " ".join(str(each.pid) for each in processes[:64] if each.pid is not None)
    text = f"on {name}: kill {pids}; and if that does not help: kill -9 {pids}"
    return f"{condition}, {text}" if condition else text


@rule("proc.stuck", "os", Level.QUICK, ProcFacts)
@hint("Look what the kernel waits for: a dead NFS server, a disk, a GPU.")
def _stuck(view: View) -> RuleResults:
    """Processes that no signal ends: asleep in the kernel (state D), or ended with living threads."""
    for name, found in view.of(ProcFacts).items():
        for each in (each for each in found.processes if each.state == "D"):
            long = each.wait_seconds >= STUCK_SECONDS
            yield (warn if long else info)(
                f"{who(each)} on {name} waits for the kernel, {each.wait_seconds:g} s in one sleep",
                (name,),
                seen=f"state D in {each.where or 'a function that only root may see'}",
                expected="no process that no signal can end",
                hint="a dead NFS server, a disk or a GPU that does not answer; "
                f"on {name}: sudo cat /proc/{each.pid}/stack; dmesg | tail -50",
            )
        yield from _zombies(name, [each for each in found.processes if each.state == "Z"])


def _zombies(name: str, zombies: Sequence[TrainingProcess]) -> RuleResults:
    half = [each for each in zombies if each.threads]
    for each in half:
        yield warn(
            f"{who(each)} on {name} has ended, and {each.threads} of its threads have not",
            (name,),
            seen=f"state Z; {each.threads} threads live, so that its memory and GPUs are still held",
            hint=f"on {name}: sudo cat /proc/{each.pid}/task/*/stack shows what they wait for; "
            "a GPU that does not answer needs a reset or a reboot",
        )
    whole = [each for each in zombies if not each.threads]
    if whole:
        parent = whole[0].parent
        yield info(
            f"{len(whole)} ended process{'' if len(whole) == 1 else 'es'} on {name} nobody took note of",
            (name,),
            seen=f"state Z: {', '.join(who(each) for each in whole[:MAX_LISTED])}; the parent is "
            + (who(parent) if parent is not None else "not to be seen"),
            hint="they hold nothing but a number; they go when their parent ends",
        )


@rule("shm.stale", "os", Level.QUICK, ShmFacts)
@hint("The finding has the rm; a job that runs has its segments mapped and is not named.")
def _shm_stale(view: View) -> RuleResults:
    """Segments of NCCL, torch, Open MPI and others that crashed jobs left in /dev/shm."""
    rooms = view.of(OsFacts)
    for name, found in view.of(ShmFacts).items():
        stale = [entry for entry in found.entries if entry.used is False]
        if not stale:
            continue
        total = sum(entry.bytes for entry in stale)
        room = rooms[name].filesystems.get(SHM) if name in rooms else None
        heavy = total >= GIB or (room is not None and total > HEAVY_SHARE * room.total > 0)
        more = f" and {found.dropped} more" if found.dropped else ""
        alone = "" if found.all_processes_seen else " that is seen in this container"
        yield (warn if heavy else info)(
            f"{size(total)} in {SHM} of {name} belong to no process{alone}, in "
            f"{len(stale)} leftover{'' if len(stale) == 1 else 's'}",
            (name,),
            seen="\n".join(map(_entry_told, stale[:MAX_LISTED])) + more,
            expected="shared memory that goes with its job",
            hint=_remove(name, found.uid, stale, found.all_processes_seen),
        )


def _entry_told(entry: ShmEntry) -> str:
    owner = f", made by pid {entry.pid}, which is gone" if entry.pid is not None else ""
    return f"{entry.name}: {entry.kind}, {size(entry.bytes)}, {age_text(entry.age_seconds)} old{owner}"


def _remove(name: str, uid: int, stale: Sequence[ShmEntry], all_seen: bool) -> str:
    paths = " ".join(shlex.quote(f"{SHM}/{entry.name}") for entry in stale[:16])
    more = "; and so on" if len(stale) > 16 else ""
    sudo = "" if uid == 0 or all(entry.uid == uid for entry in stale[:16]) else "sudo "
    condition = "" if all_seen else f"if no other container shares its {SHM}, "
    return f"{condition}on {name}: {sudo}rm -r {paths}{more}"


RULES = (_leftovers, _stuck, _shm_stale)
