"""Events of a run that are worth a notification, once each."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from msgspec import UNSET

from distconsole.model.events import Event
from distconsole.model.findings import Severity
from distconsole.model.notices import Notice, NoticeKind
from distconsole.model.run_events import (
    EndState,
    PlanMade,
    RankChanged,
    RankState,
    RunEnded,
    RunEvent,
    RunFinding,
)
from distconsole.model.time_text import duration_text
from distconsole.ssh.plain import plain_text

MAX_CHARS = 400
MAX_FINDINGS = 20
"""Most kinds of findings that one run reports: a run in trouble must not flood its reader."""
OF_OTHERS = ("run.first_failure", "run.stall", "run.restart")
"""Findings that another event reports, or that pass by themselves."""


class Notices:
    """Folds the events of one run; events before ``since`` (UNIX seconds) were reported when they happened."""

    def __init__(self, kinds: AbstractSet[NoticeKind], since: float = float("-inf")) -> None:
        self._kinds = kinds
        self._since = since
        self._name = ""
        self._stalled: set[int] = set()
        self._found: set[str] = set()

    def see(self, event: Event) -> Notice | None:
        notice = self._notice(event) if isinstance(event, RunEvent) else None
        wanted = notice and notice.kind in self._kinds and notice.t >= self._since
        return notice if wanted else None

    def _notice(self, event: RunEvent) -> Notice | None:
        match event:
            case PlanMade():
                self._name = event.name
                return None
            case RankChanged():
                return self._rank(event)
            case RunFinding(severity=Severity.FAIL):
                return self._finding(event)
            case RunEnded():
                return self._end(event)
            case _:
                return None

    def _rank(self, event: RankChanged) -> Notice | None:
        if event.state is not RankState.STALLED:
            self._stalled.discard(event.rank)
            return None
        first = not self._stalled
        self._stalled.add(event.rank)
        if not first:
            return None
        text = f"rank {event.rank} on {event.host} makes no step"
        return self._notice_of(NoticeKind.STALL, event, "stalled", text, event.rank, event.host)

    def _finding(self, event: RunFinding) -> Notice | None:
        known = event.check in self._found or event.check in OF_OTHERS
        if known or len(self._found) >= MAX_FINDINGS:
            return None
        self._found.add(event.check)
        rank = None if event.rank is UNSET else event.rank
        host = ",".join(event.hosts[:3])
        return self._notice_of(
            NoticeKind.FINDING, event, "is in trouble", event.summary, rank, host
        )

    def _end(self, event: RunEnded) -> Notice:
        failed, first = event.state is EndState.FAILED, event.first_failure
        what, rank, host = event.state.value, None, ""
        text = f"after {duration_text(event.seconds)}"
        if event.error is not UNSET:
            what, text = "was not started", event.error
        elif first is not UNSET:
            text += f", exit code {event.exit_code}: {first.short_blame}"
            rank, host = first.rank if first.of_rank else None, first.host
        elif failed:
            text += f", exit code {event.exit_code}"
        made = self._notice_of(
            NoticeKind.FAILURE if failed else NoticeKind.FINISH, event, what, text, rank, host
        )
        return replace(made, state=event.state.value, exit_code=event.exit_code)

    def _notice_of(
        self, kind: NoticeKind, event: RunEvent, what: str, text: str, rank: int | None, host: str
    ) -> Notice:
        name = plain_text(self._name)[:MAX_CHARS]
        return Notice(
            kind=kind,
            title=f"{name or plain_text(event.run)} {what}",
            text=plain_text(text)[:MAX_CHARS],
            t=event.t,
            run=plain_text(event.run),
            name=name,
            rank=rank,
            host=plain_text(host)[:MAX_CHARS],
        )
