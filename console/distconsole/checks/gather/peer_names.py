"""Asks every host what the others' names mean on it: a second question, once the names are known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from distconsole.checks.facts.evidence import ALONE, Outcome
from distconsole.checks.facts.host import NameFacts
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.gather.nodes import Gathering, learn_outcome

RESOLVE_SECONDS = 6.0
"""A resolver asks its first dead server for 5 s (resolv.conf(5))."""


def ask_names(gathering: Gathering) -> Iterator[str]:
    """Have every reached host resolve all names; yields each host when it has answered."""
    known = gathering.view((OsFacts,)).of(OsFacts)
    names = sorted({name for f in known.values() for name in (f.hostname, f.fqdn) if name})
    hosts = gathering.reached()
    seconds = gathering.left(RESOLVE_SECONDS)
    if len(gathering.hosts) < 2:
        gathering.lack((NameFacts,), Outcome.SKIPPED, "one host")
    elif len(hosts) < 2:
        gathering.lack((NameFacts,), Outcome.COULD_NOT_RUN, ALONE)
    elif seconds > 0.1:
        work = partial(gathering.ask, group="names", seconds=seconds, args={"names": names})
        for outcome in gathering.on_each(hosts, work, seconds):
            evidence = gathering.hosts[outcome.host]
            learn_outcome(evidence, NameFacts, outcome)
            yield outcome.host
    gathering.lack((NameFacts,), Outcome.TIMED_OUT, "the budget was over")
