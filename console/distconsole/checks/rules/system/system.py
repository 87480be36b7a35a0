"""Checks of group ``os`` on how the kernel is set, and on processes and memory that earlier jobs left."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, rule
from distconsole.checks.facts.evidence import Outcome, View, by_key, once_a_view
from distconsole.checks.facts.network import PortFacts
from distconsole.checks.facts.node import OsFacts, ProcFacts, ShmEntry, ShmFacts, TrainingProcess
from distconsole.checks.rules.wording import (
    GIB,
    differ,
    dissent,
    list_some,
    name_hosts,
    numbers,
    size,
    who,
)
from distconsole.model.names import join_some
from distconsole.model.requests import Level
from distconsole.model.time_text import age_text

SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "pit")
"""Clock sources that cost a microsecond or more to read, and a system call each time."""
AUTONOMOUS_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""Where ``powersave`` is the name of what raises the clock under load as needed."""


@hint("dmesg says why; a firmware update, or clocksource=tsc.")
@rule("sys.clocksource", "os", Level.QUICK, OsFacts)
def _clocksource(view: View) -> RuleResults:
    """A kernel that gave up tsc for hpet: every reading of the clock costs a microsecond."""
    facts = view.of(OsFacts).items()
    sources = {name: found.sysctl.get("clocksource") or "" for name, found in facts}
    silent = tuple(name for name, source in sources.items() if not source)
    yield NotApplicable("the kernel does not say what it takes the time from", silent)
    slow = {name: source for name, source in sources.items() if source in SLOW_CLOCKS}
    for name, source in slow.items():
        yield warn(
            f"the time comes from {source}, which is slow, on {HERE}",
            (name,),
            seen=f"current_clocksource: {source}",
            expected="tsc, or what the hypervisor offers",
            hint="sudo dmesg | grep -i clocksource says why tsc was dropped; "
            "clocksource=tsc tsc=reliable on the kernel's command line where it is sound",
        )
    if not slow:
        known = {name: source for name, source in sources.items() if source}
        yield from differ(info, "clock source", known)


@hint("cpupower frequency-set -g performance")
@rule("sys.governor", "os", Level.QUICK, OsFacts)
def _governor(view: View) -> RuleResults:
    """CPU clocks that are kept low on some hosts, which all others then wait for."""
    clocks = {name: facts.cpu_clocks for name, facts in view.of(OsFacts).items()}
    silent = tuple(name for name, found in clocks.items() if not found.governors)
    yield NotApplicable("no governor of CPU clocks, as in most virtual machines", silent)
    governors = {n: ", ".join(sorted(c.governors)) for n, c in clocks.items() if c.governors}
    split = dissent(governors)
    hosts = tuple(
        name
        for name, found in clocks.items()
        if "powersave" in found.governors and found.driver not in AUTONOMOUS_DRIVERS
    )
    summary = f"the CPU clocks of {name_hosts(hosts)} are kept low"
    if split is not None and not hosts:
        hosts, summary = split.minority, split.told("CPU governor")
    if hosts:
        yield warn(
            summary,
            hosts,
            seen=join_some(f"{name}: {governors[name]} ({clocks[name].driver})" for name in hosts),
            expected="performance, or the same on every host",
            hint="sudo cpupower frequency-set -g performance",
        )


@hint("KillExcludeUsers=USER in logind.conf, or a job of Slurm's.")
@host_rule("proc.logout", "os", Level.QUICK, OsFacts)
def _logout(host: HostView) -> RuleResults:
    """KillUserProcesses=yes of systemd-logind: agent, shims and ranks end with the console's connection."""
    facts = host.of(OsFacts)
    if facts.ends_at_logout is None:
        yield NotApplicable("systemd-logind does not say what it does when a session ends")
    elif facts.ends_at_logout:
        yield warn(
            f"a run on {HERE} is killed when the console leaves: systemd-logind ends what a "
            "session started",
            seen=f"KillUserProcesses=yes, also for {facts.user}",
            expected="runs that go on when their console ends or loses its network",
            hint=f"on {HERE}, in /etc/systemd/logind.conf: KillExcludeUsers=root {facts.user}; then "
            "sudo systemctl restart systemd-logind",
        )


SHM = "/dev/shm"  # noqa: S108 - the name of a fact
YOUNG_SECONDS = 60.0
STUCK_SECONDS = 3.0
"""A busy disk, too, holds a process for a second or two."""
HEAVY_SHARE = 0.1
"""Of /dev/shm: leftovers that take more stand in the next job's way."""
MEANT = "if it is no job that is meant to run, "


@hint("The finding says whose they are and which kill ends them.")
@host_rule("proc.leftovers", "os", Level.QUICK, ProcFacts)
def _leftovers(host: HostView) -> RuleResults:
    """Processes of a run that is over; orphans that hold GPUs; a rendezvous port that somebody listens on; MPI's daemons without an mpirun."""
    facts = host.of(ProcFacts)
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
    old = [each for each in foreign if (each.age_seconds or 0) > YOUNG_SECONDS]
    daemons = [each for each in old if each.role == "daemon" and each.uid == facts.uid]
    if daemons and not _any_launcher(host.view):
        yield warn(
            f"{who(daemons[0])} is on {host}, and no mpirun on any of these hosts",
            seen=_list_processes(daemons),
            expected="MPI's daemons only where a job runs",
            hint="if no mpirun elsewhere started it, " + _end(host, daemons),
        )


@once_a_view
def _any_launcher(view: View) -> bool:
    every = view.of(ProcFacts).values()
    return any(each.role == "launcher" for facts in every for each in facts.processes)


def _find_run_processes(host: HostView, facts: ProcFacts) -> RuleResults:
    of_runs = (each for each in facts.processes if each.run)
    for (run, state), processes in by_key(((p.run, p.run_state), p) for p in of_runs).items():
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


def _end(host: HostView, processes: Sequence[TrainingProcess]) -> str:
    pids = " ".join(str(each.pid) for each in processes[:64] if each.pid is not None)
    return f"on {host}: kill {pids}; and if that does not help: kill -9 {pids}"


@hint("Look what the kernel waits for: a dead NFS server, a disk, a GPU.")
@host_rule("proc.stuck", "os", Level.QUICK, ProcFacts)
def _stuck(host: HostView) -> RuleResults:
    """Processes that no signal ends: asleep in the kernel (state D), or ended with living threads."""
    processes = host.of(ProcFacts).processes
    for each in processes:
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
    whole = [each for each in processes if each.state == "Z" and not each.threads]
    if whole:
        parent = whole[0].parent
        yield info(
            f"{len(whole)} zombie process{'' if len(whole) == 1 else 'es'} on {host}",
            seen=f"state Z: {join_some(map(who, whole))}; the parent is "
            + (who(parent) if parent is not None else "not to be seen"),
            hint="they hold nothing but a number; they go when their parent ends",
        )


@hint("The finding has the rm; a job that runs has its segments mapped and is not named.")
@host_rule("shm.stale", "os", Level.QUICK, ShmFacts)
def _shm_stale(host: HostView) -> RuleResults:
    """Segments of NCCL, torch, Open MPI and others that crashed jobs left in /dev/shm."""
    found, system = host.of(ShmFacts), host.find(OsFacts)
    stale = [entry for entry in found.entries if entry.used is False]
    if found.error:
        yield NotApplicable(f"{SHM}: {found.error}", outcome=Outcome.COULD_NOT_RUN)
    if not stale:
        return
    total = sum(entry.bytes for entry in stale)
    room = system.filesystems.get(SHM) if system is not None else None
    heavy = total >= GIB or (room is not None and total > HEAVY_SHARE * room.total > 0)
    alone = "" if found.all_processes_seen else " that is seen in this container"
    lines = list_some(
        [
            f"{each.name}: {each.kind}, {size(each.bytes)}, {age_text(each.age_seconds)} old"
            + (f", made by pid {each.pid}, which is gone" if each.pid is not None else "")
            for each in stale
        ]
    )
    yield (warn if heavy else info)(
        f"{size(total)} in {SHM} of {host} belong to no process{alone}, in "
        f"{len(stale)} leftover{'' if len(stale) == 1 else 's'}",
        seen=lines + (f"; {found.dropped} entries were not looked at" if found.dropped else ""),
        expected="shared memory that goes with its job",
        hint=_remove(host, found, stale),
    )


def _remove(host: HostView, found: ShmFacts, stale: Sequence[ShmEntry]) -> str:
    some = stale[:16]
    paths = " ".join(shlex.quote(f"{SHM}/{entry.name}") for entry in some)
    sudo = "" if found.uid == 0 or all(entry.uid == found.uid for entry in some) else "sudo "
    condition = "" if found.all_processes_seen else f"if no other container shares its {SHM}, "
    more = "; and so on" if len(stale) > len(some) else ""
    return f"{condition}on {host}: {sudo}rm -r {paths}{more}"
