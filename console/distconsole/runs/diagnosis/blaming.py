"""From culprits to a diagnosis: those with the hardest cause are named, the others are evidence; and its sentence.

The sentence names the operation that ranks wait in, the absent rank, and its present activity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from msgspec import structs

from distconsole.model.diagnosis.calls import Call, Operation
from distconsole.model.diagnosis.diagnosis import CALM, Diagnosis, Hang, Waiting
from distconsole.model.names import ranks_text as spans_text
from distconsole.model.names import size_text
from distconsole.model.time_text import span_text
from distconsole.runs.diagnosis.causes import OPERATION_HINTS, Cause, cause_of
from distconsole.runs.diagnosis.roll import Roll
from distconsole.runs.diagnosis.stacks import line_text, operation_of, own_place
from distconsole.runs.diagnosis.waiting import WaitGraph, family_of, group_text

HARD = (
    *(Hang.OUT_OF_MEMORY, Hang.KILLED, Hang.FAILED, Hang.STOPPED, Hang.DEBUGGER, Hang.INPUT),
    *(Hang.DATA_WORKER, Hang.DISK, Hang.SWAP, Hang.EXCEPTION),
)
"""Causes that stop a run, whichever ranks wait for it."""
PASSING = (Hang.DATA_WORKER, Hang.DISK, Hang.SWAP, Hang.CROSSED)
"""Activities that count as a hang after seconds."""
NOT_LONG = "it is not long yet: a run counts as stalled after 30 s, later where its steps or its pauses are longer"
MOST_LINES = 8
"""Of evidence."""

ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "int64", "float64", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16"), 2),
    **dict.fromkeys(("char", "byte", "bool", "int8", "uint8"), 1),
}
NAMES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
}
MAX_SPANS = 6
"""Ranks, and spans of them, that a sentence names."""


def cause_is(rank: int, roll: Roll, kinds: Sequence[Hang]) -> bool:
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
    alike = [
        rank for rank, each in causes.items() if (each.kind, each.does) == (cause.kind, cause.does)
    ]
    waiting = what_most_wait_in(graph, alike)
    there = first in graph.waiting
    if not lead and waiting is not None and set(waiting.ranks) - set(alike):
        lead = waiting_text(waiting, len(roll.world))
    if waiting is not None and cause.kind is Hang.ELSEWHERE:
        order = OPERATION_HINTS.get(family_of(waiting.operation), "")
        cause = cause._replace(hint="; ".join(filter(None, (cause.hint, order))))
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
    if cause.kind in (Hang.NOT_STARTED, Hang.HOST_SILENT):
        return 1
    return 3 if cause.kind in CALM else 2


def make_diagnosis(
    ranks: Sequence[int],
    cause: Cause,
    roll: Roll,
    graph: WaitGraph,
    text: str,
    evidence: tuple[str, ...] = (),
) -> Diagnosis:
    waiting = what_most_wait_in(graph, ranks)
    about = [rank for rank in (ranks or sorted(roll.calls)) if rank in roll.calls]
    sure = cause.kind in HARD and cause.kind not in PASSING
    sure = sure or cause.kind is Hang.MISMATCH  # it can never go on
    hang = sure or not about or any(_lasts(roll.calls[rank], cause, roll) for rank in about)
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


def _lasts(call: Call, cause: Cause, roll: Roll) -> bool:
    """Return True if a rank does this for unusually long; before its first step many things take their time."""
    passing = cause.kind in PASSING and call.step >= 0
    return roll.rests(call) if passing else roll.is_long(call)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0-3,7`` or, of many without order, ``ranks 0,2,4 and 7 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    spans = spans_text(ranks).split(",")
    if len(spans) <= MAX_SPANS:
        return f"ranks {','.join(spans)}"
    last = int(spans[MAX_SPANS - 1].rpartition("-")[2])
    return f"ranks {','.join(spans[:MAX_SPANS])} and {sum(rank > last for rank in ranks):,} more"


def payload_text(operation: Operation) -> str:
    """Return ``4 MiB float32``; empty if unknown."""
    if not operation.input_sizes or not operation.input_dtypes:
        return ""
    types = [each.lower() for each in operation.input_dtypes]
    types += types[-1:] * (len(operation.input_sizes) - len(types))
    sizes = zip(operation.input_sizes, types, strict=False)
    total = sum(prod(size) * ITEM_BYTES.get(kind, 0) for size, kind in sizes)
    return f"{size_text(total)} {NAMES.get(types[0], types[0])}"


def what_most_wait_in(graph: WaitGraph, about: Iterable[int] = ()) -> Waiting | None:
    """Return the operation in which most ranks wait, of the waits that concern ``about``; None without such a wait."""
    wait, ranks = graph.most(about)
    if not ranks:
        return None
    first = min(ranks)
    by_place: dict[object, list[int]] = {}
    for rank in sorted(ranks):
        by_place.setdefault(own_place(graph.calls[rank].frames), []).append(rank)
    commonest = max(by_place.values(), key=len)
    place = own_place(graph.calls[commonest[0]].frames)
    if wait is None:
        op = operation_of(graph.calls[first].frames)
        return Waiting(operation=op, ranks=tuple(sorted(ranks)), place=place)
    in_it = [rank for rank in sorted(ranks) if rank in graph.waits]
    operation = graph.operation_at(in_it[0], wait.group, wait.seq)
    collective = graph.last[wait.group][in_it[0]]
    return Waiting(
        operation=f"{(operation or collective).op or wait.op} #{wait.seq}",
        ranks=tuple(sorted(ranks)),
        place=place,
        seq=wait.seq,
        group=collective.name or collective.group,
        payload="" if operation is None else payload_text(operation),
    )


def waiting_text(waiting: Waiting, world: int) -> str:
    """Return ``3 of 4 ranks wait in all_reduce #2507 (4 MiB float32, default_pg) at train.py:88``."""
    group = [group_text(waiting.group)] if waiting.seq is not None else []
    about = ", ".join(each for each in (waiting.payload, *group) if each)
    text = count_of(waiting.ranks, world) + f" in {waiting.operation}"
    text += f" ({about})" if about else ""
    return text + ("" if waiting.place is None else f" at {line_text(waiting.place)}")


def count_of(ranks: Sequence[int], world: int) -> str:
    """Return ``3 of 4 ranks wait``, or ``rank 0 waits``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} waits"
    if len(ranks) < world:
        return f"{len(ranks):,} of {world:,} ranks wait"
    return f"all {world:,} ranks wait"


def who_text(ranks: Sequence[int], roll: Roll) -> str:
    """Return ``Rank 1 on node2``."""
    hosts = list(dict.fromkeys(roll.host(rank) for rank in ranks))
    on = f" on {hosts[0]}" if len(hosts) == 1 and hosts[0] else ""
    if len(hosts) > 1:
        on = f" on {len(hosts)} hosts"
    text = ranks_text(ranks) + on
    return text[0].upper() + text[1:]


def culprit_text(
    ranks: Sequence[int], cause: Cause, roll: Roll, *, there: bool, timed: bool = True
) -> str:
    """Return ``Rank 1 on node2 is not there: it is in load_image at data.py:31, for 41 s, state D (disk)``."""
    one = len(ranks) == 1
    it = "it" if one else "they"
    does = cause.does if one else plural(cause.does)
    missing = " is not there" if one else " are not there"
    seconds = silent_of(ranks, roll) if timed else None
    lives = any(rank in roll.calls and roll.calls[rank].alive for rank in ranks)
    since = (
        (f"for {span_text(seconds)}",) if seconds is not None and lives and seconds >= 1 else ()
    )
    parts = [
        f"{it} {does}" if not there else does,
        *since,
        *cause.details,
    ]
    return who_text(ranks, roll) + ("" if there else f"{missing}:") + " " + ", ".join(parts)


def silent_of(ranks: Iterable[int], roll: Roll) -> float | None:
    known = (roll.calls[rank].silent_s for rank in ranks if rank in roll.calls)
    return next((each for each in known if each is not None), None)


def plural(does: str) -> str:
    """Return the words about several ranks: ``are in load_image`` for ``is in load_image``."""
    word, _, rest = does.partition(" ")
    several = {"is": "are", "has": "have", "was": "were"}
    return f"{several.get(word) or word.removesuffix('s')} {rest}".rstrip()


def operation_words(call: Call) -> str:
    """Return the place of a rank: its operation, else its own line."""
    op = operation_of(call.frames)
    place = own_place(call.frames)
    where = "" if place is None else f" at {line_text(place)}"
    return f"{op}{where}" if op else where.strip() or "a place that is not known"


def kernel_words(call: Call) -> str:
    """Return the kernel's view of a rank's main thread: ``state S in futex, waits for lock, no CPU``."""
    place = call.syscall.name if call.syscall is not None else call.wchan
    parts = [f"state {call.state or 'unknown'}{f' in {place}' if place else ''}"]
    if call.waits_for is not None:
        parts.append(f"waits for {call.waits_for.kind} {call.waits_for.what}".rstrip())
    if call.main_cpu_s is not None and call.over_s:
        share = round(10 * min(1.0, call.main_cpu_s / call.over_s)) * 10
        parts.append(f"{share} % CPU" if share else "no CPU")
    return ", ".join(parts)
