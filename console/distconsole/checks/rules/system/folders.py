"""Checks of folders: shared by the hosts, writable, about as fast everywhere, fit for temporary files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import NamedTuple

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, judge_each, rule
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import Filesystem, OsFacts
from distconsole.checks.facts.script import FolderFacts, SpeedFacts, Trial
from distconsole.checks.gather.local_facts import NODE_FOLDERS
from distconsole.checks.rules.system.limits import FULL_BYTES
from distconsole.model.findings import Cure, HostCure
from distconsole.model.requests import Level

IN_MEMORY = ("tmpfs", "ramfs")
NUMBERED = ("nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "wekafs")
"""Filesystems whose server numbers the folders, so that a number is the same on every host."""
TOLD = "on a filesystem that does not answer: fs.mounts tells which"
ABSENT = ("ENOENT", "ENOTDIR")
"""A folder that is not there is another check's finding."""
FULL = ("ENOSPC", "EDQUOT", "EFBIG", "EIO")
"""Why a file that was made takes no content; what else is wrong with a folder fs.writable says."""
SLOW_FACTOR = 5.0
MIB = 1 << 20
SOCKET_PATH_BYTES = 108
"""Of sun_path, with its end (unix(7))."""
SOCKET_NAME_BYTES = 33
"""What Python's multiprocessing puts below TMPDIR: /pymp-xxxxxxxx/listener-xxxxxxxx, and the end."""


def lies_on_stuck(path: str, facts: OsFacts) -> bool:
    """Whether ``path`` is on a network filesystem that does not answer, of which fs.mounts tells."""
    return any(mount.error and _lies_below(path, mount.point) for mount in facts.network_mounts)


def _lies_below(path: str, point: str) -> bool:
    return path == point or path.startswith(f"{point.rstrip('/')}/")


@hint("The server; umount -f -l.")
@host_rule("fs.mounts", "fs", Level.QUICK, OsFacts)
def _mounts(host: HostView) -> RuleResults:
    """NFS, Lustre and others that do not answer: everything that touches them hangs."""
    mounts, launch = host.of(OsFacts).network_mounts, host.view.launch
    used = [launch.workdir, launch.root, *(each.path for each in launch.paths)] if launch else []
    if not mounts:
        yield NotApplicable("no network filesystem")
    for mount in mounts:
        if mount.error:
            yield (fail if any(_lies_below(path, mount.point) for path in used) else warn)(
                f"{mount.point} on {HERE}: {mount.error}",
                seen=f"{mount.kind} {mount.source}, {mount.options}",
                expected="a filesystem that answers: whatever touches it hangs until it does",
                hint=f"is its server up? on {HERE}: sudo umount -f -l {mount.point} && sudo mount "
                f"{mount.point}",
            )


@hint("node_dir: a folder on a disk.")
@host_rule("fs.in_memory", "fs", Level.QUICK, OsFacts)
def _in_memory(host: HostView) -> RuleResults:
    """A node folder on tmpfs: logs of runs take memory there, and are gone after a reboot."""
    path = host.evidence.host.node_dir or NODE_FOLDERS
    room = host.of(OsFacts).filesystems.get(path)
    if room is not None and room.mount is not None and room.mount.kind in IN_MEMORY:
        yield info(
            f"what runs write is kept in memory on {HERE}, and gone after a reboot: {path} is a "
            f"{room.mount.kind}",
            expected="a disk: logs in memory take what ranks may need",
            hint="node_dir in distconsole.toml: a local folder on a disk",
        )


@hint("chown, or another folder.")
@host_rule("fs.writable", "fs", Level.QUICK, FolderFacts, OsFacts)
def _writable(host: HostView) -> RuleResults:
    """A working folder, an output folder or TMPDIR in which no file can be made: root squash, a quota."""
    # Root squash, quotas and attributes show in no mode bits.
    launch, system = host.view.launch, host.of(OsFacts)
    for path, found in host.of(FolderFacts).folders.items():
        room = system.filesystems.get(path, Filesystem())
        work = launch is not None and path == launch.workdir
        unusable = (room.read_only or bool(room.error)) and not work
        said_elsewhere = unusable or (room.total > 0 and not room.free)
        touch = found.touch
        if found.late and (lies_on_stuck(path, system) or room.error):
            yield NotApplicable(TOLD)
        elif found.late:
            yield fail(
                f"making a file in {path} hangs on {HERE}",
                seen="open(O_CREAT) did not return in time",
                expected="a filesystem that answers",
                hint=f"on {HERE}: findmnt -T {path}; is its server up?",
            )
        elif touch and touch.error and touch.code not in ABSENT and not said_elsewhere:
            temporary = path == system.temporary
            yield (fail if temporary else warn)(
                f"no file can be made in {path} on {HERE}",
                seen=f"open(O_CREAT): {touch.error}",
                expected="a folder that the ranks can write to"
                + ("; torch and its compilers do" if temporary else ", if the script does"),
                hint=f"on {HERE}: ls -ld {path}; findmnt -T {path}; quota -s",
            )


class Slow(NamedTuple):
    host: str
    path: str
    what: str
    here: str
    others: str
    factor: float


def _show_rate(cost: float) -> str:
    return f"{1 / cost:.0f} MiB/s" if cost < 1 else f"{1 / cost:.2f} MiB/s"


def _show_latency(cost: float) -> str:
    return f"{cost * 1e3:.1f} ms"


ASPECTS = (
    ("writing", "write", 1 / 100, _show_rate),
    ("reading", "read", 1 / 200, _show_rate),
    ("a small file", "small", 5e-3, _show_latency),
    ("looking at a file", "look", 2e-3, _show_latency),
)
"""Measured quantity: its name and field, and the cost that is acceptable in any case."""


def slow_folders(facts: Mapping[str, SpeedFacts]) -> Iterator[Slow]:
    """Yield what takes ``SLOW_FACTOR`` times as long on a host as on the others, by their median."""
    for path in dict.fromkeys(path for found in facts.values() for path in found.folders):
        folders = {name: f.folders[path] for name, f in facts.items() if path in f.folders}
        for what, field, harmless, show in ASPECTS:
            costs: dict[str, float] = {}  # seconds for a MiB, or for a file
            for name, folder in folders.items():
                trial: Trial | None = getattr(folder, field)
                cost = None if trial is None else MIB / trial.rate if trial.rate else trial.latency
                if cost is not None:
                    costs[name] = cost
            for name, cost in costs.items():
                others = [each for other, each in costs.items() if other != name]
                usual = median(others) if others else cost
                if cost > max(SLOW_FACTOR * usual, harmless):
                    yield Slow(name, path, what, show(cost), show(usual), cost / usual)


def _refuses(host: HostView) -> RuleResults:
    """Yield the folders in which a file takes no content; disk.space reports a full disk."""
    system = host.find(OsFacts)
    for path, found in host.of(SpeedFacts).folders.items():
        room = system.filesystems.get(path) if system else None
        is_full = room is not None and room.free < FULL_BYTES
        if found.write and found.write.code in FULL and not is_full:
            yield warn(
                f"a file can be made in {path} on {HERE}, and not be filled",
                seen=f"write(): {found.write.error}",
                expected="room for what the ranks write: checkpoints end a run that cannot save them",
                hint=f"on {HERE}: df -h {path}; df -i {path}; quota -s; sudo dmesg | tail",
            )


@hint("The finding says which folder, and how fast the others are.")
@rule("fs.speed", "fs", Level.STANDARD, SpeedFacts)
def _speed(view: View) -> RuleResults:
    """One host whose disk, mount or metadata server is five times slower: all ranks wait for it; one that takes no content."""
    facts = view.of(SpeedFacts)
    yield from judge_each(_refuses)(view)
    if len(facts) < 2:
        yield NotApplicable("one host", tuple(facts))
        return
    for slow in slow_folders(facts):
        yield warn(
            f"{slow.what} in {slow.path} takes {slow.factor:.0f} times as long on {slow.host} as on "
            "the others",
            (slow.host,),
            seen=f"{slow.host}: {slow.here}; the others: {slow.others} (median); measured again alone",
            expected=f"no host {SLOW_FACTOR:.0f} times slower than the others: all ranks wait for it",
            hint=f"on {slow.host}: findmnt -T {slow.path}; iostat -x 1 3; nfsstat -m; is it the same disk?",
        )


@hint("export TMPDIR=/tmp")
@host_rule("tmp.dir", "os", Level.QUICK, OsFacts)
def _temporary(host: HostView) -> RuleResults:
    """A TMPDIR that is mounted noexec, or too long a path for Unix sockets (108 bytes)."""
    facts = host.of(OsFacts)
    path = facts.temporary
    room, length = facts.filesystems.get(path), len(path.encode())
    if not path:
        yield NotApplicable("the node does not say where its temporary files go")
    if room is not None and room.noexec:
        yield warn(
            f"nothing can be executed in {path} on {HERE}",
            seen="mounted noexec",
            expected="a folder from which compiled kernels (torch.compile, Triton) can be loaded",
            hint=f"export TMPDIR=/var/tmp; or on {HERE}: sudo mount -o remount,exec {path}",
            cure=_in_folder(host, "/var/tmp"),  # noqa: S108 - for programs of the user
        )
    if length + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
        yield warn(
            f"TMPDIR of {HERE} is too long a path for sockets: {length} bytes",
            seen=f"TMPDIR={path}",
            expected=f"at most {SOCKET_PATH_BYTES - SOCKET_NAME_BYTES} bytes; "
            "else DataLoader workers and mpirun fail with `AF_UNIX path too long`",
            hint="export TMPDIR=/tmp, in --setup",
            cure=_in_folder(host, "/tmp"),  # noqa: S108 - for programs of the user
        )


def _in_folder(host: HostView, path: str) -> Cure:
    return Cure(hosts={str(host): HostCure(env={"TMPDIR": path})})
