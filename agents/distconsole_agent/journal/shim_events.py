"""The events of a run's shim, as journal entries, and the verdict on the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from distconsole_agent.contract.limits import MAX_LINE_OF_SHIM, READ_BYTES
from distconsole_agent.contract.runspec import MAX_NODES, NodeSpec
from distconsole_agent.coordination import blame
from distconsole_agent.journal.rank_states import Entry, RankStates

NOTE_FIELDS = ("check", "severity", "summary", "hint")
NOTE_MORE_FIELDS = ("host", "seen")
FAILURE_FIELDS = ("rank", "t_ns", "exit_code", "signal", "error", "traceback")
RESTART_FIELDS = ("restart", "of", "checkpoint", "pause", "first_failure")
ATTEMPT_FIELDS = ("restart", "of", "checkpoint")
VERDICT_FIELDS = ("state", "exit_code", "first_failure")

MAX_NS = 1 << 63
_WHOLE = ("t_ns", "boot_ns", "rank", "local_rank", "pid", "exit_code", "signal")
_TEXTS = ("error", "traceback", "reason", "state", "check", "severity", "summary", "hint")
_NEEDED = {
    "failed": ("rank", "exit_code", "error", "traceback"),
    "verdict": ("state", "exit_code"),
}
"""Without them an event means nothing."""


class ShimLines:
    def __init__(self, path: str) -> None:
        self.offset = 0
        self._path = path
        self._fd = -1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the new events, each with the offset behind it, and advance; other lines are skipped."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                return []
        size = os.fstat(self._fd).st_size
        events: list[tuple[int, dict[str, Any]]] = []
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

    def __init__(self, spec: dict[str, Any], ranks: RankStates) -> None:
        self._spec = spec
        self._ranks = ranks
        self._verdict: Entry | None = None
        self._failures: list[blame.Failure] = []
        self._stops: list[blame.Stop] = []
        self._newest_ns = 0
        self._last_exit: float | None = None
        self._tellers: dict[str, Callable[[Entry, float], list[Entry]]] = {
            "started": lambda event, _t: ranks.started(event),
            "exited": self._exited,
            "failed": self._failed,
            "stopping": self._stopping,
            "note": self._note,
            "restart": lambda event, t: [_entry("restart", event, t, RESTART_FIELDS)],
            "attempt": self._attempt,
            "verdict": self._take_verdict,
            "ended": lambda _event, t: [self._end(t)],
        }

    @property
    def judged(self) -> bool:
        return self._verdict is not None

    @property
    def may_be_outlived(self) -> bool:
        """True if the run may go on without this node, which cannot find out."""
        few = self._spec.get("min_nodes") or MAX_NODES
        return bool(self._spec["node_index"] != 0 and few < len(self._spec["nodes"]))

    def tell(self, event: Entry) -> list[Entry]:
        self._newest_ns = max(self._newest_ns, _moment(event))
        teller = self._tellers.get(event["event"])
        return [] if teller is None else teller(event, round(event["t_ns"] / 1e9, 6))

    def add(self, failure: blame.Failure) -> None:
        self._failures.append(failure._replace(t_ns=self._newest_ns + 1))

    def judge_lost(self, now_ns: int, why: str) -> list[Entry]:
        """Judge a run whose coordinator is gone, with the events before that, as its other nodes would."""
        lost = blame.NodeLost(0, self._newest_ns + 1, why)
        evidence = blame.Evidence(self._failures, self._stops, [lost], {})
        nodes = [
            NodeSpec(node["host"], node["address"], tuple(node["ranks"]))
            for node in self._spec["nodes"]
        ]
        self._verdict = blame.determine_verdict(evidence, nodes).as_json()
        return [{"t": round(now_ns / 1e9, 6), "kind": "verdict", **self._verdict}]

    def end_lost(self, t: float) -> Entry:
        """Return the last entry of a run whose shim is gone."""
        known = self._verdict or {"state": "lost", "exit_code": 1}
        return self._end_entry(t, known["state"], known["exit_code"])

    def _exited(self, event: Entry, t: float) -> list[Entry]:
        self._last_exit = max(t, self._last_exit or t)
        return self._ranks.exited(event)

    def _failed(self, event: Entry, t: float) -> list[Entry]:
        fields: dict[str, Any] = {name: event.get(name) for name in blame.Failure._fields}
        fields.update(node=self._spec["node_index"], t_ns=_moment(event))
        self._failures.append(blame.Failure(**fields))
        told = _entry("failure", event, t, FAILURE_FIELDS)
        told["rank"] = self._ranks.number_of(event["rank"])
        return [*self._ranks.failed(event), told]

    def _stopping(self, event: Entry, _t: float) -> list[Entry]:
        self._ranks.stopping = True
        if event.get("reason") in blame.STOP_EXIT_CODES:
            stop = blame.Stop(self._spec["node_index"], _moment(event), event["reason"])
            self._stops.append(stop)
        return []

    def _note(self, event: Entry, t: float) -> list[Entry]:
        body = {name: event.get(name) or "" for name in NOTE_FIELDS}
        if isinstance(event.get("rank"), int):
            body["rank"] = event["rank"]
        more = ((name, event.get(name)) for name in NOTE_MORE_FIELDS)
        body.update({name: value for name, value in more if isinstance(value, str)})
        return [{"t": t, "kind": "note", **body}]

    def _attempt(self, event: Entry, t: float) -> list[Entry]:
        self._ranks.begin_again()
        self._failures.clear()
        return [_entry("attempt", event, t, ATTEMPT_FIELDS)]

    def _take_verdict(self, event: Entry, t: float) -> list[Entry]:
        self._verdict = {name: event.get(name) for name in VERDICT_FIELDS}
        return [{"t": t, "kind": "verdict", **self._verdict}]

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


def _moment(event: Entry) -> int:
    moment: int = event.get("boot_ns") or event["t_ns"]
    return moment


def _entry(kind: str, event: Entry, t: float, fields: tuple[str, ...]) -> Entry:
    return {"t": t, "kind": kind, **{name: event.get(name) for name in fields}}


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    return event if _is_sound(event) else None


def _is_sound(event: Entry) -> bool:
    wholes, texts = (
        [event[name] for name in names if event.get(name) is not None]
        for names in (_WHOLE, _TEXTS)
    )
    needed = ("t_ns", *_NEEDED.get(event["event"], ()))
    return (
        all(type(each) is int and -MAX_NS <= each < MAX_NS for each in wholes)
        and all(isinstance(each, str) for each in texts)
        and all(event.get(name) is not None for name in needed)
    )
