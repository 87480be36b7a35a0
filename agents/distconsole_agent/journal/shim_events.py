"""The events of a run's shim, as journal entries, and the verdict on the run."""

from __future__ import annotations

import json
import os

from distconsole_agent.contract import records
from distconsole_agent.contract.limits import MAX_LINE_OF_SHIM, READ_BYTES
from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.coordination import blame
from distconsole_agent.journal.rank_states import Entry, RankStates
from distconsole_agent.supervisor.runlog import ShimEvent

FIELDS = {
    "note": ("check", "severity", "summary", "hint", "rank", "host", "seen"),
    "failure": ("rank", "t_ns", "exit_code", "signal", "error", "traceback"),
    "restart": ("restart", "of", "checkpoint", "pause", "first_failure"),
    "attempt": ("restart", "of", "checkpoint"),
    "verdict": ("state", "exit_code", "first_failure"),
}
"""Kind of entry -> the fields that it takes from the shim's event."""

_NEEDED = {
    "failed": ("rank", "exit_code", "error", "traceback"),
    "verdict": ("state", "exit_code"),
}
"""Event -> fields without which it is skipped."""


class ShimLines:
    def __init__(self, path: str) -> None:
        self.offset = 0
        self._path = path
        self._fd = -1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> list[tuple[int, ShimEvent]]:
        """Return the new events, each with the offset behind it, and advance; other lines are skipped."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                return []
        size = os.fstat(self._fd).st_size
        events: list[tuple[int, ShimEvent]] = []
        while self.offset < size:
            data = os.pread(self._fd, min(size - self.offset, READ_BYTES), self.offset)
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) < MAX_LINE_OF_SHIM:
                break
            for line in data[:end].splitlines(keepends=True):
                self.offset += len(line)
                event = _event(line)
                if event is not None:
                    events.append((self.offset, event))
            if end == 0:
                self.offset += len(data)
        return events


class ShimEventReducer:
    """One run on this node, from its shim's events; updates ``ranks``."""

    def __init__(self, spec: RunSpec, ranks: RankStates) -> None:
        self._spec = spec
        self._ranks = ranks
        self._verdict: Entry | None = None
        self._failures: list[blame.Failure] = []
        self._stops: list[blame.StopRequest] = []
        self._newest_ns = 0
        self._last_exit: float | None = None

    @property
    def judged(self) -> bool:
        return self._verdict is not None

    @property
    def may_be_outlived(self) -> bool:
        """True if the run may go on without this node, which cannot find out."""
        return self._spec.node_index != 0 and self._spec.may_lose_nodes

    def tell(self, event: ShimEvent) -> list[Entry]:
        """Note an event, and return its entries."""
        self._newest_ns = max(self._newest_ns, event.moment_ns)
        kind, t = event.event, round(event.t_ns / 1e9, 6)
        if kind == "started":
            return self._ranks.started(event)
        if kind == "exited":
            self._last_exit = max(t, self._last_exit or t)
            return self._ranks.exited(event)
        if kind == "failed":
            return self._failed(event, t)
        if kind == "ended":
            return [self._end(t)]
        if kind == "stopping":
            self._ranks.stopping = True
            self._stops.append(
                blame.StopRequest(self._spec.node_index, event.moment_ns, event.reason)
            )
        elif kind == "attempt":
            self._ranks.begin_again()
            self._failures.clear()
        if kind not in FIELDS:
            return []
        entry = _entry(kind, event, t)
        if kind == "verdict":
            self._verdict = entry
        elif kind == "note":
            entry = {name: value for name, value in entry.items() if value is not None}
        return [entry]

    def add(self, failure: blame.Failure) -> None:
        """Add a failure that no event reported, as the newest one."""
        self._failures.append(failure._replace(t_ns=self._newest_ns + 1))

    def judge_lost(self, now_ns: int, why: str) -> list[Entry]:
        """Judge a run whose coordinator is gone, with the events before that, as its other nodes would."""
        lost = blame.NodeLost(0, self._newest_ns + 1, why)
        stops = [stop for stop in self._stops if stop.reason in blame.STOP_EXIT_CODES]
        evidence = blame.Evidence(self._failures, stops, [lost], {})
        self._verdict = records.write(blame.determine_verdict(evidence, self._spec.nodes))
        return [{"t": round(now_ns / 1e9, 6), "kind": "verdict", **self._verdict}]

    def end_lost(self, t: float) -> Entry:
        """Return the last entry of a run whose shim is gone."""
        known = self._verdict or {"state": "lost", "exit_code": 1}
        return self._end_entry(t, known["state"], known["exit_code"])

    def _failed(self, event: ShimEvent, t: float) -> list[Entry]:
        assert event.rank is not None  # as ``_NEEDED``
        fields = {name: getattr(event, name) for name in blame.Failure._fields[1:]}
        fields.update(node=self._spec.node_index, t_ns=event.moment_ns)
        self._failures.append(blame.Failure(**fields))
        failed_entry = _entry("failure", event, t)
        failed_entry["rank"] = self._ranks.number_of(event.rank)
        return [*self._ranks.failed(event), failed_entry]

    def _end(self, t: float) -> Entry:
        """Return the last entry; without a verdict this node's evidence decides."""
        if self._verdict is not None:
            state, exit_code = self._verdict["state"], self._verdict["exit_code"]
        elif self._ranks.last_exit is None:
            state, exit_code = "stopped", 143
        elif self._ranks.stopping:
            state, exit_code = "stopped", self._ranks.last_exit[1] or 143
        else:
            exit_code = self._ranks.last_exit[1]
            state = "failed" if exit_code else "succeeded"
        return self._end_entry(t, state, exit_code)

    def _end_entry(self, t: float, state: str, exit_code: int) -> Entry:
        begun = self._ranks.first_started_ns / 1e9
        # Processes that ranks of a good run left behind may end seconds later: not training time.
        over = self._last_exit if state == "succeeded" and self._last_exit is not None else t
        seconds = round(max(0.0, over - begun), 6) if begun else 0.0
        return {"t": t, "kind": "end", "state": state, "exit_code": exit_code, "seconds": seconds}


def _entry(kind: str, event: ShimEvent, t: float) -> Entry:
    return {"t": t, "kind": kind, **{name: getattr(event, name) for name in FIELDS[kind]}}


def _event(line: bytes) -> ShimEvent | None:
    try:
        event = records.read(ShimEvent, json.loads(line))
    except (ValueError, RecursionError):
        return None
    lacks = any(getattr(event, name) is None for name in _NEEDED.get(event.event, ()))
    return None if lacks else event
