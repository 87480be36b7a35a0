"""Names the ranks that hold a run up, from the calls of all its ranks: one small rule a kind of case, the surest first.

A wrong name is worse than none: if the evidence does not decide, the last rule reports the facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import structs

from distconsole.model.diagnosis.calls import Call, Operation
from distconsole.model.diagnosis.diagnosis import CALM, Diagnosis, Hang, Sure
from distconsole.model.names import count_text
from distconsole.model.time_text import ms_text, span_text
from distconsole.runs.diagnosis.blaming import (
    HARD,
    blame,
    cause_is,
    kernel_words,
    make_diagnosis,
    operation_words,
    payload_text,
    ranks_text,
    silent_of,
    waiting_text,
    what_most_wait_in,
    who_text,
)
from distconsole.runs.diagnosis.causes import BETWEEN_HINT, OPERATION_HINTS, Cause, cause_of
from distconsole.runs.diagnosis.roll import Roll
from distconsole.runs.diagnosis.stacks import (
    Does,
    group_stacks,
    line_text,
    own_place,
    place_text,
    what_it_does,
)
from distconsole.runs.diagnosis.waiting import WaitGraph, family_of, group_text

JudgeRule = Callable[[Roll, WaitGraph], Diagnosis | None]
ORDER_HINT = "every rank of a group must enter the same collectives, with equal shapes and types, in the same order"
LONG_SAVE_SECONDS = 600.0
"""A save by all ranks is a hang from here on."""


def judge(roll: Roll) -> Diagnosis:
    graph = WaitGraph(roll.calls, roll.world)
    found = next(made for rule in RULES if (made := rule(roll, graph)) is not None)
    refused = Counter(
        f"{each.way}: {each.why}" for call in roll.calls.values() for each in call.refused
    )
    notes = Counter(call.note for call in roll.calls.values() if call.note)
    ways = Counter(call.way for call in roll.calls.values() if call.way)
    return structs.replace(
        found,
        summary=_since_when(found, roll) + found.summary,
        groups=group_stacks(roll.calls.values()),
        ways=tuple(f"{way}: {count_text(count, 'rank')}" for way, count in ways.most_common()),
        lacks=tuple(line for line, _ in (*refused.most_common(8), *notes.most_common(4))),
        away=dict(roll.away),
    )


def _since_when(found: Diagnosis, roll: Roll) -> str:
    calls = [call for call in roll.calls.values() if call.alive]
    silent = min((call.silent_s or 0.0 for call in calls), default=0.0)
    usual = max((roll.usual_s(call.rank) for call in calls), default=0.0)
    if found.hang or not usual or any(roll.moves(call) for call in calls):
        return ""
    return f"no step for {ms_text(1000 * silent)}, {ms_text(1000 * usual)} is usual: "


def _moving(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    """Every rank that was asked finished a step lately; others may be on hosts that do not answer."""
    if not roll.calls or set(roll.calls) | roll.unheard != roll.world:
        return None
    if not all(roll.moves(call) for call in roll.calls.values()):
        return None
    newest = max(call.silent_s or 0.0 for call in roll.calls.values())
    within = span_text(max(1.0, newest))
    who = f"all {len(roll.calls):,} ranks" if len(roll.calls) > 1 else "the rank"
    who += " that could be asked" if roll.unheard else ""
    text = f"{who} made steps within the last {within}: nothing hangs"
    if roll.unheard:
        hosts = sorted({roll.host(rank) for rank in roll.unheard})
        text += f" yet; no answer from {', '.join(hosts[:3])}"
    sure = Sure.LIKELY if roll.unheard else Sure.CERTAIN
    return Diagnosis(kind=Hang.HEALTHY, sure=sure, hang=False, summary=text)


def _over(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    calls = list(roll.calls.values())
    if not calls or set(roll.calls) != roll.world or any(call.alive for call in calls):
        return None
    # Of ranks that a process of the script has started no code is known.
    ends = [call.ended for call in calls if call.ended and not (call.ended.signal or call.raised)]
    codes = {end.exit_code for end in ends}
    if len(ends) < len(calls) or codes - {0, None}:
        return None
    how = "have ended, how is not known" if None in codes else "ended with exit code 0"
    text = f"{count_text(len(calls), 'rank')} {how}: nothing hangs"
    return Diagnosis(kind=Hang.HEALTHY, sure=Sure.CERTAIN, hang=False, summary=text)


def _kept_alive(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    """The script is over on all ranks, and something keeps those that live."""
    if not roll.script_is_over:
        return None
    return blame([rank for rank, call in roll.calls.items() if call.alive], roll, graph)


def _by_horovod(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    told = [call.horovod for call in roll.calls.values() if call.horovod is not None]
    counts = Counter(
        rank for each in told for missing in each.missing.values() for rank in set(missing)
    )
    culprits = [rank for rank in counts if rank in roll.world]
    if not culprits or len(culprits) * 2 > len(roll.world):
        return None
    tensors = sorted({name for each in told for name in each.missing})
    text = f"Horovod lacks {', '.join(tensors[:3])} of {ranks_text(sorted(culprits))}"
    return blame(culprits, roll, graph, evidence=(text,))


def _blocked(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    """The ranks at which all waiting ends: they are not in the collective that their group waits in."""
    ends, _ = graph.ends
    outside = ends - graph.waiting or ends
    if not outside:
        return None
    if len(outside) * 2 > len(roll.world) and (odd := _left_behind(roll, graph, outside)):
        return odd
    return blame(outside, roll, graph)


def _left_behind(roll: Roll, graph: WaitGraph, outside: frozenset[int]) -> Diagnosis | None:
    """Most ranks have left the loop well: the few that go on have more batches, and wait in vain."""
    causes = {cause_of(rank, roll).kind for rank in outside}
    waiting = what_most_wait_in(graph)
    if causes != {Hang.LEFT} or waiting is None:
        return None
    few = waiting.ranks
    text = f"{count_text(len(outside), 'rank')} of {len(roll.world)} have left the loop. "
    text += f"{who_text(few, roll)} still {'waits' if len(few) == 1 else 'wait'} in {waiting.operation}: "
    text += "it has more batches" if len(few) == 1 else "they have more batches"
    cause = cause_of(min(outside), roll)
    return make_diagnosis(few, cause, roll, graph, text)


def _crossed(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    ends, circle = graph.ends
    sure = Sure.CERTAIN
    if ends:
        circle, sure = _alone_in_groups(graph, ends), Sure.LIKELY
    if len(circle) < 2:
        return None
    parts = []
    for rank in circle[:3]:
        wait = graph.waits[rank][0]
        absent = sorted(graph.absent(wait))
        for_whom = f" for {ranks_text(absent[:3])}" if absent else ", where nobody else is"
        at = f" {_where(graph.calls[rank])}".rstrip()
        parts.append(
            f"rank {rank} waits in {wait.op} #{wait.seq} of {group_text(wait.group[0])}{at}{for_whom}"
        )
    text = f"ranks wait for each other in different groups: {'; '.join(parts)}"
    hint = "every rank must use its groups in the same order; give each group's collectives one order in the script"
    place = own_place(graph.calls[circle[0]].frames)
    return make_diagnosis(
        circle, Cause(Hang.CROSSED, "", hint, (), place, sure), roll, graph, text
    )


def _alone_in_groups(graph: WaitGraph, ends: frozenset[int]) -> tuple[int, ...]:
    """Return ``ends`` if each waits in a group of which no other member is known, and no two in the same.

    Gloo's records do not name the members of a group, so a rank that crosses them at their first use is seen alone.
    """
    waits = [graph.waits.get(rank, [])[:1] for rank in sorted(ends)]
    groups = {wait.group for each in waits for wait in each}
    alone = all(each and len(graph.members(each[0].group)) == 1 for each in waits)
    return tuple(sorted(ends)) if alone and len(groups) == len(ends) else ()


def _mismatch(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    """One number of a group is another operation, shape or type on some ranks, and not complete."""
    groups = sorted({wait.group for waits in graph.waits.values() for wait in waits})
    for group in groups:
        found = graph.first_mismatch(group)
        if found is None:
            continue
        seq, ((usual, many), *others) = found
        odd = sorted(rank for _, ranks in others for rank in ranks)
        tie = len(odd) >= len(many)
        text = f"collective #{seq} of {group_text(group[0])} differs: "
        text += f"{_called(many, roll)} {_operation_text(usual)}"
        for other, few in others[:3]:
            text += f"; {_called(few, roll)} {_operation_text(other)}"
            now = "" if graph.last[group][few[0]].seq == seq else "and is now "
            where = operation_words(graph.calls[few[0]])
            where = where if now else where.removeprefix(f"{other.op} ")
            text += f", {now}{where}" if where.startswith("at ") else f", {now}in {where}"
        text += "; which of them is wrong, this does not say" if tie else ""
        place = own_place(graph.calls[others[0][1][0]].frames)
        sure = Sure.UNKNOWN if tie else Sure.CERTAIN
        cause = Cause(Hang.MISMATCH, "", ORDER_HINT, (), place, sure)
        return make_diagnosis(() if tie else odd, cause, roll, graph, text)
    return None


def _called(ranks: Sequence[int], roll: Roll) -> str:
    on = f" on {roll.host(ranks[0])}" if len(ranks) == 1 and roll.host(ranks[0]) else ""
    return f"{ranks_text(ranks)}{on} {'calls' if len(ranks) == 1 else 'call'}"


def _operation_text(operation: Operation) -> str:
    payload, shapes = payload_text(operation), operation.input_sizes
    shape = f" of shape {list(shapes[0])}" if shapes and shapes[0] else ""
    return f"{operation.op}{shape}" + (f" ({payload})" if payload else "")


def _meeting(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    there = {
        rank
        for rank, call in roll.calls.items()
        if call.alive and what_it_does(call) is Does.MEETS
    }
    if not there:
        return None
    missing = roll.world - there
    if not missing:
        text = f"all {len(roll.world):,} ranks are in the rendezvous"
        longest = silent_of(there, roll)
        text += f" for {span_text(longest)}" if longest else ""
        hint = "they do not find each other: MASTER_ADDR, MASTER_PORT, the interface (distconsole check --only net)"
        cause = Cause(Hang.RENDEZVOUS, "", hint, sure=Sure.UNKNOWN)
        return make_diagnosis((), cause, roll, graph, text)
    place = own_place(roll.calls[min(there)].frames)
    where = "" if place is None else f" at {line_text(place)}"
    text = f"{len(there):,} of {len(roll.world):,} ranks wait in the rendezvous{where}"
    return blame(missing, roll, graph, lead=text)


def _hard(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    """A rank that is stopped, killed, in a debugger, on a dead host, …, also if others are seen to wait."""
    hard = [rank for rank in sorted(roll.world) if cause_is(rank, roll, HARD)]
    gone = [rank for rank in sorted(roll.world) if cause_is(rank, roll, (Hang.NOT_STARTED,))]
    culprits = hard or gone or sorted(roll.unheard)
    return blame(culprits, roll, graph) if culprits else None


def _by_stacks(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    inside = graph.waiting
    outside = roll.world - inside
    if not inside or not outside or len(outside) > len(inside):
        return None
    going = any(rank in roll.calls and roll.moves(roll.calls[rank]) for rank in outside)
    if going and len(outside) == len(inside):
        return None  # those that go on may not even be of the same group
    return structs.replace(blame(outside, roll, graph), sure=Sure.LIKELY)


def _other_operation(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    """All wait, by their stacks in different operations or lines of the script: the fewest are suspected."""
    if len(graph.waiting) < len(roll.world) or len(roll.world) < 2:
        return None
    groups = {wait.group for waits in graph.waits.values() for wait in waits}
    apart = len(groups) > 1
    by_line: dict[str, list[int]] = {}
    for rank in sorted(graph.waiting):
        words = operation_words(roll.calls[rank])
        if apart and rank in graph.waits:
            wait = graph.waits[rank][0]
            words = f"{wait.op} #{wait.seq} of {group_text(wait.group[0])} ({words})"
        by_line.setdefault(words, []).append(rank)
    if len(by_line) < 2:
        return None
    ordered = sorted(by_line.items(), key=lambda item: -len(item[1]))
    (usual, many), (other, few), *_ = ordered
    odd = sorted(rank for _, ranks in ordered[1:] for rank in ranks)
    tie = apart or len(many) <= len(odd)
    text = f"{ranks_text(many)} {'waits' if len(many) == 1 else 'wait'} in {usual}; "
    hosts = {roll.host(rank) for rank in few}
    text += f"{ranks_text(few)}{f' on {hosts.pop()}' if len(hosts) == 1 else ''} in {other}"
    if apart:
        known = all(
            not graph.absent(wait) and wait.group[1]
            for waits in graph.waits.values()
            for wait in waits
        )
        text += "; " + (
            "no rank is missing in any of them"
            if known
            else "who of them is waited for, the records of these groups do not say"
        )
    elif tie:
        text += "; which of them is late or wrong, this does not say"
    sure = Sure.UNKNOWN if tie else Sure.LIKELY
    place = own_place(roll.calls[few[0]].frames)
    cause = Cause(Hang.OTHER_COLLECTIVE, "", ORDER_HINT, (), place, sure)
    return make_diagnosis(() if tie else odd, cause, roll, graph, text)


def _all_wait(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    if len(graph.waiting) < len(roll.world) or len(roll.world) < 2:
        return None
    waiting = what_most_wait_in(graph)
    if waiting is None or len(waiting.ranks) < len(roll.world):
        return None
    text = f"{waiting_text(waiting, len(roll.world))}: no rank is missing, so the evidence blames none"
    hint = OPERATION_HINTS.get(family_of(waiting.operation), BETWEEN_HINT)
    if any("/horovod/" in frame.file for frame in roll.calls[waiting.ranks[0]].frames):
        hint = f"Horovod's tensors meet by name: look whether all ranks give this one the same; {hint}"
    return make_diagnosis((), Cause(Hang.ALL_WAIT, "", hint, sure=Sure.UNKNOWN), roll, graph, text)


def _same_phase(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    """All that do not wait are in one phase that is known to take its time; a save by all is no hang for minutes."""
    outside = sorted(roll.world - graph.waiting)
    kinds = {cause_of(rank, roll).kind for rank in outside}
    if len(kinds) != 1 or not kinds <= set(CALM):
        return None
    found = blame(outside, roll, graph)
    saves = kinds == {Hang.SAVING} and not graph.waiting
    hang = found.hang and not (saves and (found.seconds or 0.0) < LONG_SAVE_SECONDS)
    return structs.replace(found, hang=hang)


def _standing(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    still = sorted(r for r in roll.world if r in roll.calls and not roll.moves(roll.calls[r]))
    if not still or len(still) * 2 > len(roll.world):
        return None
    going = len(roll.world) - len(still)
    return blame(still, roll, graph, lead=f"{count_text(going, 'rank goes', 'ranks go')} on")


def _minority(roll: Roll, graph: WaitGraph) -> Diagnosis | None:
    """No rank is seen in a collective: suspect the ranks that are elsewhere than most."""
    groups: dict[object, list[int]] = {}
    for rank in sorted(roll.world):
        call = roll.calls.get(rank)
        groups.setdefault(None if call is None else own_place(call.frames), []).append(rank)
    place, most = max(groups.items(), key=lambda item: len(item[1]))
    others = sorted(roll.world.difference(most))
    if place is None or not others or len(others) * 3 > len(most) * 2:
        return None
    lead = f"{len(most):,} of {len(roll.world):,} ranks are {_where(roll.calls[most[0]])}"
    found = blame(others, roll, graph, lead=lead)
    return structs.replace(found, sure=Sure.LIKELY)


def _where(call: Call) -> str:
    place = own_place(call.frames)
    return "" if place is None else place_text(place)


def _undecided(roll: Roll, graph: WaitGraph) -> Diagnosis:
    """Report the facts without blame; of a single rank its activity."""
    if len(roll.world) == 1 and roll.calls:
        return blame(roll.world, roll, graph)
    seen = group_stacks(roll.calls.values())
    parts = [
        f"{ranks_text(group.ranks)} {_where(roll.calls[group.ranks[0]]) or group.does}"
        for group in seen[:3]
    ]
    text = f"the stacks do not say who is waited for: {'; '.join(parts)}"
    hint = "ask again in some seconds: a place that changes is no hang"
    if len(seen) == 1 and seen[0].does == Does.OTHER and len(seen[0].ranks) == len(roll.world):
        text = f"all {len(roll.world):,} ranks are {_where(roll.calls[seen[0].ranks[0]])}: none of them waits for another"
    if not roll.calls:
        text = "no rank could be asked where it is"
        hint = "distconsole doctor looks at the way to the hosts"
    elif not seen:
        text = f"no stack could be read, which would say who is waited for. {_by_kernel(roll)}"
        hint = "with py-spy on the hosts (pip install py-spy) the rank and its line can be named"
    return make_diagnosis(
        (), Cause(Hang.UNDECIDED, "", hint, sure=Sure.UNKNOWN), roll, graph, text
    )


def _by_kernel(roll: Roll) -> str:
    """Report the kernel's view of living ranks, equal ones together, the fewest first."""
    alike: dict[str, list[int]] = {}
    for rank, call in sorted(roll.calls.items()):
        if call.alive:
            alike.setdefault(kernel_words(call), []).append(rank)
    ordered = sorted(alike.items(), key=lambda item: len(item[1]))
    return "; ".join(f"{ranks_text(ranks)}: {words}" for words, ranks in ordered[:4])


RULES: Sequence[JudgeRule] = (
    *(
        _moving,
        _over,
        _kept_alive,
        _by_horovod,
        _mismatch,
        _crossed,
        _blocked,
        _meeting,
        _hard,
        _by_stacks,
    ),
    *(_other_operation, _all_wait, _same_phase, _standing, _minority, _undecided),
)
