"""Checks of group ``fs`` on using folders: a file can be made there, and no host is much slower."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.checks.engine.rule import Said, Unjudged, fail, hint, rule, warn
from distconsole.checks.engine.together import HERE
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.folders import FolderFacts, SpeedFacts
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.rules.system.slow_folders import FACTOR, slow_folders
from distconsole.checks.rules.system.stuck import TOLD, lies_below, stuck_points
from distconsole.model.requests import Level

ABSENT = ("ENOENT", "ENOTDIR")
"""A folder that is not there is another check's finding."""


@rule("fs.writable", "fs", Level.QUICK, FolderFacts, OsFacts)
@hint("chown, or another folder.")
def _writable(view: View) -> Iterator[Said]:
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
                yield Unjudged((name,), TOLD)
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
def _speed(view: View) -> Iterator[Said]:
    """One host whose disk, mount or metadata server is five times slower: all ranks wait for it."""
    facts = view.of(SpeedFacts)
    if len(facts) < 2:
        yield Unjudged(tuple(facts), "one host")
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


RULES = (_writable, _speed)
