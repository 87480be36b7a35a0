"""Checks of group ``os`` on what jobs may use: processes, stack, memory."""

from __future__ import annotations

from statistics import median

from distconsole.checks.engine.rule import (
    HERE,
    NotApplicable,
    RuleResults,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.fixes.cures import in_setup
from distconsole.checks.rules.wording import GIB, MIB, size
from distconsole.model.requests import Level

PROCESSES = 4096
"""Threads count, too: eight ranks with their loaders have two thousand (ompi#7562)."""
STACK_LOW_BYTES = 2 * MIB
STACK_BYTES = 8 * MIB
STACK_HIGH_BYTES = 1 * GIB
"""Each thread reserves as much as the limit says, and their making fails."""
MEMORY_LEFT_BYTES = 2 * GIB
LOW_SHARE = 0.05
PEER_SHARE = 0.5
"""Less free than half of what is usual on hosts of the same size: somebody else is there."""
SWAP_USED_BYTES = 1 * GIB


@rule("lim.processes", "os", Level.QUICK, OsFacts)
@hint("ulimit -u; --pids-limit=-1; TasksMax.")
def _processes(view: View) -> RuleResults:
    """`fork: Resource temporarily unavailable`: processes and threads are limited, for the user or by a control group."""
    for name, facts in view.of(OsFacts).items():
        soft, hard = facts.limits.get("nproc", (None, None))
        # The kernel does not hold root to this limit (setrlimit(2)).
        if soft is not None and soft < PROCESSES and facts.uid != 0:
            yield warn(
                f"only {soft} processes and threads are allowed on {HERE}",
                (name,),
                seen=f"ulimit -u: soft {soft}, hard {'unlimited' if hard is None else hard}",
                expected=f"{PROCESSES} for the ranks of a host and their threads",
                hint="ulimit -u $(ulimit -Hu), in --setup; above that: /etc/security/limits.d",
                cure=in_setup((name,), "ulimit -u $(ulimit -Hu)")
                if hard is None or hard >= PROCESSES
                else None,
            )
        limit, used = _number(facts.cgroup, "pids_max"), _number(facts.cgroup, "pids_used") or 0
        if limit is not None and limit - used < PROCESSES:
            yield warn(
                f"a control group leaves too few processes and threads to {HERE}",
                (name,),
                seen=f"pids.max of the control group: {limit}, of which {used} are used",
                expected=f"{PROCESSES} for the ranks of a host and their threads",
                hint="in docker: --pids-limit=-1; on a host: "
                f"sudo systemctl set-property user-{max(0, facts.uid)}.slice TasksMax=infinity",
            )


def stack_is_well(soft: int | None) -> bool:
    """Whether a stack's limit lets deep calls be made and threads be started."""
    return soft is None or STACK_LOW_BYTES <= soft < STACK_HIGH_BYTES


@rule("lim.stack", "os", Level.QUICK, OsFacts)
@hint("ulimit -s 8192")
def _stack(view: View) -> RuleResults:
    """A stack too small for deep calls, or so large that threads cannot be made."""
    for name, facts in view.of(OsFacts).items():
        soft, hard = facts.limits.get("stack", (None, None))
        if soft is None or stack_is_well(soft):
            continue
        what = "smaller than its deepest calls" if soft < STACK_LOW_BYTES else "for every thread"
        yield warn(
            f"the stack's limit on {HERE} is {size(soft)}, {what}",
            (name,),
            seen=f"ulimit -s: {soft // 1024} KiB",
            expected="8 MiB, as systems have it",
            hint="ulimit -s 8192, in --setup",
            cure=in_setup((name,), "ulimit -s 8192")
            if hard is None or hard >= STACK_BYTES
            else None,
        )


@rule("lim.memory", "os", Level.QUICK, OsFacts)
@hint("End what holds it, or give the container more.")
def _memory(view: View) -> RuleResults:
    """Memory that others hold, swap in use, a control group smaller than the machine: ranks ended by signal 9."""
    facts = view.of(OsFacts)
    for name, found in facts.items():
        total, available = found.memory.get("total"), found.memory.get("available")
        if not total or available is None:
            yield NotApplicable("the kernel does not say how much memory is free", (name,))
            continue
        yield from _free(name, total, available, facts)
        yield from _swap(name, found)
        yield from _group(name, found, total)


def _free(name: str, total: int, available: int, facts: dict[str, OsFacts]) -> RuleResults:
    peers = [
        other.memory.get("available") or 0
        for other in facts.values()
        if abs((other.memory.get("total") or 0) - total) < 0.1 * total
    ]
    usual = median(peers) if len(peers) > 2 else 0
    if available < LOW_SHARE * total or available < PEER_SHARE * usual:
        yield warn(
            f"{size(available)} of {size(total)} of memory are free on {name}",
            (name,),
            seen=f"MemAvailable {size(available)}",
            expected=f"{size(int(usual))}, as on its peers" if usual else "room for a job",
            hint=f"on {name}: ps -eo pid,user,rss,comm --sort=-rss | head; ls -la /dev/shm",
        )


def _swap(name: str, found: OsFacts) -> RuleResults:
    total, free = found.memory.get("swap_total") or 0, found.memory.get("swap_free")
    if free is not None and total - free > SWAP_USED_BYTES:
        yield warn(
            f"{size(total - free)} of swap are in use on {name}",
            (name,),
            seen=f"SwapTotal {size(total)}, SwapFree {size(free)}",
            expected="none: a rank whose pages are out makes all others wait",
            hint="sudo swapoff -a && sudo swapon -a brings the pages back, where memory is free",
        )


def _group(name: str, found: OsFacts, total: int) -> RuleResults:
    """A control group below the machine's size ends ranks by SIGKILL, and nobody says why."""
    limit = _number(found.cgroup, "memory_max")
    used = _number(found.cgroup, "memory_used") or 0
    if limit is None or limit >= total:
        return
    seen = f"memory.max of the control group: {size(limit)}, of which {size(used)} are used"
    if limit - used < MEMORY_LEFT_BYTES:
        yield warn(
            f"jobs on {name} may use {size(max(0, limit - used))} more of its {size(total)}",
            (name,),
            seen=seen,
            expected="room for a job, which is else ended by signal 9",
            hint="in docker: --memory; on a host: systemctl show -p MemoryMax user.slice",
        )
    else:
        yield info(f"jobs on {HERE} may use {size(limit)} of {size(total)}", (name,), seen=seen)


def _number(values: dict[str, str | None], key: str) -> int | None:
    text = values.get(key)
    return int(text) if text is not None and text.isdigit() else None


RULES = (_processes, _stack, _memory)
