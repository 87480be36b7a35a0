"""Checks of group ``coll``: what the ranks of a short torch job over all hosts found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from distconsole.checks.evidence import NO_GROUP, Outcome, View
from distconsole.checks.facts import CollFacts, RankReport
from distconsole.checks.majority import named
from distconsole.checks.rule import Rule, Said, Unjudged, fail, warn
from distconsole.model.requests import Level

JOINED = "joined the group"
DONE = "done"
EARLY = ("started", "not started")
"""A rank that got no further kept the others waiting; it is not they who did not come."""
MAX_LISTED = 8


def last_stage(rank: RankReport) -> str:
    """Return how far a rank came, by its own words."""
    stages = [str(said["stage"]) for said in rank.said if "stage" in said]
    return stages[-1] if stages else "not started"


def joined(rank: RankReport) -> bool:
    """Whether a rank met the others."""
    return any(said.get("stage") == JOINED for said in rank.said)


def _init(view: View) -> Iterator[Said]:
    facts = view.of(CollFacts)
    absent = [
        (name, rank) for name, found in facts.items() for rank in found.ranks if not joined(rank)
    ]
    if not absent:
        return
    first = _first_cause(absent)
    world = next(iter(facts.values())).world_size
    missed = _missed(absent)
    if len(missed) < world:
        summary = f"{_ranks(missed)} did not join the group of {world}"
    else:
        summary = f"none of the {world} ranks could join the group"
    yield fail(
        "coll.init",
        f"{summary}: {_reason(first[1])}",
        dict.fromkeys(name for name, _ in missed),
        seen="\n".join(
            f"rank {rank.rank} ({name}): {last_stage(rank)}, {_ended(rank)}"
            for name, rank in absent[:MAX_LISTED]
        ),
        expected=f"{world} ranks that meet within {next(iter(facts.values())).timeout_seconds:.0f} s",
        hint=_hint(first[1]),
    )


def _missed(absent: list[tuple[str, RankReport]]) -> list[tuple[str, RankReport]]:
    """Return the ranks that kept the others waiting.

    Those that ended by themselves before they could meet anybody; else those that never got there.
    Ranks that were killed because another one had failed are of neither kind.
    """
    early = [entry for entry in absent if last_stage(entry[1]) in EARLY]
    return [entry for entry in early if entry[1].exit_code is not None] or early or absent


def _first_cause(absent: list[tuple[str, RankReport]]) -> tuple[str, RankReport]:
    """Prefer the rank that ended by itself, earliest: the others only waited for it."""
    ended = [entry for entry in absent if entry[1].exit_code not in (None, 0)]
    before = [entry for entry in ended if last_stage(entry[1]) in EARLY]
    return min(before or ended or absent, key=lambda entry: entry[1].seconds)


def _reason(rank: RankReport) -> str:
    lines = [line for line in rank.error if line.strip() and not line.startswith("  ")]
    if lines:
        return lines[-1].strip()[:300]
    if rank.exit_code is None:
        return f"it was {last_stage(rank)} when the time was up"
    return _ended(rank)


def _ended(rank: RankReport) -> str:
    if rank.exit_code is None:
        return f"still there after {rank.seconds:.0f} s, then killed"
    if rank.exit_code < 0:
        return f"killed by signal {-rank.exit_code} after {rank.seconds:.1f} s"
    return f"exit code {rank.exit_code} after {rank.seconds:.1f} s"


def _hint(rank: RankReport) -> str:
    text = "\n".join(rank.error)
    if "No module named 'torch'" in text:
        return "--python PATH names the interpreter that has torch"
    if last_stage(rank) in EARLY:
        return (
            "importing torch failed or took too long: try `python -c 'import torch'` on the host"
        )
    if "onnect" in text or "imed out" in text or "timeout" in text.lower():
        return "look at the findings of net.* and os.hostname_bindable: ranks did not reach each other"
    return "the last lines of the rank are above; --level full tries every size"


def _ranks(entries: list[tuple[str, RankReport]]) -> str:
    by_host: dict[str, list[int]] = {}
    for name, rank in entries:
        by_host.setdefault(name, []).append(rank.rank)
    parts = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:8]))} ({name})"
        for name, ranks in by_host.items()
    ]
    return named(parts)


def _rank_size(view: View) -> Iterator[Said]:
    """What each rank finds itself to be, against the plan."""
    facts = view.of(CollFacts)
    groups = _groups(facts)
    if not groups:
        yield Unjudged(tuple(facts), NO_GROUP, Outcome.COULD_NOT_RUN)
        return
    ranks = [int(group["rank"]) for _, group in groups]
    if len(set(ranks)) < len(ranks):
        twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
        yield fail("coll.rank_size", f"ranks {twice} exist more than once", tuple(facts))
    for name, group in groups:
        world = facts[name].world_size
        planned = facts[name].planned
        if group["world_size"] != world or group["rank"] not in planned:
            yield fail(
                "coll.rank_size",
                f"a rank on {name} is {group['rank']} of {group['world_size']}, planned was one of "
                f"{list(planned)} of {world}",
                (name,),
            )


def _groups(facts: Mapping[str, CollFacts]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, said["group"])
        for name, found in facts.items()
        for rank in found.ranks
        for said in rank.said
        if isinstance(said.get("group"), dict)
        and isinstance(said["group"].get("rank"), int)
        and isinstance(said["group"].get("world_size"), int)
    ]


def _correct(view: View) -> Iterator[Said]:
    """Every value of every case bit for bit, and every case to its end."""
    facts = view.of(CollFacts)
    if not _groups(facts):
        yield Unjudged(tuple(facts), NO_GROUP, Outcome.COULD_NOT_RUN)
        return
    wrong: dict[tuple[str, str, int], dict[str, list[int]]] = {}
    stuck: list[tuple[str, RankReport]] = []
    for name, found in facts.items():
        for rank in found.ranks:
            if joined(rank) and last_stage(rank) != DONE:
                stuck.append((name, rank))
            for said in rank.said:
                if "case" in said and said.get("wrong"):
                    key = (str(said["case"]), str(said.get("dtype")), int(said.get("elements", 0)))
                    wrong.setdefault(key, {}).setdefault(name, []).append(rank.rank)
    for (op, dtype, elements), hosts in wrong.items():
        world = next(iter(facts.values())).world_size
        bad = [rank for ranks in hosts.values() for rank in ranks]
        yield fail(
            "coll.correct",
            f"{op} of {elements} {dtype} gave wrong values at {len(bad)} of {world} ranks",
            hosts,
            seen=", ".join(f"{name}: ranks {ranks}" for name, ranks in hosts.items()),
            expected="the exact sum, bit for bit",
            hint="take the host out and test its memory and GPU: dcgmi diag -r 3",
        )
    if stuck:
        yield from _stuck(stuck)


def _stuck(stuck: list[tuple[str, RankReport]]) -> Iterator[Said]:
    first = min(stuck, key=lambda entry: (entry[1].exit_code in (None, 0), entry[1].seconds))
    stage = last_stage(first[1])
    large = stage.startswith("case") and stage.rsplit(" ", 1)[-1].isdigit()
    elements = int(stage.rsplit(" ", 1)[-1]) if large else 0
    hint = "the last lines of the rank are above"
    if elements > 10_000:
        hint = (
            "small messages pass and large ones hang: an MTU larger than the path's; on the hosts: "
            "ip -br link; ping -M do -s 8972 PEER; a way around: sudo sysctl net.ipv4.tcp_mtu_probing=1"
        )
    yield fail(
        "coll.correct",
        f"the job came to a halt in {stage.removeprefix('case ')}: {_reason(first[1])}",
        list(dict.fromkeys(name for name, _ in stuck)),
        seen="\n".join(
            f"rank {rank.rank} ({name}): {last_stage(rank)}, {_ended(rank)}"
            for name, rank in stuck[:MAX_LISTED]
        ),
        expected="every collective comes to its end",
        hint=hint,
    )


def _ending(view: View) -> Iterator[Said]:
    facts = view.of(CollFacts)
    bad = [
        (name, rank)
        for name, found in facts.items()
        for rank in found.ranks
        if last_stage(rank) == DONE and rank.exit_code != 0
    ]
    if bad:
        yield warn(
            "coll.ending",
            f"{_ranks(bad)} did everything and then did not end well",
            list(dict.fromkeys(name for name, _ in bad)),
            seen="\n".join(f"rank {r.rank} ({n}): {_ended(r)}" for n, r in bad[:MAX_LISTED]),
        )
    elif not _groups(facts):
        yield Unjudged(tuple(facts), NO_GROUP, Outcome.COULD_NOT_RUN)


RULES: tuple[Rule, ...] = (
    Rule(
        "coll.init",
        "coll",
        Level.STANDARD,
        (CollFacts,),
        "Ranks that do not meet; names those that did not arrive, within seconds.",
        "See the findings of net.* and os.hostname_bindable.",
        _init,
    ),
    Rule(
        "coll.rank_size",
        "coll",
        Level.STANDARD,
        (CollFacts,),
        "Ranks that are not who they should be: world size 1 everywhere, a rank twice.",
        "Look at the variables RANK and WORLD_SIZE of the hosts.",
        _rank_size,
    ),
    Rule(
        "coll.correct",
        "coll",
        Level.STANDARD,
        (CollFacts,),
        "Wrong sums, and collectives that hang from some size on (MTU, locked memory).",
        "Take the host out; for a hang, look at the size at which it began.",
        _correct,
    ),
    Rule(
        "coll.ending",
        "coll",
        Level.STANDARD,
        (CollFacts,),
        "Ranks that crash when the group is taken down.",
        "Look at the rank's last lines.",
        _ending,
    ),
)
