"""Hosts that stop answering while they are looked at: who they are, and what is not held against others.

It asks a host only after something else went unanswered.
"""

from __future__ import annotations

from collections.abc import Iterable

from distconsole.checks.facts.evidence import LOST, Outcome
from distconsole.checks.facts.node import Facts, LifeFacts
from distconsole.checks.gather.context import CheckContext
from distconsole.errors import AgentEndedError, NodeError

ANSWER_SECONDS = 4.0
"""What an agent may take for a ping; on a busy machine it takes a tenth of a second."""


def is_lost(context: CheckContext, name: str) -> bool:
    """Tell whether a host that left something unanswered answers nothing any more."""
    known = next((each for each in context.links if each == name), None)
    if known is None or known in context.lost:
        return known is not None
    try:
        context.links[known].request("ping", ANSWER_SECONDS)
    except NodeError as error:
        context.lost[known] = error
        return True
    return False


def find_dead_links(context: CheckContext, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` whose connection has ended, without asking anybody."""
    wanted = set(names)
    return [
        name
        for name, link in context.links.items()
        if name in wanted and (name in context.lost or not link.connected)
    ]


def leave_out_for(
    context: CheckContext, kind: type[Facts], hosts: Iterable[str], lost: Iterable[str]
) -> None:
    """Forget what a job told: that of its hosts some died is no fault of the others."""
    why = f"{', '.join(lost)} stopped answering while it went on {LOST}"
    leave_out(context, kind, hosts, why)


def leave_out(context: CheckContext, kind: type[Facts], hosts: Iterable[str], why: str) -> None:
    """Forget what a job told of ``hosts``, for a reason that another finding says."""
    wanted = set(hosts)
    for name, evidence in context.hosts.items():
        if name in wanted:
            evidence.known.pop(kind, None)
            evidence.missing.pop(kind, None)
            evidence.mark_missing(kind, Outcome.COULD_NOT_RUN, why)


def note_life(context: CheckContext) -> None:
    """Note at the end of every host that was reached whether it still answers."""
    broken = find_dead_links(context, context.links)
    for name in broken:
        is_lost(context, name)
    for name, link in context.links.items():
        error = context.lost.get(name)
        context.hosts[name].add_facts(
            LifeFacts(
                lost="" if error is None else error.message,
                agent_folder=link.hello.node_dir if isinstance(error, AgentEndedError) else "",
            )
        )
    context.mark_missing((LifeFacts,), Outcome.COULD_NOT_RUN, "it was not reached")
