"""Puts findings that are alike on several hosts into one: a cluster has one fault, whatever number of hosts shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from distconsole.checks.rules.wording import list_some, name_hosts
from distconsole.model.findings import Cure, Finding

HERE = "\0"
"""In a finding's words it stands for the hosts, which are known only at the end."""


def merge_alike(findings: Iterable[Finding]) -> list[Finding]:
    """Return ``findings``, those in one that have the same severity and summary.

    What was seen, and what to do, is told for each host where it differs.
    """
    alike: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        alike.setdefault((found.severity.value, found.summary), []).append(found)
    return [_in_one(each) for each in alike.values()]


def _in_one(findings: Sequence[Finding]) -> Finding:
    hosts = list(dict.fromkeys(name for found in findings for name in found.hosts))
    names, first = name_hosts(hosts), findings[0]
    return msgspec.structs.replace(
        first,
        hosts=tuple(hosts),
        summary=first.summary.replace(HERE, names),
        seen=_each([(found.hosts, found.seen) for found in findings]),
        expected=first.expected.replace(HERE, names),
        hint=_once([found.hint for found in findings]).replace(HERE, names),
        cure=_merge_cures([found.cure for found in findings if found.cure is not None]),
    )


def _merge_cures(cures: Sequence[Cure]) -> Cure | None:
    """Return what to change on each host; the rest is the same for all."""
    if not cures:
        return None
    hosts = {name: change for cure in cures for name, change in cure.hosts.items()}
    return msgspec.structs.replace(cures[0], hosts=hosts)


def _each(texts: Sequence[tuple[Sequence[str], str]]) -> str:
    """Return what hosts have in common once, and else each host's with its name."""
    if len({text for _, text in texts}) == 1:
        return texts[0][1]
    return list_some([f"{name_hosts(hosts)}: {text}" for hosts, text in texts if text])


def _once(texts: Sequence[str]) -> str:
    return list_some(list(dict.fromkeys(filter(None, texts))))
