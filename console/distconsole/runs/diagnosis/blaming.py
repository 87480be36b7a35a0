"""From culprits to a diagnosis: those with the hardest cause are named, the others are evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from distconsole.model.diagnosis.diagnosis import CALM, Diagnosis, Kind
from distconsole.runs.diagnosis.causes import Cause, cause_of
from distconsole.runs.diagnosis.roll import Roll
from distconsole.runs.diagnosis.waiting import WaitGraph
from distconsole.runs.diagnosis.words import (
    culprit_text,
    silent_of,
    waiting_text,
    what_most_wait_in,
)

HARD = (
    *(Kind.OUT_OF_MEMORY, Kind.KILLED, Kind.FAILED, Kind.STOPPED, Kind.DEBUGGER, Kind.INPUT),
    *(Kind.DATA_WORKER, Kind.DISK, Kind.SWAP, Kind.EXCEPTION),
)
"""What keeps a run whoever waits for it."""
PASSING = (Kind.DATA_WORKER, Kind.DISK, Kind.SWAP, Kind.CROSSED)
"""What is a hang at once if it does not pass within seconds."""
NOT_LONG = "it is not long yet: a run counts as stalled after 30 s, later where its steps or its pauses are longer"
MOST_LINES = 8
"""Of evidence."""


def cause_is(rank: int, roll: Roll, kinds: Sequence[Kind]) -> bool:
    cause = cause_of(rank, roll)
    return cause.kind in kinds and not cause.victim


def blame(
    ranks: Iterable[int],
    roll: Roll,
    graph: WaitGraph,
    *,
    lead: str = "",
    evidence: tuple[str, ...] = (),
) -> Diagnosis:
    """Blame ``ranks``: those of the hardest cause are named, the others are evidence."""
    causes = {rank: cause_of(rank, roll) for rank in sorted(ranks)}
    first = min(causes, key=lambda rank: (_hardness(causes[rank]), rank))
    cause = causes[first]
    alike = [rank for rank, each in causes.items() if _same(each, cause)]
    waiting = what_most_wait_in(graph)
    there = first in graph.waiting
    if not lead and waiting is not None and set(waiting.ranks) - set(alike):
        lead = waiting_text(waiting, len(roll.world))
    text = culprit_text(alike, cause, roll, there=there or not lead)
    text = f"{lead}. {text}" if lead else text
    others = [
        culprit_text([rank], each, roll, there=True)
        for rank, each in causes.items()
        if rank not in alike
    ]
    short = culprit_text(alike, cause, roll, there=True, timed=False)
    found = make_diagnosis(alike, cause, roll, graph, text, (*evidence, *others[:MOST_LINES]))
    return structs.replace(found, short=_lowered(f"{short}; {lead}" if lead else short))


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _hardness(cause: Cause) -> int:
    if cause.victim:
        return 2
    if cause.kind in HARD:
        return 0
    if cause.kind in (Kind.NOT_STARTED, Kind.HOST_SILENT):
        return 1
    return 3 if cause.kind in CALM else 2


def _same(one: Cause, other: Cause) -> bool:
    return (one.kind, one.does) == (other.kind, other.does)


def make_diagnosis(
    ranks: Sequence[int],
    cause: Cause,
    roll: Roll,
    graph: WaitGraph,
    text: str,
    evidence: tuple[str, ...] = (),
) -> Diagnosis:
    waiting = what_most_wait_in(graph)
    about = [rank for rank in (ranks or sorted(roll.calls)) if rank in roll.calls]
    lasts = roll.rests if cause.kind in PASSING else roll.is_long
    sure = cause.kind in HARD and cause.kind not in PASSING
    hang = sure or not about or any(lasts(roll.calls[rank]) for rank in about)
    if not hang:
        evidence = (*evidence, NOT_LONG)
    return Diagnosis(
        kind=cause.kind,
        sure=cause.sure,
        hang=hang,
        summary=_lowered(text),
        short=_lowered(text),
        hint=cause.hint,
        ranks=tuple(ranks),
        hosts=tuple(dict.fromkeys(host for rank in ranks if (host := roll.host(rank)))),
        place=cause.place,
        operation="" if waiting is None else waiting.operation,
        seconds=silent_of(ranks, roll),
        waiting=waiting,
        evidence=evidence,
    )
