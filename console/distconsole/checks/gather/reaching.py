"""Reaches the hosts of a check, each as soon as it lets us in, and finds out which of them stop answering."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

from distconsole.checks.facts.evidence import HostEvidence, Outcome
from distconsole.checks.facts.node import Facts, LifeFacts, SshFacts
from distconsole.checks.gather.context import CheckContext
from distconsole.errors import AgentEndedError, NodeError
from distconsole.model import outcome as fan
from distconsole.model.names import HostName
from distconsole.model.requests import Level
from distconsole.rpc.link import NodeLink
from distconsole.session import Session

TICK_SECONDS = 0.1
REACH_SECONDS = {Level.QUICK: 5.0, Level.STANDARD: 600.0, Level.FULL: 600.0}
"""How long hosts are waited for after the last one let us in or answered; at most what the way to
them allows itself."""

BRING_SECONDS = 60.0
"""How long a host that let us in may take until its agent answers: many at once may be slow."""


def connect(context: CheckContext) -> Iterator[HostEvidence]:
    outcomes: queue.SimpleQueue[fan.Outcome[NodeLink] | BaseException | None] = queue.SimpleQueue()
    threading.Thread(
        target=_collect, args=(context.session, outcomes), name="check-connect", daemon=True
    ).start()
    waiting = dict(context.hosts)
    seconds = context.left(REACH_SECONDS[context.request.level])
    progress, since = (0, 0), context.clock()
    while waiting:
        try:
            found = outcomes.get(timeout=TICK_SECONDS)
        except queue.Empty:
            # While others still come in, this machine may be the slow one.
            entered, now = context.session.entered, context.clock()
            if progress != (len(waiting), len(entered)):
                progress, since = (len(waiting), len(entered)), now
            patience = max(seconds, BRING_SECONDS) if entered & waiting.keys() else seconds
            if context.left(1.0) <= 0 or now - since >= patience:
                break
            continue
        if isinstance(found, BaseException):
            raise found
        if found is None:
            break
        evidence = waiting.pop(found.host)
        _add_reach(context, evidence, found)
        yield evidence
    waited = context.clock() - context.began
    more = "a larger --budget" if context.left(1.0) <= 0 else "--level standard"
    for name, evidence in waiting.items():
        evidence.add_facts(
            SshFacts(
                error_kind="connect",
                error=f"no connection to {name} in {waited:.1f} s, and there is no more time",
                hint=f"ssh -v {name} true; {more} gives more time",
            )
        )
        yield evidence


def _collect(
    session: Session, outcomes: queue.SimpleQueue[fan.Outcome[NodeLink] | BaseException | None]
) -> None:
    try:
        for outcome in session.connect_all():
            outcomes.put(outcome)
    except BaseException as error:  # noqa: BLE001 - raised where it is taken, else nobody would end the waiting
        outcomes.put(error)
    outcomes.put(None)


def _add_reach(
    context: CheckContext, evidence: HostEvidence, outcome: fan.Outcome[NodeLink]
) -> None:
    if isinstance(outcome, fan.Failed):
        error = outcome.error
        evidence.add_facts(SshFacts(error_kind=error.kind, error=error.message, hint=error.hint))
        return
    link = outcome.value
    context.links[evidence.name] = link
    hello = link.hello
    evidence.add_facts(
        SshFacts(hostname=hello.hostname, boot_id=hello.boot_id or "", reached_at=link.address),
        {
            "user": hello.user,
            "hostname": hello.hostname,
            "boot_id": hello.boot_id,
            "agent": hello.version,
            "agent_python": hello.python_version,
            "addresses": [entry.address for entry in hello.addresses[:64]],
        },
    )


ANSWER_SECONDS = 4.0
"""Seconds that an agent may take for a ping; on a busy machine it takes a tenth of one."""


def is_lost(context: CheckContext, name: str) -> bool:
    host = HostName(name)
    if host in context.links and host not in context.lost:
        try:
            context.links[host].request("ping", ANSWER_SECONDS)
        except NodeError as error:
            context.lost[host] = error
    return host in context.lost


def find_dead_links(context: CheckContext, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` whose connection has ended, without asking anybody."""
    wanted = set(names)
    return [
        name
        for name, link in context.links.items()
        if name in wanted and (name in context.lost or not link.connected)
    ]


def leave_out(context: CheckContext, kind: type[Facts], hosts: Iterable[str], why: str) -> None:
    """Drop the results of a job of ``hosts``, for a reason in another finding."""
    wanted = set(hosts)
    for name, evidence in context.hosts.items():
        if name in wanted:
            evidence.known.pop(kind, None)
            evidence.missing.pop(kind, None)
            evidence.mark_missing(kind, Outcome.COULD_NOT_RUN, why)


def note_life(context: CheckContext) -> None:
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
