"""One run's sources (shim, logs, rings, telemetry) into its journal, a batch at a time.

It keeps nothing that a mark or a source cannot give back, so it may be killed at any point. It
starts and stops no process, except what a dead shim left behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from distconsole_agent import blame
from distconsole_agent.failures import read_raised
from distconsole_agent.journal import Journal, Mark
from distconsole_agent.last_word import tell_in_background
from distconsole_agent.limits import RING_SCAN_SECONDS, SHIM_CHECK_SECONDS, WINDOW_SECONDS
from distconsole_agent.proctree import kill_run, read_stat
from distconsole_agent.rank_states import Entry, RankStates
from distconsole_agent.recorders import Recorders
from distconsole_agent.runspec import MAX_NODES, MPI, NodeSpec
from distconsole_agent.slurm_words import has_srun, read_reason, read_srun_death
from distconsole_agent.tail import LogTail, ShimLines

LOG_NAME = re.compile(r"^(?:rank-(\d{1,9})|engine)\.(out|err)$")
MAX_BATCH_ENTRIES = 4096
UNBORN_SECONDS = 60.0
"""A folder without ``shim.pid`` is being prepared for at most so long."""

SRUN_SECONDS = 3.0
"""How long, once its shim has died, the end of the srun that started it may take to be noted here."""

NOTE_FIELDS = ("check", "severity", "summary", "hint")
FAILURE_FIELDS = ("rank", "t_ns", "exit_code", "signal", "error", "traceback")


class Drain:
    """The sources of one run on this node.

    Args:
        folder: The run's folder.
        spec: Its ``spec.json``.
        journal: Opened for writing.
        monotonic: Seconds; paces everything here.
        wall_ns: UNIX nanoseconds; stamps entries.
    """

    def __init__(
        self,
        folder: str,
        spec: dict[str, Any],
        journal: Journal,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._journal = journal
        self._monotonic, self._wall_ns = monotonic, wall_ns
        self.samples: deque[Entry] = deque(maxlen=8)
        nodes, index = spec["nodes"], spec["node_index"]
        # Ranks of mpirun report themselves to the shim, so each is known as if it were its child.
        engine_ranks = spec.get("engine_ranks") is not False or spec.get("launcher") == MPI
        self.ranks = RankStates(
            list(nodes[index]["ranks"]),
            engine_ranks=engine_ranks,
            watched=bool(spec.get("watch", True)),
        )
        rings = spec.get("rings") or os.path.join(folder, "rings")
        self._recorders = Recorders(rings, self.ranks, wall_ns)
        self._shim = ShimLines(os.path.join(folder, "shim.jsonl"))
        self._logs: dict[str, tuple[int | None, str, LogTail]] = {}
        self._verdict: Entry | None = None
        self._failures: list[blame.Failure] = []
        self._stops: list[blame.Stop] = []
        self._entries: list[Entry] = []
        self._shim_offset = 0
        self._next_window = self._next_check = self._next_scan = 0.0
        self._srun_until: float | None = None
        self._restore()

    @property
    def over(self) -> bool:
        """Whether the journal has its ``end``."""
        return self._journal.ended

    def close(self) -> None:
        """Give all descriptors back."""
        self._shim.close()
        self._recorders.close()
        for _rank, _stream, log in self._logs.values():
            log.close()

    def tick(self) -> bool:
        """Take what is new and write it as a batch; return whether shim or ranks said something.

        Raises:
            OSError: when the journal cannot be written; the next call tries the same again.
        """
        # What could not be written last time. Nothing is read before it is.
        self._commit()
        now = self._monotonic()
        told = not self.over and self._take_shim(now)
        return (not self.over and self._take_rest(now)) or told

    def _take_rest(self, now: float) -> bool:
        if now >= self._next_scan:
            self._next_scan = now + RING_SCAN_SECONDS
            self._open_sources()
        printed = self._take_logs(now)
        if now >= self._next_window or self._recorders.busy:
            self._next_window = now + WINDOW_SECONDS
            self._take_windows()
        while self.samples:
            self._entries.append(self.samples.popleft())
        if now >= self._next_check:
            self._next_check = now + SHIM_CHECK_SECONDS
            if self._shim_is_gone() and not self._waits_for_srun(now):
                self._lose(now)
        self._commit()
        return printed

    def rank_processes(self) -> list[dict[str, Any]]:
        """Return the processes of this node's ranks, for mapping GPUs."""
        found = {
            rank.rank: (rank.local_rank, rank.pid)
            for rank in list(self.ranks)
            if rank.alive and rank.pid is not None
        }
        return [
            {
                "rank": rank,
                "local_rank": local_rank,
                "pid": pid,
                "cuda_visible_devices": self._cuda_visible_devices(rank),
            }
            for rank, (local_rank, pid) in found.items()
        ]

    def _restore(self) -> None:
        """Go on where the journal's last mark says."""
        mark = self._journal.mark
        upto = mark.get("shim", {}).get("offset", 0)
        while self._shim_offset < upto and (events := self._shim.read()):
            for offset, event in events:
                if offset <= upto:
                    self._apply(event)
                    self._shim_offset = offset
        self._shim.offset = self._shim_offset = upto
        self._entries.clear()
        self.ranks.restore(mark.get("ranks", {}))
        self._open_sources()

    def _open_sources(self) -> None:
        """Open logs and rings that have appeared."""
        mark = self._journal.mark
        self._recorders.scan(mark.get("rings", {}))
        folder = os.path.join(self._folder, "logs")
        for name in sorted(os.listdir(folder)):
            matched = LOG_NAME.match(name)
            if name not in self._logs and matched is not None:
                with contextlib.suppress(OSError):
                    offset = mark.get("logs", {}).get(name, 0)
                    tail = LogTail(os.path.join(folder, name), offset)
                    number = None if matched[1] is None else int(matched[1])
                    self._logs[name] = (number, matched[2], tail)

    def _take_shim(self, now: float) -> bool:
        told = False
        # A batch that fails between two events leaves the rest of them for the next time.
        self._shim.offset = self._shim_offset
        for offset, event in self._shim.read():
            self._next_scan = 0.0
            told = True
            kind = event["event"]
            if kind in ("exited", "failed", "ended"):
                # What a process printed and recorded comes before its end.
                self._take_everything(now, event.get("rank") if kind != "ended" else None)
            self._apply(event)
            self._shim_offset = offset
            if len(self._entries) >= MAX_BATCH_ENTRIES or kind == "ended":
                self._commit()
            if self.over:
                break
        return told

    def _apply(self, event: Entry) -> None:
        """Fold one event of the shim into entries."""
        kind, t = event["event"], round(event["t_ns"] / 1e9, 6)
        if kind == "started":
            self._entries += self.ranks.started(event)
        elif kind == "exited":
            self._entries += self.ranks.exited(event)
        elif kind == "failed":
            body = {name: event.get(name) for name in FAILURE_FIELDS}
            self._entries.append({"t": t, "kind": "failure", **body})
            self._failures.append(self._failure(event))
        elif kind == "stopping":
            self.ranks.stopping = True
            if event.get("reason") in blame.STOP_EXIT_CODES:
                stop = blame.Stop(self._spec["node_index"], event["t_ns"], event["reason"])
                self._stops.append(stop)
        elif kind == "note":
            self._entries.append({"t": t, "kind": "note", **_note_body(event)})
        elif kind == "verdict":
            self._verdict = {
                "state": event.get("state"),
                "exit_code": event.get("exit_code"),
                "first_failure": event.get("first_failure"),
            }
            self._entries.append({"t": t, "kind": "verdict", **self._verdict})
        elif kind == "ended":
            self._entries.append(self._end(t))

    def _end(self, t: float) -> Entry:
        """Return the last entry; a run without a verdict is judged by what this node saw."""
        if self._verdict is not None:
            state, exit_code = self._verdict["state"], self._verdict["exit_code"]
        elif self.ranks.last_exit is None:
            state, exit_code = "stopped", 143
        elif self.ranks.stopping:
            state, exit_code = "stopped", self.ranks.last_exit[1] or 143
        else:
            exit_code = self.ranks.last_exit[1]
            state = "failed" if exit_code else "succeeded"
        return self._end_entry(t, state, exit_code)

    def _end_entry(self, t: float, state: str, exit_code: int) -> Entry:
        begun = self.ranks.first_started_ns / 1e9
        seconds = round(max(0.0, t - begun), 6) if begun else 0.0
        return {"t": t, "kind": "end", "state": state, "exit_code": exit_code, "seconds": seconds}

    def _take_everything(self, now: float, rank: int | None) -> None:
        """Take all that a rank (or all ranks) left, in batches of bounded size."""
        self._open_sources()
        only = rank if self.ranks.engine_ranks else None
        self._entries += self._recorders.drain(only, final=True)
        if not self.ranks.engine_ranks:
            self._take_vanished(self._wall_ns() / 1e9)
        while self._take_logs(now, final=True, only=only):
            self._commit()

    def _take_logs(self, now: float, *, final: bool = False, only: int | None = None) -> bool:
        """Take slices of the logs; return whether there were any."""
        taken = False
        t = round(self._wall_ns() / 1e9, 6)
        for name, (number, stream, log) in self._logs.items():
            if only is not None and number != only:
                continue
            for piece in log.take(now, final=final):
                taken = True
                self._entries.append(
                    {
                        "t": t,
                        "kind": "log",
                        "rank": number,
                        "stream": stream,
                        "offset": piece.offset,
                        "length": piece.length,
                        "file": name,
                    }
                )
        return taken

    def _take_windows(self) -> None:
        self._entries += self._recorders.drain()
        now_ns = self._wall_ns()
        self._entries += self.ranks.old_enough(now_ns)
        monotonic_ns = int(self._monotonic() * 1e9)
        for rank, seconds, median in self._recorders.silent(monotonic_ns):
            self._entries += self.ranks.paused(rank, seconds, median, now_ns / 1e9)
        if not self.ranks.engine_ranks:
            self._take_vanished(now_ns / 1e9)

    def _take_vanished(self, t: float) -> None:
        gone = [
            (number, pid, finished)
            for number, pid, finished in self._recorders.gone()
            if (rank := self.ranks.get(number)) is not None and rank.alive and rank.pid == pid
        ]
        if not gone:
            return
        raised = {each.pid for each in read_raised(os.path.join(self._folder, "errors"))}
        for number, pid, finished in gone:
            state = "failed" if pid in raised else "exited" if finished else "killed"
            self._entries += self.ranks.vanished(number, pid, state, t)

    def _shim_is_gone(self) -> bool:
        """Return whether the shim has died without a word."""
        path = os.path.join(self._folder, "shim.pid")
        try:
            with open(path, encoding="ascii") as file:
                pid, starttime = map(int, file.read().split())
        except FileNotFoundError:
            age = self._wall_ns() / 1e9 - os.stat(self._folder).st_ctime
            return age > UNBORN_SECONDS
        except (OSError, ValueError):
            return False
        stat = read_stat(pid)
        if stat is not None and stat.starttime == starttime and stat.state not in "ZX":
            return False
        # It may have written its last words since they were looked for.
        self._take_shim(self._monotonic())
        return not self.over

    def _waits_for_srun(self, now: float) -> bool:
        """Return whether the srun that started the dead shim may still say why it died."""
        if not has_srun(self._folder):
            return False
        if self._srun_until is None:
            kill_run(self._folder)
            self._srun_until = now + SRUN_SECONDS
        return now < self._srun_until

    def _lose(self, now: float) -> None:
        """End a run whose shim has died: nothing of it may stay on this node."""
        left = kill_run(self._folder)
        t = round(self._wall_ns() / 1e9, 6)
        self._take_everything(now, None)
        summary = "the run's supervisor on this node is gone; its processes have been killed"
        hint = "look for an out-of-memory kill on this host: dmesg -T | grep -i kill"
        death = read_srun_death(self._folder)
        if death is not None:
            rank = self._spec["nodes"][0]["ranks"][0]
            told = (0, rank, 0, self._wall_ns(), death.exit_code, None, death.error, "")
            self._failures.append(blame.Failure(*told))
        reason = death.error if death is not None else read_reason(self._folder)
        if reason:
            summary = f"{reason}; its processes have been killed"
            hint = "scontrol show job says more, and sacct where there is accounting"
        if left:
            summary += f", except {', '.join(map(str, left))}, which the kernel cannot end"
        self._entries.append(
            {
                "t": t,
                "kind": "note",
                "check": "run.supervisor_lost",
                "severity": "warn" if self._may_be_outlived() else "fail",
                "summary": summary,
                "hint": hint,
            }
        )
        self._entries += self.ranks.lose(t)
        if self._verdict is None and self._spec["node_index"] == 0:
            # The coordinator died with the shim: nobody else will judge.
            self._verdict = self._judge_lost().as_json()
            self._entries.append({"t": t, "kind": "verdict", **self._verdict})
        elif self._verdict is None:
            tell_in_background(self._folder, reason or "")
        known = self._verdict or {"state": "lost", "exit_code": 1}
        self._entries.append(self._end_entry(t, known["state"], known["exit_code"]))

    def _may_be_outlived(self) -> bool:
        """Return whether the run may go on without this node: whether it does is not known here."""
        few = self._spec.get("min_nodes") or MAX_NODES
        return bool(self._spec["node_index"] != 0 and few < len(self._spec["nodes"]))

    def _judge_lost(self) -> blame.Verdict:
        """Return the verdict of a run whose coordinator is gone, as its other nodes come to it."""
        why = read_reason(self._folder) or blame.SHIM_GONE
        lost = blame.NodeLost(0, self._wall_ns(), why)
        evidence = blame.Evidence(self._failures, self._stops, [lost], {})
        nodes = [
            NodeSpec(node["host"], node["address"], tuple(node["ranks"]))
            for node in self._spec["nodes"]
        ]
        return blame.judge(evidence, nodes)

    def _failure(self, event: Entry) -> blame.Failure:
        fields: dict[str, Any] = {name: event.get(name) for name in blame.Failure._fields}
        fields["node"] = self._spec["node_index"]
        return blame.Failure(**fields)

    def _cuda_visible_devices(self, rank: int) -> str | None:
        name = "CUDA_VISIBLE_DEVICES"
        for placed in self._spec.get("ranks") or ():
            if placed.get("rank") == rank and name in (placed.get("env") or {}):
                return str(placed["env"][name])
        if name in (self._spec.get("env") or {}):
            return str(self._spec["env"][name])
        if name in (self._spec.get("unset") or ()):
            return None
        visible = self._spec.get("visible_devices")
        return visible if isinstance(visible, str) else None

    def _commit(self) -> None:
        if not self._entries:
            return
        self._journal.append(self._entries, self._changed())
        self._entries = []

    def _changed(self) -> Mark:
        """Return the positions that the journal's mark does not say yet."""
        now: Mark = {
            "shim": {"offset": self._shim_offset},
            "logs": {name: log.offset for name, (_rank, _stream, log) in self._logs.items()},
            "rings": self._recorders.marks(),
            "ranks": self.ranks.states(),
        }
        known = self._journal.mark
        return {
            group: changed
            for group, positions in now.items()
            if (
                changed := {
                    name: value
                    for name, value in positions.items()
                    if known.get(group, {}).get(name) != value
                }
            )
        }


def _note_body(event: Entry) -> Entry:
    body = {name: event.get(name) or "" for name in NOTE_FIELDS}
    if isinstance(event.get("rank"), int):
        body["rank"] = event["rank"]
    if isinstance(event.get("host"), str):
        body["host"] = event["host"]
    return body
