"""Ways between hosts that jobs need: told of although nobody asked, and looked at again when a job fails."""

from __future__ import annotations

from collections.abc import Iterable

from distconsole.checks.engine.judge import Verdicts, judge
from distconsole.checks.engine.losses import leave_out
from distconsole.checks.engine.rule import Rule
from distconsole.checks.facts.evidence import BROKEN
from distconsole.checks.facts.jobs import CollFacts
from distconsole.checks.facts.network import ReachFacts, matrix_of
from distconsole.checks.facts.node import Facts
from distconsole.checks.gather.nodes import Gathering
from distconsole.checks.rules.software.ranks import DONE, last_stage
from distconsole.model.findings import Finding

WAYS = frozenset({"net.reach_tcp", "net.asymmetric", "net.port_ephemeral", "net.mtu"})
"""Checks of what makes jobs leave hosts out."""


def any_broken(gathering: Gathering) -> bool:
    """Whether some connections between the hosts do not work."""
    matrix = matrix_of(gathering.view((ReachFacts,)).of(ReachFacts))
    return bool(matrix.dead or matrix.partial or matrix.small_only)


def judge_ways(gathering: Gathering, rules: Iterable[Rule], verdicts: Verdicts) -> list[Finding]:
    """Judge the ways by ``rules``; only those that find something are added to ``verdicts``."""
    findings: list[Finding] = []
    for rule in rules:
        found = Verdicts()
        findings += judge(rule, gathering.hosts.values(), gathering.view(), found)
        if not found.findings:
            continue
        verdicts.findings += found.findings
        for name, cells in found.cells.items():
            verdicts.cells.setdefault(name, {}).update(cells)
    return findings


def stuck_jobs(gathering: Gathering, kinds: Iterable[type[Facts]]) -> list[type[Facts]]:
    """Return the jobs, by their facts, that did not come to their end though every way and host was well.

    A way may have broken since it was tried.
    """
    if gathering.lost or any_broken(gathering):
        return []
    return [kind for kind in kinds if issubclass(kind, CollFacts) and _is_stuck(gathering, kind)]


def _is_stuck(gathering: Gathering, kind: type[CollFacts]) -> bool:
    jobs = gathering.view().of(kind).values()
    return any(last_stage(rank) != DONE for job in jobs for rank in job.ranks)


def excuse(gathering: Gathering, kinds: Iterable[type[Facts]]) -> None:
    """Forget what jobs told while a way broke: the way is at fault, and nobody else."""
    for kind in kinds:
        leave_out(gathering, kind, gathering.hosts, f"a way broke while it went on {BROKEN}")
