"""Checks of group ``os`` about limits and room: descriptors, locked memory, shared memory, disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distconsole.checks.engine.rule import (
    NotApplicable,
    RuleResults,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.node import Filesystem, OsFacts
from distconsole.checks.fixes.cures import in_setup
from distconsole.checks.rules.wording import MIB, name_hosts, size
from distconsole.model.requests import Level

FILES_PER_RANK = 64
"""Descriptors that a rank needs for each other rank and its files, generously (nccl#550)."""
FILES_BASE = 512
MEMLOCK_BYTES = 1024 * MIB
LIMITS = {"memlock": "ulimit -l", "nofile": "ulimit -n", "nproc": "ulimit -u"}
"""Those that are compared with a login's, and what shows each of them."""

SHM_BYTES = 128 * MIB
"""Docker gives 64 MiB, which is too little for NCCL and DataLoader workers (nccl#342, #290)."""
SHM_PATH = "/dev/shm"  # noqa: S108 - the name of a fact
LOW_SHARE = 0.05
FULL_BYTES = 16 * MIB


def lower_than_a_login(
    who: str,
    host: str,
    found: Mapping[str, int | None],
    login: OsFacts,
    hint: str,
) -> RuleResults:
    """Say which soft limits of ``who`` on a host are lower than those of a process of the agent.

    Args:
        found: By limit; null is unlimited.
        login: Of the host.
    """
    own = {name: limit[0] for name, limit in login.limits.items()}
    lower = {
        name: value
        for name, value in found.items()
        if name in LIMITS
        and name in own
        and value is not None
        and (own[name] is None or value < (own[name] or 0))
    }
    if lower:
        yield warn(
            f"{who} on {host} have lower limits than a login there: {', '.join(lower)}",
            (host,),
            seen="; ".join(f"{LIMITS[name]}: {value}" for name, value in lower.items()),
            expected="; ".join(
                f"{LIMITS[name]}: {'unlimited' if own[name] is None else own[name]}"
                for name in lower
            ),
            hint=hint,
        )


def ranks_expected(view: View) -> int:
    """Return how many ranks a job on all hosts may have."""
    return len(view.everyone) * (view.ranks_per_host or 8)


def files_needed(view: View) -> int:
    """Return how many files a rank of such a job holds open."""
    return FILES_BASE + FILES_PER_RANK * ranks_expected(view) // 8


@rule("lim.nofile", "os", Level.QUICK, OsFacts)
@hint("ulimit -n $(ulimit -Hn)")
def _nofile(view: View) -> RuleResults:
    """`Too many open files`, at larger numbers of hosts only."""
    world, needed = ranks_expected(view), files_needed(view)
    low: dict[tuple[int | None, int | None], list[str]] = {}
    for name, facts in view.of(OsFacts).items():
        limit = facts.limits.get("nofile")
        if view.expectation(name).nofile is not None:
            continue
        if limit is not None and limit[0] is not None and limit[0] < needed:
            low.setdefault(limit, []).append(name)
    for (soft, hard), names in low.items():
        yield warn(
            f"only {soft} open files are allowed on {name_hosts(names)}",
            names,
            seen=f"ulimit -n: soft {soft}, hard {'unlimited' if hard is None else hard}",
            expected=f"{needed} for {world} ranks",
            **_offer_limit(names, hard, needed),
        )


def _offer_limit(names: Sequence[str], hard: int | None, needed: int) -> dict[str, Any]:
    if hard is not None and hard < needed:
        return {
            "hint": f"/etc/security/limits.d: * hard nofile {max(needed, 65536)}; then log in anew"
        }
    line = f"ulimit -n {needed}" if hard is None else "ulimit -n $(ulimit -Hn)"
    hint = f"{line}, in --setup or in the profile of the shell"
    return {"hint": hint, "cure": in_setup(names, line)}


@rule("lim.memlock", "os", Level.QUICK, OsFacts)
@hint("Set memlock to unlimited for the user, for sshd and for slurmd.")
def _memlock(view: View) -> RuleResults:
    """`ibv_reg_mr: Cannot allocate memory`: locked memory is limited on a host with RDMA.

    Only RDMA registers memory; without an adapter the limit does not matter.
    """
    plain, low = [], {}
    may_more: list[str] = []
    for name, facts in view.of(OsFacts).items():
        if view.expectation(name).memlock is not None:
            yield NotApplicable("the configuration says what is expected", (name,))
            continue
        if not facts.infiniband:
            plain.append(name)
            continue
        limit, hard = facts.limits.get("memlock", (None, None))
        if limit is not None and limit < MEMLOCK_BYTES:
            low[name] = limit
            may_more += [name] if hard is None or hard >= MEMLOCK_BYTES else []
    if plain:
        yield NotApplicable(
            "no RDMA adapter", tuple(h.name for h in view.hosts if h.name in plain)
        )
    if low:
        yield fail(
            f"too little memory may be locked for RDMA on {name_hosts(list(low))}",
            low,
            seen=", ".join(f"{name} {limit // 1024} KiB" for name, limit in low.items()),
            expected="unlimited",
            hint='sudo sh -c \'printf "* soft memlock unlimited\\n* hard memlock unlimited\\n" '
            "> /etc/security/limits.d/memlock.conf', then log in anew; in docker: --ulimit memlock=-1",
            cure=in_setup(may_more, "ulimit -l $(ulimit -Hl)") if may_more else None,
        )


@rule("shm.size", "os", Level.QUICK, OsFacts)
@hint("--shm-size=8g or --ipc=host.")
def _shm(view: View) -> RuleResults:
    """`No space left on device` in NCCL, `Bus error` in a DataLoader: docker's 64 MiB of /dev/shm."""
    gpus = view.of(GpuFacts)
    for name, facts in view.of(OsFacts).items():
        room = facts.filesystems.get(SHM_PATH)
        if room is None or room.error:
            why = room.error if room else "it was not looked at"
            yield fail(f"{SHM_PATH} on {name}: {why}", (name,))
            continue
        count = gpus[name].count if name in gpus else 0
        needed = SHM_BYTES * max(1, count)
        if room.free < needed and view.expectation(name).shm is None:
            full = room.total >= needed
            yield warn(
                f"{SHM_PATH} on {name} has {size(room.free)} free of {size(room.total)}",
                (name,),
                seen=f"statvfs: {room.free} of {room.total} bytes",
                expected=f"{size(needed)}",
                hint="look for leftovers: ls -la /dev/shm"
                if full
                else "in docker: --shm-size=8g or --ipc=host; else: sudo mount -o remount,size=8g /dev/shm",
            )


@rule("disk.space", "fs", Level.QUICK, OsFacts)
@hint("Make room, or mount it again.")
def _disk(view: View) -> RuleResults:
    """A full, read-only or dead filesystem under the home, TMPDIR or the working folder."""
    for name, facts in view.of(OsFacts).items():
        for path, room in facts.filesystems.items():
            work = view.launch is not None and path == view.launch.workdir
            if work and (room.error or room.read_only or not room.writable):
                continue  # script.workdir and fs.writable say it
            if path != SHM_PATH:
                yield from _folder(name, path, room)


def _folder(name: str, path: str, room: Filesystem) -> RuleResults:
    if room.error:
        yield fail(
            f"{path} on {name}: {room.error}",
            (name,),
            hint=f"a dead NFS server? on {name}: findmnt -T {path}",
        )
    elif room.read_only or not room.writable:
        what = "mounted read-only" if room.read_only else "not writable for us"
        yield fail(
            f"{path} on {name} is {what}",
            (name,),
            hint=f"after an I/O error a disk becomes read-only; on {name}: findmnt -T {path}; dmesg",
        )
    elif room.free < FULL_BYTES or (room.files > 0 and room.files_free == 0):
        what = size(room.free) if room.free < FULL_BYTES else "no inode"
        yield fail(
            f"{path} on {name} is full: {what} left",
            (name,),
            hint=f"on {name}: du -xh -d2 {path} | sort -h | tail",
        )
    elif room.total and room.free / room.total < LOW_SHARE:
        yield warn(
            f"{path} on {name} has {size(room.free)} free of {size(room.total)}",
            (name,),
            hint=f"on {name}: du -xh -d2 {path} | sort -h | tail",
        )


@rule("lim.cpus", "os", Level.QUICK, OsFacts)
@hint("Give the container more, or set OMP_NUM_THREADS.")
def _cpus(view: View) -> RuleResults:
    """A container with fewer processors than it shows, so that threads stand in each other's way."""
    for name, facts in view.of(OsFacts).items():
        quota, _, period = (facts.cgroup.get("cpu_max") or "").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            allowed = int(quota) / int(period)
            if allowed < facts.cpus:
                yield info(
                    f"{name} shows {facts.cpus} processors and may use {allowed:g} of them",
                    (name,),
                    seen=f"cpu.max: {quota} {period}",
                    hint="OMP_NUM_THREADS should follow the smaller number",
                )


RULES = (_nofile, _memlock, _cpus, _shm, _disk)
