"""Reads the cases of the checks: healthy hosts, and for each case what is different on them.

``tests/unit/checks/cases/README.md`` describes the format.
"""

import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from distconsole.checks.engine.catalogue import find_rule

CASES = Path(__file__).parents[1] / "unit" / "checks" / "cases"
IDENTITY = (
    "target",
    "source",
    "port",
    "iface",
    "device",
    "rank",
    "index",
    "link",
    "stage",
    "case",
)
"""The fields that a difference picks an item of a list by."""

PARTS = {
    *("rule", "case", "hosts", "kind", "facts", "launch", "expected", "node_dirs"),
    *("finds", "cells"),
}


def cases_of_facts(name: str) -> list[dict[str, Any]]:
    """Return the cases of a parser of the agent's: an output, and the facts in it."""
    path = Path(__file__).parents[1] / "cases" / "facts" / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


@dataclass(frozen=True)
class Claim:
    """A finding as a case expects it; ``says`` and ``hint`` are parts of its text; ``hint`` None: it has none."""

    severity: str
    hosts: list[str]
    says: list[str]
    hint: str | None


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]
    """YAML in which a key is given once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping with its keys as text."""
        keys = [key.value for key, _ in node.value]
        if len(set(keys)) < len(keys):
            raise ValueError(f"a key is given twice{node.start_mark}")
        return {str(key): value for key, value in super().construct_mapping(node, deep).items()}


def load(path: Path) -> Any:
    """Return what a YAML file holds."""
    return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a safe one


def load_cases(folder: Path = CASES) -> list[dict[str, Any]]:
    """Return all cases as they are written, in the order of the files; ``expand`` has their facts."""
    cases = [
        case
        for path in sorted(folder.glob("*.yaml"))
        if path.name != "healthy.yaml"
        for case in load(path)
    ]
    for case in cases:
        unknown = case.keys() - PARTS
        assert not unknown, f"{case['case']}: a case has no {', '.join(unknown)}"
    return cases


def findings_of(case: dict[str, Any]) -> list[Claim]:
    """Return the findings that a case expects."""
    claims = []
    for found in case.get("finds", []):
        says = found.get("says", [])
        severity = next(each for each in found if each not in ("says", "hint"))
        hosts = list(hosts_of(found[severity]))
        texts = [says] if isinstance(says, str) else says
        claims.append(Claim(severity, hosts, texts, found.get("hint", "")))
    return claims


def healthy_hosts(kind: str, names: Sequence[str], healthy: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of healthy hosts of one kind by host and group."""
    return {name: fill(_kind(kind, healthy), name, names) for name in names}


def _kind(kind: str, healthy: dict[str, Any]) -> dict[str, Any]:
    own = dict(healthy[kind])
    like = own.pop("like", None)
    return merge(_kind(like, healthy), own) if like else own


def expand(case: dict[str, Any], healthy: dict[str, Any]) -> dict[str, Any]:
    """Return a case whose hosts have all facts that its rule reads."""
    names = list(hosts_of(case["hosts"]))
    rule = find_rule(case["rule"])
    assert rule is not None, case["rule"]
    groups = {kind.group for kind in (*rule.needs, *rule.after)}
    full = _kind(case.get("kind", "cpu"), healthy)
    changes: dict[str, list[Any]] = {name: [] for name in names}
    for some, change in case.get("facts", {}).items():
        for name in hosts_of(some):
            changes[name].append(nest(change))
    hosts = {}
    for name in names:
        named = groups | {group for change in changes[name] for group in change}
        facts = fill({group: full[group] for group in full if group in named}, name, names)
        for change in changes[name]:
            facts = merge(facts, change)
        hosts[name] = facts
    expanded = {**case, "hosts": hosts}
    if "launch" in case:
        expanded["launch"] = merge(fill(healthy["launch"], "", names), nest(case["launch"]))
    return expanded


def hosts_of(text: str) -> Iterator[str]:
    """Yield the hosts of ``a b`` or ``n0..n63``."""
    for word in text.split():
        span = re.fullmatch(r"(\D+)(\d+)\.\.\1(\d+)", word)
        if span:
            yield from (f"{span[1]}{i}" for i in range(int(span[2]), int(span[3]) + 1))
        else:
            yield word


def nest(change: dict[str, Any]) -> dict[str, Any]:
    """Return a difference with its dotted names as mappings in mappings."""
    nested: dict[str, Any] = {}
    for dotted, value in change.items():
        *way, last = dotted.split(".")
        place = nested
        for name in way:
            place = place.setdefault(name, {})
        place[last] = value
    return nested


def merge(facts: Any, change: Any) -> Any:
    """Return facts with a difference: a JSON merge patch (RFC 7396) that also looks into lists.

    Items of a list are picked by what identifies them: ``b`` or ``b/29500``, ``a b`` for both, and
    ``+`` adds some. A null removes what is there, and is a value where nothing is.
    """
    if not isinstance(change, dict):
        return deepcopy(change)
    if isinstance(facts, list):
        items = list(facts)
        for words, part in change.items():
            if words == "+":
                items += deepcopy(part)
                continue
            found = _pick([words], items) or _pick(words.split(), items)
            assert found, f"no item is {words}: {facts}"
            for i in reversed(found):
                items[i : i + 1] = [] if part is None else [merge(items[i], part)]
        return items
    merged_facts = dict(facts) if isinstance(facts, dict) else {}
    for name, part in change.items():
        if part is None and name in merged_facts:
            del merged_facts[name]
        else:
            merged_facts[name] = merge(merged_facts.get(name), part)
    return merged_facts


def _pick(words: Sequence[str], items: Sequence[dict[str, Any]]) -> list[int]:
    found = []
    for i, item in enumerate(items):
        names = {str(item[field]) for field in IDENTITY if field in item}
        names |= {field for field, value in item.items() if isinstance(value, dict)}
        if any(names.issuperset(word.split("/")) for word in words):
            found.append(i)
    return found


def fill(template: Any, host: str, names: Sequence[str]) -> Any:
    """Return a template with its words for one host: ``{host}``, ``{n}``, ``{peer}``, ``{m}``."""
    position = names.index(host) if host in names else 0
    words = {"host": host, "i": position, "n": position + 1, "hosts": len(names)}
    return _fill(template, words, [name for name in names if name != host], names)


def _fill(template: Any, words: dict[str, Any], peers: Sequence[str], names: Sequence[str]) -> Any:
    if isinstance(template, dict):
        for each, others in (("for each peer", peers), ("for each host", names)):
            if each in template:
                filled = [
                    _fill(template[each], words | _peer(other, names), peers, names)
                    for other in others
                ]
                if isinstance(template[each], dict):
                    return {key: value for part in filled for key, value in part.items()}
                return [item for part in filled for item in part]
        return {
            _word(key, words): _fill(value, words, peers, names) for key, value in template.items()
        }
    if isinstance(template, list):
        return [_fill(item, words, peers, names) for item in template]
    return _word(template, words) if isinstance(template, str) else template


def _peer(other: str, names: Sequence[str]) -> dict[str, Any]:
    return {"peer": other, "j": names.index(other), "m": names.index(other) + 1}


def _word(text: str, words: dict[str, Any]) -> Any:
    whole = re.fullmatch(r"\{(\w+)\}", text)
    if whole and whole[1] in words:
        return words[whole[1]]
    return re.sub(r"\{(\w+)\}", lambda found: str(words.get(found[1], found[0])), text)
