"""Checks of group ``os`` on what jobs may use: descriptors, processes, memory, shared memory, disks."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule
from distconsole.checks.facts.evidence import View, once_a_view
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.node import Filesystem, OsFacts
from distconsole.checks.fixes.cures import in_setup
from distconsole.checks.rules.wording import GIB, MIB, get_number, size
from distconsole.model.findings import Cure
from distconsole.model.names import count_text, is_whole
from distconsole.model.requests import Level
from distconsole.model.time_text import age_text

FILES_PER_RANK = 64
"""Descriptors that a rank needs for each other rank and its files, generously (nccl#550)."""
FILES_BASE = 512
MEMLOCK_BYTES = 1 * GIB
SHM_BYTES = 128 * MIB
"""Docker's default of 64 MiB is too little for NCCL and DataLoader workers (nccl#342, #290)."""
SHM_PATH = "/dev/shm"  # noqa: S108 - the name of a fact
LOW_SHARE = 0.05
FULL_BYTES = 16 * MIB
PROCESSES = 4096
"""Threads count, too: eight ranks with their loaders have two thousand (ompi#7562)."""
MEMORY_LEFT_BYTES = 2 * GIB
PEER_SHARE = 0.5
"""Less free than half of the usual amount on hosts of the same size: another user's job runs there."""
SWAP_USED_BYTES = 1 * GIB


def show_limit(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def _raise_limit(host: HostView, line: str, hard: int | None, needed: int) -> Cure | None:
    return in_setup((str(host),), line) if hard is None or hard >= needed else None


def count_ranks(view: View) -> int:
    return len(view.everyone) * (view.ranks_per_host or 8)


def count_files(view: View) -> int:
    return FILES_BASE + FILES_PER_RANK * count_ranks(view) // 8


@hint("ulimit -n $(ulimit -Hn)")
@host_rule("lim.nofile", "os", Level.QUICK, OsFacts)
def _nofile(host: HostView) -> RuleResults:
    """`Too many open files`, at larger numbers of hosts only."""
    needed = count_files(host.view)
    soft, hard = host.of(OsFacts).limits.get("nofile", (None, None))
    if soft is None or soft >= needed or host.expected.nofile is not None:
        return
    line = f"ulimit -n {needed}" if hard is None else "ulimit -n $(ulimit -Hn)"
    cure = _raise_limit(host, line, hard, needed)
    yield warn(
        f"only {soft} open files are allowed on {HERE}",
        seen=f"ulimit -n: soft {soft}, hard {show_limit(hard)}",
        expected=f"{needed} for {count_text(count_ranks(host.view), 'rank')}",
        hint=f"{line}, in --setup or in the profile of the shell"
        if cure
        else f"/etc/security/limits.d: * hard nofile {max(needed, 65536)}; then log in anew",
        cure=cure,
    )


@hint("Set memlock to unlimited for the user, for sshd and for slurmd.")
@host_rule("lim.memlock", "os", Level.QUICK, OsFacts)
def _memlock(host: HostView) -> RuleResults:
    """`ibv_reg_mr: Cannot allocate memory`: locked memory is limited on a host with RDMA."""
    facts = host.of(OsFacts)
    soft, hard = facts.limits.get("memlock", (None, None))
    if host.expected.memlock is not None:
        yield NotApplicable("the configuration says what is expected")
    elif not facts.infiniband:
        yield NotApplicable("no RDMA adapter")
    elif soft is not None and soft < MEMLOCK_BYTES:
        yield fail(
            f"too little memory may be locked for RDMA on {HERE}",
            seen=f"{soft // 1024} KiB",
            expected="unlimited",
            hint='sudo sh -c \'printf "* soft memlock unlimited\\n* hard memlock unlimited\\n" '
            "> /etc/security/limits.d/memlock.conf', then log in anew; in docker: --ulimit memlock=-1",
            cure=_raise_limit(host, "ulimit -l $(ulimit -Hl)", hard, MEMLOCK_BYTES),
        )


@hint("Give the container more, or set OMP_NUM_THREADS.")
@host_rule("lim.cpus", "os", Level.QUICK, OsFacts)
def _cpus(host: HostView) -> RuleResults:
    """A container with fewer processors than it shows, so that threads stand in each other's way."""
    facts = host.of(OsFacts)
    quota, _, period = (facts.cgroup.get("cpu_max") or "").partition(" ")
    if not (is_whole(quota) and is_whole(period) and int(period)):
        return
    allowed = int(quota) / int(period)
    if allowed < facts.cpus:
        yield info(
            f"{facts.cpus} processors are shown on {HERE}, and {allowed:g} of them may be used",
            seen=f"cpu.max: {quota} {period}",
            hint="OMP_NUM_THREADS should follow the smaller number",
        )


@hint("--shm-size=8g or --ipc=host.")
@host_rule("shm.size", "os", Level.QUICK, OsFacts)
def _shm(host: HostView) -> RuleResults:
    """`No space left on device` in NCCL, `Bus error` in a DataLoader: docker's 64 MiB of /dev/shm."""
    room, gpus = host.of(OsFacts).filesystems.get(SHM_PATH), host.find(GpuFacts)
    if room is None or room.error:
        yield fail(f"{SHM_PATH} on {HERE}: {room.error if room else 'it was not looked at'}")
        return
    needed = SHM_BYTES * max(1, gpus.count if gpus is not None else 0)
    if room.free < needed and host.expected.shm is None:
        yield warn(
            f"{SHM_PATH} on {HERE} has {size(room.free)} free of {size(room.total)}",
            seen=f"statvfs: {room.free} of {room.total} bytes",
            expected=size(needed),
            hint="look for leftovers: ls -la /dev/shm"
            if room.total >= needed
            else "in docker: --shm-size=8g or --ipc=host; else: sudo mount -o remount,size=8g /dev/shm",
        )


@hint("Make room, or mount it again.")
@host_rule("disk.space", "fs", Level.QUICK, OsFacts)
def _disk(host: HostView) -> RuleResults:
    """A full, read-only or dead filesystem under the home, TMPDIR or the working folder."""
    workdir = host.view.launch.workdir if host.view.launch is not None else None
    for path, room in host.of(OsFacts).filesystems.items():
        unusable = room.error or room.read_only or not room.writable
        # Of an unusable working folder script.workdir and fs.writable tell.
        if path != SHM_PATH and not (unusable and path == workdir):
            yield from _folder(path, room)


def _folder(path: str, room: Filesystem) -> RuleResults:
    make_room = f"on {HERE}: du -xh -d2 {path} | sort -h | tail"
    if room.error:
        yield fail(
            f"{path} on {HERE}: {room.error}",
            hint=f"a dead NFS server? on {HERE}: findmnt -T {path}",
        )
    elif room.read_only or not room.writable:
        yield fail(
            f"{path} on {HERE} is {'mounted read-only' if room.read_only else 'not writable for us'}",
            hint=f"after an I/O error a disk becomes read-only; on {HERE}: findmnt -T {path}; dmesg",
        )
    elif room.free < FULL_BYTES or (room.files > 0 and room.files_free == 0):
        what = size(room.free) if room.free < FULL_BYTES else "no inode"
        yield fail(f"{path} on {HERE} is full: {what} left", hint=make_room)
    elif room.total and room.free / room.total < LOW_SHARE:
        free = f"{size(room.free)} free of {size(room.total)}"
        yield warn(f"{path} on {HERE} has {free}", hint=make_room)


@hint("ulimit -u; --pids-limit=-1; TasksMax.")
@host_rule("lim.processes", "os", Level.QUICK, OsFacts)
def _processes(host: HostView) -> RuleResults:
    """`fork: Resource temporarily unavailable`: processes and threads are limited, for the user or by a control group."""
    facts, expected = host.of(OsFacts), f"{PROCESSES} for the ranks of a host and their threads"
    soft, hard = facts.limits.get("nproc", (None, None))
    # The kernel does not hold root to this limit (setrlimit(2)).
    if soft is not None and soft < PROCESSES and facts.uid != 0:
        yield warn(
            f"only {soft} processes and threads are allowed on {HERE}",
            seen=f"ulimit -u: soft {soft}, hard {show_limit(hard)}",
            expected=expected,
            hint="ulimit -u $(ulimit -Hu), in --setup; above that: /etc/security/limits.d",
            cure=_raise_limit(host, "ulimit -u $(ulimit -Hu)", hard, PROCESSES),
        )
    limit, used = get_number(facts.cgroup, "pids_max"), get_number(facts.cgroup, "pids_used") or 0
    if limit is not None and limit - used < PROCESSES:
        yield warn(
            f"a control group leaves too few processes and threads to {HERE}",
            seen=f"pids.max of the control group: {limit}, of which {used} are used",
            expected=expected,
            hint="in docker: --pids-limit=-1; on a host: "
            f"sudo systemctl set-property user-{max(0, facts.uid)}.slice TasksMax=infinity",
        )


@hint("ulimit -t $(ulimit -Ht)")
@host_rule("lim.cpu_time", "os", Level.QUICK, OsFacts)
def _cpu_time(host: HostView) -> RuleResults:
    """A limit of CPU time, as login nodes have it: ranks killed by SIGXCPU after hours, the sooner the more threads they have."""
    soft, hard = host.of(OsFacts).limits.get("cpu", (None, None))
    if soft is not None:
        cure = in_setup((str(host),), "ulimit -t $(ulimit -Ht)") if hard is None else None
        yield warn(
            f"a process on {HERE} may use {age_text(soft)} of CPU time, of all its threads together: "
            "then SIGXCPU kills it",
            seen=f"ulimit -t: soft {soft}, hard {show_limit(hard)}",
            expected="unlimited",
            hint="ulimit -t $(ulimit -Ht), in --setup"
            if cure
            else "/etc/security/limits.d: * - cpu unlimited; then log in anew; a login node has it "
            "on purpose: train on a compute node",
            cure=cure,
        )


@hint("End what holds it, or give the container more.")
@host_rule("lim.memory", "os", Level.QUICK, OsFacts)
def _memory(host: HostView) -> RuleResults:
    """Memory that others hold, swap in use, a control group smaller than the machine: ranks ended by signal 9."""
    facts = host.of(OsFacts)
    total, available = facts.memory.get("total"), facts.memory.get("available")
    if not total or available is None:
        yield NotApplicable("the kernel does not say how much memory is free")
        return
    yield from _free(host, total, available)
    swap, free = facts.memory.get("swap_total") or 0, facts.memory.get("swap_free")
    if free is not None and swap - free > SWAP_USED_BYTES:
        yield warn(
            f"{size(swap - free)} of swap are in use on {HERE}",
            seen=f"SwapTotal {size(swap)}, SwapFree {size(free)}",
            expected="none: a rank whose pages are out makes all others wait",
            hint="sudo swapoff -a && sudo swapon -a brings the pages back, where memory is free",
        )
    yield from _group(facts, total)


@once_a_view
def _usual_memory(view: View) -> Mapping[int, float]:
    """Return by size of memory how much is free on most hosts about as large; 0 with too few to tell."""
    memories = [each.memory for each in view.of(OsFacts).values()]
    sizes = [(each.get("total") or 0, each.get("available") or 0) for each in memories]
    usual: dict[int, float] = {}
    for total in {total for total, _ in sizes}:
        free = [available for size, available in sizes if abs(size - total) < 0.1 * total]
        usual[total] = median(free) if len(free) > 2 else 0
    return usual


def _free(host: HostView, total: int, available: int) -> RuleResults:
    usual = _usual_memory(host.view)[total]
    if available < LOW_SHARE * total or available < PEER_SHARE * usual:
        yield warn(
            f"{size(available)} of {size(total)} of memory are free on {HERE}",
            seen=f"MemAvailable {size(available)}",
            expected=f"{size(int(usual))}, as on its peers" if usual else "room for a job",
            hint=f"on {HERE}: ps -eo pid,user,rss,comm --sort=-rss | head; ls -la /dev/shm",
        )


def _group(facts: OsFacts, total: int) -> RuleResults:
    """A control group below the machine's size ends ranks by SIGKILL, without a message."""
    group = facts.cgroup
    limit, used = get_number(group, "memory_max"), get_number(group, "memory_used") or 0
    if limit is None or limit >= total:
        return
    seen = f"memory.max of the control group: {size(limit)}, of which {size(used)} are used"
    if limit - used < MEMORY_LEFT_BYTES:
        yield warn(
            f"jobs on {HERE} may use {size(max(0, limit - used))} more of {size(total)}",
            seen=seen,
            expected="room for a job, which is else ended by signal 9",
            hint="in docker: --memory; on a host: systemctl show -p MemoryMax user.slice",
        )
    else:
        yield info(f"jobs on {HERE} may use {size(limit)} of {size(total)}", seen=seen)
