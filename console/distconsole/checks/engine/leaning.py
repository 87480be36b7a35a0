"""Facts that are gathered for the sake of others, and what becomes of these where they are missing."""

from __future__ import annotations

from collections.abc import Iterable

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
"""Facts that are gathered for the sake of others."""


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
