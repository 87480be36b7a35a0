"""Checks of group ``fs``: folders that hosts share, a file can be made there, and all hosts are about as fast."""

from __future__ import annotations

from distconsole.checks.engine.rule import (
    HERE,
    NotApplicable,
    RuleResults,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import Filesystem, OsFacts, SshFacts
from distconsole.checks.facts.script import FolderFacts, SpeedFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.gather.questions import NODE_FOLDERS
from distconsole.checks.rules.system.slow_folders import FACTOR, slow_folders
from distconsole.checks.rules.system.stuck import TOLD, is_needed, lies_below, stuck_points
from distconsole.checks.rules.wording import dissent, list_some, name_hosts
from distconsole.model.requests import Level

IN_MEMORY = ("tmpfs", "ramfs")
NUMBERED = ("nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "wekafs")
"""Filesystems whose server numbers the folders, so that a number is the same on every host."""


@rule("fs.shared", "fs", Level.QUICK, OsFacts, NetFacts, SshFacts)
@hint("findmnt; sudo mount -a")
def _find_local(view: View) -> RuleResults:
    """A shared home or data folder that is a local one on some host: a mount that did not come up.

    The home, and every folder that lies on a network filesystem somewhere, must be one folder.
    """
    facts = view.of(OsFacts)
    if len(set(machines(view).values())) < 2:
        yield NotApplicable("one host", tuple(facts))
        return
    homes = {name: found.filesystems.get(found.home) for name, found in facts.items()}
    yield from _one_folder("the home folder", {n: f for n, f in homes.items() if f is not None})
    paths = dict.fromkeys(path for found in facts.values() for path in found.filesystems)
    for path in paths:
        there = {
            name: found.filesystems[path]
            for name, found in facts.items()
            if path in found.filesystems and path != found.home
        }
        yield from _one_folder(path, there)
    yield from _find_unmounted(facts)


def _one_folder(what: str, there: dict[str, Filesystem]) -> RuleResults:
    known = {
        name: room for name, room in there.items() if room.mount is not None and not room.error
    }
    network = {name: room for name, room in known.items() if room.mount and room.mount.network}
    if not network or len(known) < 2:
        return
    local = [name for name in known if name not in network]
    if local:
        minority = local if 2 * len(local) <= len(known) else list(network)
        verb = "is local" if minority == local else "comes over the network"
        yield warn(
            f"{what} {verb} on {name_hosts(minority)}, unlike on the other hosts",
            minority,
            seen=_list_rooms(known),
            expected="one folder for all; else a checkpoint or a script is seen by some ranks only",
            hint=f"on {name_hosts(local)}: findmnt; sudo mount -a; systemctl --failed shows mounts that did "
            "not come up",
        )
        return
    sources = dissent({name: room.mount.source for name, room in network.items() if room.mount})
    numbered = all(room.mount and room.mount.kind in NUMBERED for room in network.values())
    inodes = dissent({name: room.inode for name, room in network.items()})
    if numbered and inodes is not None:
        split = sources or inodes
        yield warn(
            f"{what} is not the same folder on {name_hosts(split.minority)} as on the other hosts",
            split.minority,
            seen=_list_rooms(network),
            expected="the same source, and the same number of the folder in it",
            hint="compare /etc/fstab of the hosts, and the automounter's maps",
        )
    elif sources is not None and not numbered:
        yield info(
            f"{what} comes from different sources",
            sources.minority,
            seen=_list_rooms(network),
            expected="one source, unless they are names of one",
        )


def _list_rooms(rooms: dict[str, Filesystem]) -> str:
    lines = [
        f"{name}: {room.mount.kind} {room.mount.source} at {room.mount.point}, inode {room.inode}"
        for name, room in rooms.items()
        if room.mount is not None
    ]
    return list_some(lines)


def _find_unmounted(facts: dict[str, OsFacts]) -> RuleResults:
    """A network filesystem that most hosts have and some have not."""
    points = dict.fromkeys(mount.point for f in facts.values() for mount in f.network_mounts)
    for point in points:
        has = [n for n, f in facts.items() if any(m.point == point for m in f.network_mounts)]
        lacks = [name for name in facts if name not in has]
        if lacks and len(has) > len(lacks):
            yield warn(
                f"{point} is not mounted on {name_hosts(lacks)}, on {len(has)} other hosts it is",
                lacks,
                seen=", ".join(
                    f"{mount.source} on {has[0]}"
                    for mount in facts[has[0]].network_mounts
                    if mount.point == point
                ),
                expected="the same network filesystems on every host",
                hint=f"on {name_hosts(lacks)}: sudo mount {point}; sudo mount -a",
            )


@rule("fs.mounts", "fs", Level.QUICK, OsFacts)
@hint("The server; umount -f -l.")
def _stuck(view: View) -> RuleResults:
    """NFS, Lustre and others that do not answer: everything that touches them hangs."""
    none = tuple(name for name, found in view.of(OsFacts).items() if not found.network_mounts)
    yield NotApplicable("no network filesystem", none)
    for name, found in view.of(OsFacts).items():
        for mount in found.network_mounts:
            if mount.error:
                yield (fail if is_needed(mount.point, view.launch) else warn)(
                    f"{mount.point} on {name}: {mount.error}",
                    (name,),
                    seen=f"{mount.kind} {mount.source}, {mount.options}",
                    expected="a filesystem that answers: whatever touches it hangs until it does",
                    hint=f"is its server up? on {name}: sudo umount -f -l {mount.point} && sudo mount "
                    f"{mount.point}",
                )


@rule("fs.in_memory", "fs", Level.QUICK, OsFacts)
@hint("node_dir: a folder on a disk.")
def _in_memory(view: View) -> RuleResults:
    """A node folder on tmpfs: logs of runs take memory there, and are gone after a reboot.

    The node folder holds the journal and the logs of runs.
    """
    for place, hosts in _node_folders_in_memory(view).items():
        yield info(
            f"what runs write is kept in memory on {name_hosts(hosts)}, and gone after a reboot: {place}",
            hosts,
            expected="a disk: logs in memory take what ranks may need",
            hint="node_dir in distconsole.toml: a local folder on a disk",
        )


def _node_folders_in_memory(view: View) -> dict[str, list[str]]:
    facts = view.of(OsFacts)
    found: dict[str, list[str]] = {}
    for each in view.hosts:
        path = each.host.node_dir or NODE_FOLDERS
        room = facts[each.name].filesystems.get(path)
        if room is not None and room.mount is not None and room.mount.kind in IN_MEMORY:
            found.setdefault(f"{path} is a {room.mount.kind}", []).append(each.name)
    return found


ABSENT = ("ENOENT", "ENOTDIR")
"""A folder that is not there is another check's finding."""


@rule("fs.writable", "fs", Level.QUICK, FolderFacts, OsFacts)
@hint("chown, or another folder.")
def _writable(view: View) -> RuleResults:
    """A working folder, an output folder or TMPDIR in which no file can be made: root squash, a quota.

    A file is made and removed: root squash, quotas and attributes show in no mode bits.
    """
    launch, systems, stuck = view.launch, view.of(OsFacts), stuck_points(view)
    for name, facts in view.of(FolderFacts).items():
        system = systems[name]
        for path, found in facts.folders.items():
            room = system.filesystems.get(path)
            work = launch is not None and path == launch.workdir
            unusable = room is not None and bool(room.read_only or room.error) and not work
            said_elsewhere = unusable or (room is not None and room.total > 0 and not room.free)
            if found.late and (lies_below(path, stuck[name]) or (room is not None and room.error)):
                yield NotApplicable(TOLD, (name,))
            elif found.late:
                yield fail(
                    f"making a file in {path} hangs on {HERE}",
                    (name,),
                    seen="open(O_CREAT) did not return in time",
                    expected="a filesystem that answers",
                    hint=f"on {HERE}: findmnt -T {path}; is its server up?",
                )
            elif found.touch is None or not found.touch.error or found.touch.code in ABSENT:
                continue
            elif not said_elsewhere:
                temporary = path == system.temporary
                yield (fail if temporary else warn)(
                    f"no file can be made in {path} on {HERE}",
                    (name,),
                    seen=f"open(O_CREAT): {found.touch.error}",
                    expected="a folder that the ranks can write to"
                    + ("; torch and its compilers do" if temporary else ", if the script does"),
                    hint=f"on {HERE}: ls -ld {path}; findmnt -T {path}; quota -s",
                )


@rule("fs.speed", "fs", Level.STANDARD, SpeedFacts)
@hint("The finding says which folder, and how fast the others are.")
def _speed(view: View) -> RuleResults:
    """One host whose disk, mount or metadata server is five times slower: all ranks wait for it."""
    facts = view.of(SpeedFacts)
    if len(facts) < 2:
        yield NotApplicable("one host", tuple(facts))
        return
    for slow in slow_folders(facts):
        yield warn(
            f"{slow.what} in {slow.path} takes {slow.factor:.0f} times as long on {slow.host} as on "
            "the others",
            (slow.host,),
            seen=f"{slow.host}: {slow.here}; the others: {slow.others} (median); measured again alone",
            expected=f"no host {FACTOR:.0f} times slower than the others: all ranks wait for it",
            hint=f"on {slow.host}: findmnt -T {slow.path}; iostat -x 1 3; nfsstat -m; is it the same disk?",
        )


RULES = (_find_local, _stuck, _in_memory, _writable, _speed)
