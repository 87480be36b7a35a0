"""Which events of a run somebody should hear of, once each. A pure fold: it tells nobody."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

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
from distconsole.model.time_text import span_text
from distconsole.ssh.plain import plain_text

MAX_CHARS = 400
"""A text is cut to this."""
MAX_FINDINGS = 20
"""Of one run so many kinds of findings are told; a run in trouble must not flood anybody."""
OF_OTHERS = ("run.first_failure", "run.stall", "run.restart")
"""Findings of what is told anyway, or of what mends itself."""


class Notices:
    """Folds the events of one run.

    Args:
        kinds: What is told.
        since: What was before (UNIX seconds) is not: it was told when it happened.
    """

    def __init__(self, kinds: AbstractSet[NoticeKind], since: float = float("-inf")) -> None:
        self._kinds = kinds
        self._since = since
        self._name = ""
        self._stalled: set[int] = set()
        self._found: set[str] = set()

    def see(self, event: Event) -> Notice | None:
        """Return what is to be told of ``event``, or None."""
        if not isinstance(event, RunEvent):
            return None
        notice = self._notice(event)
        if notice is None or notice.kind not in self._kinds or event.t < self._since:
            return None
        return notice

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
        return self._made(
            NoticeKind.STALL, event, "stalled", f"rank {event.rank} on {event.host} makes no step",
            rank=event.rank, host=event.host,
        )  # fmt: skip

    def _finding(self, event: RunFinding) -> Notice | None:
        known = event.check in self._found or event.check in OF_OTHERS
        if known or len(self._found) >= MAX_FINDINGS:
            return None
        self._found.add(event.check)
        return self._made(
            NoticeKind.FINDING, event, "is in trouble", event.summary,
            rank=None if event.rank is UNSET else event.rank, host=",".join(event.hosts[:3]),
        )  # fmt: skip

    def _end(self, event: RunEnded) -> Notice:
        after = f"after {span_text(event.seconds)}"
        failed = event.state is EndState.FAILED
        kind = NoticeKind.FAILURE if failed else NoticeKind.FINISH
        first = event.first_failure
        if event.error is not UNSET:
            return self._made(
                kind, event, "was not started", event.error,
                state=event.state.value, exit_code=event.exit_code,
            )  # fmt: skip
        if first is UNSET:
            code = f", exit code {event.exit_code}" if failed else ""
            return self._made(
                kind, event, event.state.value, f"{after}{code}",
                state=event.state.value, exit_code=event.exit_code,
            )  # fmt: skip
        return self._made(
            kind, event, event.state.value,
            f"{after}, exit code {event.exit_code}: {first.short_blame}",
            state=event.state.value, exit_code=event.exit_code,
            rank=first.rank if first.of_rank else None, host=first.host,
        )  # fmt: skip

    def _made(
        self, kind: NoticeKind, event: RunEvent, what: str, text: str, *, state: str = "",
        exit_code: int | None = None, rank: int | None = None, host: str = "",
    ) -> Notice:  # fmt: skip
        name = plain_text(self._name)[:MAX_CHARS]
        return Notice(
            kind=kind,
            title=f"{name or plain_text(event.run)} {what}",
            text=plain_text(text)[:MAX_CHARS],
            t=event.t,
            run=plain_text(event.run),
            name=name,
            state=state,
            exit_code=exit_code,
            rank=rank,
            host=plain_text(host)[:MAX_CHARS],
        )
