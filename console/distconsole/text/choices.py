"""The panel of choices as a table: which interface each engine takes, as ``run`` starts it and by hand."""

from __future__ import annotations

from collections.abc import Sequence

from distconsole.model.names import join_some
from distconsole.model.reports import NOT_FORETOLD, ChoiceReport
from distconsole.text.tables import table

MAX_NAMED = 2
MAX_KINDS = 4
MAX_REASONS, FEW_REASONS = 8, 2
RED = "✗"
"""Marks an interface at which another host does not reach the host."""

UNKNOWN = "?"
"""Marks an engine whose interface is unknown."""

REASON = (f"  {RED} ", f"  {UNKNOWN} ")
"""How lines below the panel begin that are prose."""

SHORT = {"Open MPI's daemons": "its daemons"}


def _panel_of(choices: Sequence[ChoiceReport], most: int) -> list[str]:
    """Return the lines of the panel: hosts that are alike beside each other, engines below each other.

    Hosts that do not meet come first. Of kinds of hosts beyond ``most`` only the number is told.
    """
    engines = list(dict.fromkeys(choice.engine for choice in choices))
    of: dict[tuple[str, str, str], list[ChoiceReport]] = {}
    for choice in choices:
        of.setdefault((choice.host, choice.engine, choice.start), []).append(choice)
    alike: dict[tuple[str, ...], list[str]] = {}
    for host in dict.fromkeys(choice.host for choice in choices):
        of_both = (
            dict.fromkeys(
                _interfaces(of.get((host, engine, start), [])) for start in ("run", "hand")
            )
            for engine in engines
        )
        cells = tuple(map(" · ".join, of_both))
        alike.setdefault(cells, []).append(host)
    kinds = sorted(alike.items(), key=lambda kind: not any(RED in cell for cell in kind[0]))
    shown = kinds[:most]
    rest = sum(len(hosts) for _, hosts in kinds[most:])
    others = (f"{rest} others",) if rest else ()
    named = (join_some(hosts, MAX_NAMED if len(hosts) <= MAX_NAMED else 1) for _, hosts in shown)
    heading = ("", *named, *others)
    lines = [
        (SHORT.get(engine, engine), *(cells[row] for cells, _ in shown), *("" for _ in others))
        for row, engine in enumerate(engines)
    ]
    return [f"  {line}" for line in table(heading, lines)]


def _interfaces(choices: Sequence[ChoiceReport]) -> str:
    """Return the interfaces of one engine: those of which it takes one by chance apart by a bar."""
    chance = list(dict.fromkeys(_mark(each) for each in choices if "by chance" in each.how))
    others = dict.fromkeys(_mark(each) for each in choices)
    parts = ["|".join(chance)] if chance else []
    return "+".join([*parts, *(each for each in others if each not in chance)]) or "-"


def _mark(choice: ChoiceReport) -> str:
    if _unknown(choice):
        return UNKNOWN
    return f"{RED if choice.meets is False else ''}{choice.interface or 'none'}"


def _unknown(choice: ChoiceReport) -> bool:
    return choice.how.startswith(NOT_FORETOLD)


def panel_lines(
    choices: Sequence[ChoiceReport], most: int = MAX_REASONS, width: int | None = None
) -> list[str]:
    """Return the panel and the reasons for red lines, in ``most`` lines; a wider one than ``width`` is cut."""
    kinds, panel = MAX_KINDS, _panel_of(choices, MAX_KINDS)
    while width is not None and kinds > 1 and max(map(len, panel)) > width:
        kinds -= 1
        panel = _panel_of(choices, kinds)
    lines = ["interfaces with `distconsole run` · by hand", *panel]
    found: dict[str, list[str]] = {}
    unknown: dict[str, str] = {}
    for choice in choices:
        if _unknown(choice) and choice.start == "hand":
            unknown.setdefault(choice.engine, f"{choice.engine}: {choice.how}")
        if choice.meets is False:
            where = f"{choice.interface} {choice.address}".strip() or "nothing"
            told = f"{choice.engine} on {choice.host}: {where} ({choice.how}): {choice.why}"
            found.setdefault(told, []).append(choice.start)
    reasons = [told if "run" in starts else f"by hand, {told}" for told, starts in found.items()]
    lines += [f"  {RED} {reason}" for reason in reasons[:most]]
    if len(reasons) > most:
        way = "--json has them all" if most >= MAX_REASONS else "--details"
        lines.append(f"  and {len(reasons) - most} more: {way}")
    return [*lines, *(f"  {UNKNOWN} {line}" for line in unknown.values())]
