"""Reaches the hosts of a check, each as soon as it lets us in."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from distconsole.checks.facts.evidence import HostEvidence
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.gather.context import CheckContext
from distconsole.errors import ConsoleError
from distconsole.model import outcome as fan
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
    """Reach every host and yield each as soon as it is known whether it can be reached."""
    outcomes: queue.SimpleQueue[fan.Outcome[NodeLink] | BaseException | None] = queue.SimpleQueue()
    threading.Thread(
        target=_collect, args=(context.session, outcomes), name="check-connect", daemon=True
    ).start()
    waiting = dict(context.hosts)
    patience = _Patience(context, context.left(REACH_SECONDS[context.request.level]))
    while waiting:
        try:
            found = outcomes.get(timeout=TICK_SECONDS)
        except queue.Empty:
            if patience.is_over(waiting):
                break
            continue
        if isinstance(found, BaseException):
            raise found
        if found is None:
            break
        evidence = waiting.pop(found.host)
        _add_reach(context, evidence, found)
        yield evidence
    for evidence in waiting.values():
        evidence.add_facts(
            SshFacts(
                error_kind="connect",
                error=f"no connection to {evidence.name} in {patience.waited:.1f} s, and there is "
                "no more time",
                hint=f"ssh -v {evidence.name} true; --level standard and --budget give more time",
            )
        )
        yield evidence


@dataclass(slots=True)
class _Patience:
    """When to wait no longer for hosts: while others still come in, this machine may be the slow one."""

    context: CheckContext
    seconds: float
    _progress: tuple[int, int] = (0, 0)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.context.clock()

    @property
    def waited(self) -> float:
        """Seconds since the beginning."""
        return self.context.clock() - self.context.began

    def is_over(self, waiting: Collection[str]) -> bool:
        """Tell whether none of ``waiting`` is worth more time."""
        entered = self.context.session.entered
        progress = (len(waiting), len(entered))
        if progress != self._progress:
            self._progress, self._since = progress, self.context.clock()
        if self.context.left(1.0) <= 0:
            return True
        coming = entered.intersection(waiting)
        seconds = max(self.seconds, BRING_SECONDS) if coming else self.seconds
        return self.context.clock() - self._since >= seconds


def _collect(
    session: Session, outcomes: queue.SimpleQueue[fan.Outcome[NodeLink] | BaseException | None]
) -> None:
    try:
        for outcome in session.connecting():
            outcomes.put(outcome)
    except ConsoleError as error:
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
        SshFacts(
            user=hello.user,
            hostname=hello.hostname,
            boot_id=hello.boot_id or "",
            agent_python=hello.python,
            reached_at=link.address,
        ),
        {
            "user": hello.user,
            "hostname": hello.hostname,
            "boot_id": hello.boot_id,
            "agent": hello.version,
            "agent_python": hello.python_version,
            "addresses": [entry.address for entry in hello.addresses[:64]],
        },
    )
