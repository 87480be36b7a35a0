"""Equal stacks of many ranks as one, the most ranks first."""

from __future__ import annotations

from collections.abc import Iterable

from distconsole.model.diagnosis.calls import Call, Place
from distconsole.model.diagnosis.diagnosis import StackGroup
from distconsole.runs.diagnosis.stacks import own_place, what_it_does


def group_stacks(calls: Iterable[Call]) -> tuple[StackGroup, ...]:
    """Return the ranks that live and have a stack, by equal functions and files; lines are those of the first rank."""
    alike: dict[tuple[tuple[str, str], ...], list[Call]] = {}
    for call in sorted(calls, key=lambda each: each.rank):
        if call.alive and call.frames:
            alike.setdefault(_key(call.frames), []).append(call)
    groups = [
        StackGroup(
            ranks=tuple(call.rank for call in members),
            does=what_it_does(members[0]).value,
            place=own_place(members[0].frames),
            frames=members[0].frames,
        )
        for members in alike.values()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks)))


def _key(frames: tuple[Place, ...]) -> tuple[tuple[str, str], ...]:
    """Return functions and files; of the script's own innermost frame also the line, in which two branches differ."""
    own = own_place(frames)
    line = "" if own is None else str(own.line)
    return (("", line), *((frame.function, frame.file) for frame in frames))
