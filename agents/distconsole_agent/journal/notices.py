"""Posts a run's events to a webhook, from the run's first node: also while no console is attached.

``notify.json`` in the run's folder holds the address and the kinds of notices. It exists only if the console
asked for notices, and is removed after the last one. A thread posts: a slow webhook delays nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from distconsole_agent.contract import records
from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.contract.webhook import NotToldError, post
from distconsole_agent.journal.rank_states import Entry
from distconsole_agent.supervisor import notes
from distconsole_agent.system.own_log import complain

FILE = "notify.json"
KEPT = "notices.jsonl"
"""Lines, each one of ``notice`` (with the ``check`` of a finding), ``told`` (the index of a notice) and ``first`` (a
verdict's failure). The agent that posts holds its lock: a later one posts only the rest."""
MAX_NOTICES = 20
"""Of one run, beside its end: a run in trouble must not flood a channel."""
MAX_CHARS = 400
OF_OTHERS = ("run.first_failure", "run.stall", "run.restart", notes.NOTICE_UNTOLD)
"""Findings reported anyway, ones that pass by themselves, and a notice that could not be sent."""


class Whom(NamedTuple):
    """``notify.json``: the webhook, the kinds of notices that it gets, and how many seconds a post may take."""

    address: str
    on: tuple[str, ...]
    timeout: float


class NodeNotices:
    """One run's notices; none is sent on a node without ``notify.json``.

    ``stalled``: the ranks that have stalled so far, as the journal knows them.
    """

    def __init__(self, folder: str, spec: RunSpec, stalled: Iterable[int] = ()) -> None:
        self._path, self._kept = os.path.join(folder, FILE), os.path.join(folder, KEPT)
        self._spec = spec
        self._whom = records.read_file(Whom, self._path)
        self._first: Entry = {}
        self._stalled = set(stalled)
        self._found: set[str] = set()
        self._told = 0
        self._waiting: queue.SimpleQueue[tuple[int, Entry]] = queue.SimpleQueue()
        self.entries: queue.SimpleQueue[Entry] = queue.SimpleQueue()
        """Notes for the journal."""
        self.thread: threading.Thread | None = None
        if self._whom:
            for line in _lines(self._kept):
                self._first = line.get("first", self._first)
                self._found.add(str(line.get("check")))
                if "notice" in line:
                    self._wait(line["notice"])
            self.thread = threading.Thread(target=self._work, name="notices", daemon=True)
            self.thread.start()

    def see(self, entries: Iterable[Entry]) -> None:
        """Queue notices for new entries of the journal. Never blocks."""
        for entry in entries:
            notice = self._notice(entry) if self._whom else None
            if notice is None or self._whom is None:
                continue
            last = entry["kind"] == "end"
            if last or (notice["kind"] in self._whom.on and self._told < MAX_NOTICES):
                notice["last"] = last
                self._keep({"notice": notice, "check": entry.get("check")})
                self._wait(notice)

    def close(self) -> None:
        """Queue no more notices; those in the queue are still posted. Never blocks."""
        self._waiting.put((-1, {}))

    def _wait(self, notice: Entry) -> None:
        self._waiting.put((self._told, notice))
        self._told += 1

    def _keep(self, line: Entry) -> None:
        """Append a line; if the disk refuses it, another agent may post the notice again."""
        try:
            with open(self._kept, "ab", opener=_private) as file:
                # A line that a crash has cut would swallow this one.
                file.write(b"\n" + json.dumps(line).encode() + b"\n")
        except OSError as error:
            complain(f"run {self._spec.run}: {error}")

    def _notice(self, entry: Entry) -> Entry | None:
        kind = entry["kind"]
        if kind == "state":
            return self._stall(entry)
        if kind == "note" and entry.get("severity") == "fail":
            return self._finding(entry)
        if kind == "verdict":
            self._first = entry.get("first_failure") or {}
            self._keep({"first": self._first})
        return self._end(entry) if kind == "end" else None

    def _stall(self, entry: Entry) -> Entry | None:
        rank, stalled = entry["rank"], set(self._stalled)
        if entry["state"] != "stalled":
            self._stalled.discard(rank)
            return None
        self._stalled.add(rank)
        if stalled:
            return None
        host = self._spec.host
        text = f"rank {rank} on {host} makes no step"
        return self._make("stall", entry, "stalled", text, rank=rank, host=host)

    def _finding(self, entry: Entry) -> Entry | None:
        check = str(entry["check"])
        if check in self._found or check in OF_OTHERS:
            return None
        self._found.add(check)
        more = {"rank": entry["rank"]} if "rank" in entry else {}
        return self._make("finding", entry, "is in trouble", str(entry["summary"]), **more)

    def _end(self, entry: Entry) -> Entry:
        state, code = str(entry["state"]), entry["exit_code"]
        minutes, rest = divmod(round(entry["seconds"]), 60)
        hours, minutes = divmod(minutes, 60)
        span = f"{minutes} min {rest} s" if minutes else f"{rest} s"
        span = f"{hours} h {minutes} min" if hours else span
        text, more = f"after {span}", {"state": state, "exit_code": code}
        if state not in ("succeeded", "stopped"):
            text += f", exit code {code}"
        if self._first:
            rank, host = self._first.get("rank"), self._first.get("host")
            error = str(self._first.get("error") or "").strip()
            text += f": rank {rank} on {host}" + (f": {error}" if error else "")
            more.update(rank=rank, host=host)
        kind = "finish" if state in ("succeeded", "stopped") else "failure"
        return self._make(kind, entry, state, text, **more)

    def _make(self, kind: str, entry: Entry, what: str, text: str, **more: object) -> Entry:
        name, run = _plain(self._spec.name), self._spec.run
        told = {"event": "notice", "kind": kind, "title": f"{name or run} {what}"}
        return {**told, "text": _plain(text), "t": entry["t"], "run": run, "name": name, **more}

    def _work(self) -> None:
        with _locked(self._kept):
            if not os.path.exists(self._path):
                return  # the agent that held the lock has posted the last notice
            told = {line["told"] for line in _lines(self._kept) if "told" in line}
            index, notice = self._waiting.get()
            while notice:
                last = notice.pop("last", False)
                if self._whom and notice["kind"] in self._whom.on and index not in told:
                    self._tell(self._whom, notice)
                    self._keep({"told": index})
                if last:
                    break
                index, notice = self._waiting.get()
            else:
                return
            for path in (self._path, self._kept):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _tell(self, whom: Whom, notice: Entry) -> None:
        try:
            post(whom.address, notice, whom.timeout)
        except NotToldError as error:
            complain(f"run {self._spec.run}: the webhook {error}")
            self.entries.put(notes.notice_untold(self._spec.host, str(error)).entry(time.time()))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _lines(path: str) -> list[Entry]:
    """Return the whole lines of a file that is there; one that a crash has cut is left out."""
    found = []
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Wait for the lock of a file and hold it; hold none if the file cannot be created."""
    try:
        file = open(path, "ab", opener=_private)  # noqa: SIM115 - closed by the with below
    except OSError:
        yield
        return
    with file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:MAX_CHARS]
