"""Checks of group ``os`` on what earlier jobs left behind: processes, and files in shared memory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from distconsole.checks.engine.rule import (
    HERE,
    HostView,
    RuleResults,
    fail,
    hint,
    host_rule,
    info,
    warn,
)
from distconsole.checks.facts.network import PortFacts
from distconsole.checks.facts.node import (
    OsFacts,
    ProcFacts,
    ShmEntry,
    ShmFacts,
    TrainingProcess,
    Who,
)
from distconsole.checks.rules.wording import GIB, join_some, list_some, numbers, size, who
from distconsole.model.requests import Level
from distconsole.model.time_text import age_text

SHM = "/dev/shm"  # noqa: S108 - the name of a fact
YOUNG_SECONDS = 60.0
STUCK_SECONDS = 3.0
"""A busy disk, too, holds a process for a second or two."""
HEAVY_SHARE = 0.1
"""Of /dev/shm: leftovers that take more stand in the next job's way."""
MEANT = "if it is no job that is meant to run, "


@host_rule("proc.leftovers", "os", Level.QUICK, ProcFacts)
@hint("The finding says whose they are and which kill ends them.")
def _leftovers(host: HostView) -> RuleResults:
    """Processes of a run that is over; orphans that hold GPUs; a rendezvous port that somebody listens on; MPI's daemons without an mpirun."""
    facts, every = host.of(ProcFacts), host.view.of(ProcFacts).values()
    yield from _find_run_processes(host, facts)
    foreign = [each for each in facts.processes if not each.run and each.state not in "DZ"]
    on_gpus = [each for each in foreign if each.orphan and each.gpus]
    if on_gpus:
        gpus = sorted({gpu for each in on_gpus for gpu in each.gpus})
        yield warn(
            f"on {host} GPU {numbers(gpus)} is held by {who(on_gpus[0])}, which lost its parent",
            seen=_list_processes(on_gpus),
            expected="GPUs that nobody computes on; a service, too, has init for its parent",
            hint=MEANT + _end(host, on_gpus),
        )
    for each in foreign if host.find(PortFacts) is None else ():
        if each.ports:
            yield warn(
                f"{who(each)} listens on the rendezvous port {numbers(each.ports)} of {host}",
                seen=_list_processes([each]),
                expected="nobody who answers in place of the next job's rendezvous",
                hint=MEANT + _end(host, [each]),
            )
    daemons = [
        each
        for each in foreign
        if each.role == "daemon"
        and each.uid == facts.uid
        and (each.age_seconds or 0) > YOUNG_SECONDS
    ]
    launchers = any(each.role == "launcher" for found in every for each in found.processes)
    if daemons and not launchers:
        yield warn(
            f"{who(daemons[0])} is on {host}, and no mpirun on any of these hosts",
            seen=_list_processes(daemons),
            expected="MPI's daemons only where a job runs",
            hint="if no mpirun elsewhere started it, " + _end(host, daemons),
        )


def _find_run_processes(host: HostView, facts: ProcFacts) -> RuleResults:
    """Yield what is wrong with processes that bear the mark of one of our runs."""
    by_run: dict[tuple[str, str], list[TrainingProcess]] = {}
    for each in facts.processes:
        if each.run:
            by_run.setdefault((each.run, each.run_state), []).append(each)
    for (run, state), processes in by_run.items():
        if state == "going on":
            yield info(
                f"run {run} is under way on {HERE}",
                seen=_list_processes(processes),
                hint=f"distconsole attach {run}, or: distconsole stop {run}",
            )
        elif min(each.age_seconds or 0.0 for each in processes) > YOUNG_SECONDS:
            over = "has ended" if state == "ended" else "is not known here any more"
            yield fail(
                f"processes of run {run}, which {over}, are left on {HERE}",
                seen=_list_processes(processes),
                expected="no process of a run that is over",
                hint=_end(host, processes),
            )


def _list_processes(processes: Sequence[TrainingProcess]) -> str:
    lines = []
    for each in processes:
        held = [f"GPU {numbers(each.gpus)}"] if each.gpus else []
        held += [f"port {numbers(each.ports)}"] if each.ports else []
        lines.append(who(each) + (f" holds {' and '.join(held)}" if held else ""))
    return list_some(lines)


def _end(host: HostView, processes: Sequence[Who]) -> str:
    pids = " ".join(str(each.pid) for each in processes[:64] if each.pid is not None)
    return f"on {host}: kill {pids}; and if that does not help: kill -9 {pids}"


@host_rule("proc.stuck", "os", Level.QUICK, ProcFacts)
@hint("Look what the kernel waits for: a dead NFS server, a disk, a GPU.")
def _stuck(host: HostView) -> RuleResults:
    """Processes that no signal ends: asleep in the kernel (state D), or ended with living threads."""
    whole: list[TrainingProcess] = []
    for each in host.of(ProcFacts).processes:
        if each.state == "D":
            yield (warn if each.wait_seconds >= STUCK_SECONDS else info)(
                f"{who(each)} on {host} waits for the kernel, {each.wait_seconds:g} s in one sleep",
                seen=f"state D in {each.where or 'a function that only root may see'}",
                expected="no process that no signal can end",
                hint="a dead NFS server, a disk or a GPU that does not answer; "
                f"on {host}: sudo cat /proc/{each.pid}/stack; dmesg | tail -50",
            )
        elif each.state == "Z" and each.threads:
            yield warn(
                f"{who(each)} on {host} has ended, and {each.threads} of its threads have not",
                seen=f"state Z; {each.threads} threads live, so that its memory and GPUs are still held",
                hint=f"on {host}: sudo cat /proc/{each.pid}/task/*/stack shows what they wait for; "
                "a GPU that does not answer needs a reset or a reboot",
            )
        elif each.state == "Z":
            whole.append(each)
    if whole:
        parent = whole[0].parent
        yield info(
            f"{len(whole)} ended process{'' if len(whole) == 1 else 'es'} on {host} nobody took note of",
            seen=f"state Z: {join_some(map(who, whole))}; the parent is "
            + (who(parent) if parent is not None else "not to be seen"),
            hint="they hold nothing but a number; they go when their parent ends",
        )


@host_rule("shm.stale", "os", Level.QUICK, ShmFacts)
@hint("The finding has the rm; a job that runs has its segments mapped and is not named.")
def _shm_stale(host: HostView) -> RuleResults:
    """Segments of NCCL, torch, Open MPI and others that crashed jobs left in /dev/shm."""
    found, system = host.of(ShmFacts), host.find(OsFacts)
    stale = [entry for entry in found.entries if entry.used is False]
    if not stale:
        return
    total = sum(entry.bytes for entry in stale)
    room = system.filesystems.get(SHM) if system is not None else None
    heavy = total >= GIB or (room is not None and total > HEAVY_SHARE * room.total > 0)
    alone = "" if found.all_processes_seen else " that is seen in this container"
    lines = list_some([_format_entry(entry) for entry in stale])
    yield (warn if heavy else info)(
        f"{size(total)} in {SHM} of {host} belong to no process{alone}, in "
        f"{len(stale)} leftover{'' if len(stale) == 1 else 's'}",
        seen=lines + (f"; {found.dropped} entries were not looked at" if found.dropped else ""),
        expected="shared memory that goes with its job",
        hint=_remove(host, found, stale),
    )


def _format_entry(entry: ShmEntry) -> str:
    owner = f", made by pid {entry.pid}, which is gone" if entry.pid is not None else ""
    return f"{entry.name}: {entry.kind}, {size(entry.bytes)}, {age_text(entry.age_seconds)} old{owner}"


def _remove(host: HostView, found: ShmFacts, stale: Sequence[ShmEntry]) -> str:
    some = stale[:16]
    paths = " ".join(shlex.quote(f"{SHM}/{entry.name}") for entry in some)
    sudo = "" if found.uid == 0 or all(entry.uid == found.uid for entry in some) else "sudo "
    condition = "" if found.all_processes_seen else f"if no other container shares its {SHM}, "
    more = "; and so on" if len(stale) > len(some) else ""
    return f"{condition}on {host}: {sudo}rm -r {paths}{more}"


RULES = (_leftovers, _stuck, _shm_stale)
