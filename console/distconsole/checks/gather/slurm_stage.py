"""Asks the hosts' Slurm for credentials, which it shows to the other hosts only, and for limits in a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from distconsole.checks.facts.evidence import Outcome
from distconsole.checks.facts.jobs import MungeFacts, SlurmFacts, StepFacts
from distconsole.checks.facts.node import Facts
from distconsole.checks.gather.context import CheckContext, add_answer
from distconsole.config.ranges import RangeError, expand, split_list
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host

SECONDS = 8.0
ALL_PAIRS = 16
"""With more hosts each decodes the credential of the next one only."""

NO_FACTS = "it has no Slurm facts"
NO_JOB = "no Slurm allocation at hand (salloc, then distconsole check inside it)"


def exchange(context: CheckContext) -> Iterator[str]:
    """Have every Slurm host decode what the others encode; yields each as it has."""
    hosts = _on_slurm(context, MungeFacts)
    if len(hosts) < 2:
        for host in hosts:
            context.hosts[host.name].add_facts(MungeFacts())
        return
    seconds = context.left(SECONDS)
    credentials = {
        str(outcome.host): str(outcome.value["credential"])
        for outcome in context.ask_all(hosts, "slurm.encode", seconds, lambda _: {})
        if not isinstance(outcome, fan.Failed) and outcome.value.get("credential")
    }

    def others(host: Host) -> dict[str, Any]:
        sources = _sources(host.name, [each.name for each in hosts])
        known = [name for name in sources if name in credentials]
        return {"credentials": [{"source": n, "credential": credentials[n]} for n in known]}

    yield from context.ask_facts(hosts, MungeFacts, "slurm.decode", seconds, others)
    context.mark_missing((MungeFacts,), Outcome.COULD_NOT_RUN, NO_FACTS)


def step_limits(context: CheckContext, environ: Mapping[str, str]) -> Iterator[str]:
    """Ask for the limits inside a step on every host of the allocation that we stand in."""
    job = environ.get("SLURM_JOB_ID", "")
    nodes = _nodes(environ.get("SLURM_JOB_NODELIST", ""))
    names: dict[str, str] = {}
    for host in _on_slurm(context, StepFacts):
        slurm = context.hosts[host.name].known[SlurmFacts]
        assert isinstance(slurm, SlurmFacts)
        name = (slurm.node or {}).get("NodeName", "")
        if name in nodes and job.isdigit():
            names[host.name] = name
        else:
            why = "it is no node of the allocation" if nodes else NO_JOB
            context.hosts[host.name].mark_missing(StepFacts, Outcome.SKIPPED, why)
    seconds = context.left(SECONDS)
    hosts = [host for host in context.reached() if host.name in names]
    yield from context.ask_facts(
        hosts,
        StepFacts,
        "slurm.limits",
        seconds,
        lambda host: {"job": job, "node": names[host.name]},
        lambda evidence, answer: add_answer(evidence, StepFacts, {"job": job, **answer}),
    )
    context.mark_missing((StepFacts,), Outcome.COULD_NOT_RUN, NO_FACTS)


def _nodes(nodelist: str) -> set[str]:
    try:
        return {name for part in split_list(nodelist) for name in expand(part)}
    except RangeError:
        return set()


def _on_slurm(context: CheckContext, kind: type[Facts]) -> list[Host]:
    """Return the hosts that have Slurm, and note of the others that they lack ``kind``."""
    found = []
    for host in context.reached():
        evidence = context.hosts[host.name]
        slurm = evidence.known.get(SlurmFacts)
        if isinstance(slurm, SlurmFacts) and slurm.present:
            found.append(host)
        elif isinstance(slurm, SlurmFacts):
            evidence.mark_missing(kind, Outcome.SKIPPED, slurm.why)
    return found


def _sources(name: str, names: list[str]) -> list[str]:
    """Return whose credentials a host decodes."""
    if len(names) <= ALL_PAIRS:
        return [other for other in names if other != name]
    return [names[(names.index(name) + 1) % len(names)]]
