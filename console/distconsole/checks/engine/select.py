"""Which checks of the catalogue were asked for, and which facts they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distconsole.checks.engine.rule import Rule
from distconsole.checks.facts.evidence import HostEvidence, Outcome
from distconsole.checks.facts.gpu import GpuFacts, GpuLoadFacts
from distconsole.checks.facts.jobs import (
    CollFacts,
    HorovodCollFacts,
    HorovodMpiFacts,
    MpiCollFacts,
    MpiSshFacts,
    MungeFacts,
    SlurmFacts,
    StepFacts,
)
from distconsole.checks.facts.network import (
    BandwidthFacts,
    BetweenFacts,
    NameFacts,
    NetFacts,
    ReachFacts,
)
from distconsole.checks.facts.node import (
    EnvFacts,
    Facts,
    HorovodFacts,
    ImportFacts,
    MpiFacts,
    OsFacts,
    SshFacts,
    TorchFacts,
)
from distconsole.checks.facts.script import SpeedFacts
from distconsole.checks.rules.system.expected import KEYS, expects
from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.model.expectation import Expectation
from distconsole.model.requests import Level

_ORDER = (Level.QUICK, Level.STANDARD, Level.FULL)


def at_level(rule: Rule, level: Level) -> bool:
    """Whether ``rule`` runs at ``level``."""
    return _ORDER.index(rule.level) <= _ORDER.index(level)


def select_rules(
    catalogue: Sequence[Rule], only: Iterable[str] = (), skip: Iterable[str] = ()
) -> tuple[Rule, ...]:
    """Return the rules that ``--only`` and ``--skip`` leave, whatever their level.

    A word is a group, an id, or the beginning of an id.

    Raises:
        UsageError: for a word that means no check.
    """
    only, skip = tuple(only), tuple(skip)
    for flag, words in (("--only", only), ("--skip", skip)):
        for word in words:
            if not any(_means(word, rule) for rule in catalogue):
                raise _unknown(flag, word, catalogue)
    return tuple(
        rule
        for rule in catalogue
        if (not only or any(_means(word, rule) for word in only))
        and not any(_means(word, rule) for word in skip)
    )


def drop_expectations(
    rules: Iterable[Rule], expected: Mapping[str, Expectation]
) -> tuple[Rule, ...]:
    """Return ``rules`` without those on expectations that nobody has of any host."""
    return tuple(
        rule
        for rule in rules
        if rule.id not in KEYS or any(expects(each, KEYS[rule.id]) for each in expected.values())
    )


LEANS_ON: dict[type[Facts], frozenset[type[Facts]]] = {
    ImportFacts: frozenset({OsFacts}),
    HorovodCollFacts: frozenset({ReachFacts, NetFacts, HorovodFacts, GpuFacts}),
    HorovodMpiFacts: frozenset({ReachFacts, NetFacts, HorovodFacts, MpiFacts, GpuFacts}),
    MpiCollFacts: frozenset({ReachFacts, NetFacts, MpiFacts, GpuFacts}),
    CollFacts: frozenset({ReachFacts, NetFacts, TorchFacts, GpuFacts}),
    BandwidthFacts: frozenset({ReachFacts, NetFacts}),
    SpeedFacts: frozenset({OsFacts}),
    GpuLoadFacts: frozenset({GpuFacts}),
    ReachFacts: frozenset({NetFacts}),
    EnvFacts: frozenset({NetFacts}),
    NameFacts: frozenset({OsFacts, NetFacts}),
    MpiSshFacts: frozenset({BetweenFacts, ReachFacts, NetFacts, MpiFacts}),
    MungeFacts: frozenset({SlurmFacts}),
    StepFacts: frozenset({SlurmFacts}),
}
"""By group those that are asked for with it."""


def needs_of(rules: Iterable[Rule]) -> frozenset[type[Facts]]:
    """Return the groups of facts that ``rules`` need, with those that they lean on."""
    needed = {kind for rule in rules for kind in rule.needs}
    for kind in LEANS_ON:
        if kind in needed:
            needed |= LEANS_ON[kind]
    return frozenset(needed | {SshFacts})


def tell_unknown(evidence: HostEvidence) -> None:
    """Let nothing of a host count as skipped ("no torch there") of which nobody knows whether it is there."""
    for kind, others in LEANS_ON.items():
        skipped = evidence.missing.get(kind)
        if skipped is None or skipped.outcome is not Outcome.SKIPPED:
            continue
        for other in others:
            missing = evidence.missing.get(other)
            if missing is not None and missing.outcome is not Outcome.SKIPPED:
                evidence.missing[kind] = missing


def _means(word: str, rule: Rule) -> bool:
    return word == rule.group or rule.id.startswith(word)


def _unknown(flag: str, word: str, catalogue: Sequence[Rule]) -> UsageError:
    names = sorted({rule.group for rule in catalogue} | {rule.id for rule in catalogue})
    near = nearest(word, names)
    known = ", ".join(sorted({rule.group for rule in catalogue}))
    return UsageError(
        f"{flag} {word}: no check begins with that",
        f"did you mean {near}?" if near else f"the groups are: {known}",
    )
