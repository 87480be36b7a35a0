"""Asks every host, at once, what it has of the engines that a job needs. It judges nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from distconsole.launch.addresses import NodeFacts
from distconsole.launch.choose import Choice, engines_needed, settle_controller
from distconsole.launch.engines import Engines, engines_of
from distconsole.launch.everywhere import on_every, required
from distconsole.launch.script import ScriptTraits
from distconsole.model.names import HostName
from distconsole.rpc.link import NodeLink
from distconsole.session import Session

PROBE_SECONDS = 30.0
"""A Python on a cold network disk takes its time."""

ANSWER_SECONDS = 2.0
NO_OTHERS: Mapping[HostName, str] = MappingProxyType({})


def with_engines(
    session: Session,
    facts: Mapping[HostName, NodeFacts],
    choice: Choice,
    traits: ScriptTraits,
    env: Mapping[str, str],
    *,
    seconds: float = PROBE_SECONDS,
    pythons: Mapping[HostName, str] = NO_OTHERS,
) -> dict[HostName, NodeFacts]:
    """Return ``facts`` with what every host has of the engines that ``choice`` needs.

    Args:
        session: On the hosts.
        facts: By host, what is known.
        choice: How the script is started.
        traits: What the script says about itself.
        env: The user's variables.
        seconds: How long a host may take.
        pythons: By host an interpreter to ask in place of the session's.

    Raises:
        UnreachableError: naming the hosts that do not say it, and why.
    """
    known = dict(facts)
    while True:
        engines = {host: each.engines for host, each in known.items()}
        settled = settle_controller(choice, env, engines)
        known_of = next(iter(engines.values())).asked if engines else ()
        needed = tuple(dict.fromkeys((*known_of, *engines_needed(settled, traits, env))))
        if all(set(needed) <= set(each.asked) for each in engines.values()):
            return known
        known = asked(session, known, needed, seconds, pythons)


def asked(
    session: Session,
    facts: Mapping[HostName, NodeFacts],
    engines: Sequence[str],
    seconds: float = PROBE_SECONDS,
    pythons: Mapping[HostName, str] = NO_OTHERS,
) -> dict[HostName, NodeFacts]:
    """Return ``facts`` with what every host has of these ``engines``, needed or not.

    Raises:
        UnreachableError: as ``with_engines``.
    """

    def ask(link: NodeLink) -> Engines:
        host = link.host
        answer = link.request(
            "probe",
            seconds + ANSWER_SECONDS,
            group="engines",
            args={
                "engines": list(engines),
                "python": pythons.get(host.name) or link.python,
                "setup": host.setup,
                "timeout": seconds,
            },
        )
        return engines_of(answer.get("facts") or {}, engines)

    found = required(on_every(session, list(facts), ask), "the engines cannot be looked at")
    return {
        host: replace(each, engines=engines_there)
        for (host, each), engines_there in zip(facts.items(), found, strict=True)
    }
