"""Answers to each request of the protocol: functions of the request and of ``Asked``, which sends a stream's items."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distconsole_agent import __version__
from distconsole_agent.contract import limits, records
from distconsole_agent.contract.protocol import (
    MAX_ENTRIES_PER_ITEM,
    PROTOCOL_VERSION,
    ErrorCode,
    Values,
)
from distconsole_agent.contract.refusal import Refusal, bad_request
from distconsole_agent.contract.requests import AgentRequest, ShimRequest
from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.lines import body_of
from distconsole_agent.journal.reader import Reader
from distconsole_agent.journal.source_collector import read_along
from distconsole_agent.node_folder.compiled import loaded_inode
from distconsole_agent.node_folder.folders import hash_file, this_program
from distconsole_agent.node_folder.run_files import check_run_id, read_end
from distconsole_agent.node_folder.runs import NodeRuns
from distconsole_agent.server.connection import PendingRequest
from distconsole_agent.server.shim_calls import inherit_environment
from distconsole_agent.system.addresses import local_addresses
from distconsole_agent.system.kernel_files import boot_id
from distconsole_agent.system.procfs import user_name
from distconsole_agent.telemetry.sampling import Telemetry, memory_total, watch

if TYPE_CHECKING:
    from distconsole_agent.journal.active import ActiveRun, RunEnd
    from distconsole_agent.telemetry.mapping import RunningRank

OTHER_VERSION = "use the console and the agent of one version"

ATTEND_SECONDS = 1.0
"""How long a new agent may take until it can call the ranks of a run that goes on."""

_LOG = b'"kind":"log"'
_KIND_WITHIN = 96
"""``kind`` follows ``seq`` and ``t``; quotes inside a text are escaped, so this cannot mistake one."""


class Answers:
    def __init__(
        self, node_dir: str, runs: NodeRuns, telemetry: Telemetry, leave: Callable[[], None]
    ) -> None:
        self._node_dir = node_dir
        self._archive = this_program().archive
        self._inode = loaded_inode(self._archive)
        self._leave = leave
        self._runs = runs
        self._telemetry = telemetry
        self._ops: dict[str, Callable[[AgentRequest, PendingRequest], Values]] = {
            "hello": self._hello,
            "ping": lambda _request, _asker: {
                "time_ns": time.time_ns(),
                "monotonic_ns": time.monotonic_ns(),
            },
            "probe": self._probe,
            "watch": self._watch,
            "prepare": lambda request, asker: runs.prepare(
                request.run, request.spec, asker.environment
            ),
            "start": self._start,
            "follow": self._follow,
            "stop": self._stop,
            "kill": lambda request, _asker: {"killing": self._end(request, ShimRequest("kill"))},
            "runs": lambda _request, _asker: {"runs": runs.describe_all()},
            "forget": lambda request, _asker: {"forgotten": runs.forget(request.run)},
            "slurm": self._slurm,
            "roll_call": lambda request, _asker: _answer_roll_call(runs, request),
            "survey": self._survey,
            "sync": lambda request, _asker: runs.code.sync(
                check_run_id(request.run), request.manifest
            ),
            "sync_take": lambda request, _asker: runs.code.take(
                check_run_id(request.run), request.pieces, request.data
            ),
            "trace": self._trace,
            "trace_take": self._trace_take,
        }

    def answer(self, request: AgentRequest, asker: PendingRequest) -> Values:
        """Return the result. Raises Refusal, or OSError when the connection is gone."""
        do = self._ops.get(request.op)
        if do is None:
            what = f"this agent ({__version__}) does not know {request.op[:40]!r}"
            raise Refusal(ErrorCode.UNKNOWN_OP, what, OTHER_VERSION)
        return do(request, asker)

    def _hello(self, request: AgentRequest, _asker: PendingRequest) -> Values:
        wanted = request.protocol
        if wanted != PROTOCOL_VERSION:
            raise bad_request(
                f"this agent speaks protocol {PROTOCOL_VERSION}, not {str(wanted)[:20]}",
                OTHER_VERSION,
            )
        system = os.uname()
        return {
            "protocol": PROTOCOL_VERSION,
            "version": __version__,
            "agent_pid": os.getpid(),
            "hostname": system.nodename,
            "boot_id": boot_id(),
            "network": os.readlink("/proc/self/ns/net"),
            "user": user_name(),
            "uid": os.getuid(),
            "python": sys.executable,
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "platform": f"{system.sysname} {system.release} {system.machine}",
            "cpus": os.cpu_count(),
            "mem_total": memory_total(),
            "node_dir": self._node_dir,
            "addresses": local_addresses(),
            "archive_sha256": self._hash_program(),
            **self._telemetry.describe(),
            "time_ns": time.time_ns(),
        }

    def _hash_program(self) -> str | None:
        """Return the SHA-256 of the agent's file; empty if one that modules are read from is gone, and let the next agent start."""
        same = loaded_inode(self._archive) == self._inode
        found = hash_file(self._archive) if same else ""
        if found == "":
            self._leave()
        return found

    def _survey(self, request: AgentRequest, _asker: PendingRequest) -> Values:
        from distconsole_agent.survey.surveying import answer_survey

        return answer_survey(request, self._telemetry.sample)

    def _probe(self, request: AgentRequest, asker: PendingRequest) -> Values:
        from distconsole_agent import probes

        self._hash_program()  # a probe fails without the program's files: the next agent has them
        seconds = request.args.get("timeout", limits.PROBE_SECONDS)
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise bad_request("timeout is not a number")
        seconds = min(max(seconds, 0.1), limits.MAX_PROBE_SECONDS)
        environment = inherit_environment(asker.environment)
        try:
            facts = probes.run(request.group, dict(request.args), seconds, environment)
        except probes.ProbeError as error:
            raise Refusal(error.code, error.message, getattr(error, "hint", "")) from None
        return {"facts": facts}

    def _watch(self, request: AgentRequest, asker: PendingRequest) -> Values:
        watch(self._telemetry, request.interval, self._all_ranks, asker.send_item, asker.cancelled)
        return {"cancelled": True}

    def _start(self, request: AgentRequest, _asker: PendingRequest) -> Values:
        self._runs.ask_shim(
            request.run, ShimRequest("start", request.coordinator, request.master_port)
        )
        return {"started": True}

    def _stop(self, request: AgentRequest, _asker: PendingRequest) -> Values:
        if request.reason not in ("user", "sigint", "sigterm"):
            raise bad_request("reason is user, sigint or sigterm")
        if request.grace != 0:  # a stop at once does not wait for it
            with contextlib.suppress(Refusal):
                active = _attended(self._runs, request.run)
                if active is not None and (roll := active.roll) is not None:
                    roll.call_before_stop()
        ask = ShimRequest("stop", reason=request.reason, grace=request.grace)
        return {"stopping": self._end(request, ask)}

    def _end(self, request: AgentRequest, ask: ShimRequest) -> bool:
        self._runs.folder(request.run)
        try:
            self._runs.ask_shim(request.run, ask)
        except Refusal as refusal:
            if refusal.code != ErrorCode.NO_SUCH_RUN:
                raise
            return False
        return True

    def _follow(self, request: AgentRequest, asker: PendingRequest) -> Values:
        after = request.after
        if after < 0:
            raise bad_request("after is the number of the last entry that is there, from 0")
        folder = self._runs.folder(request.run)
        journal, ours = self._runs.journal(request.run)
        asker.on_cancel(journal.wake)
        try:
            begin = _begin_at(journal, request.journal, after)
            if begin != after:
                asker.send_item({"entries": [], "after": begin})
            last = follow(journal, folder, begin, asker, read_end(folder))
        finally:
            if ours:
                journal.close()
        return {"cancelled": True} if asker.cancelled.is_set() else {"last": last}

    def _trace(self, request: AgentRequest, asker: PendingRequest) -> Values:
        from distconsole_agent.server.traces import trace

        return trace(request, asker, self._runs.folder(request.run))

    def _trace_take(self, request: AgentRequest, _asker: PendingRequest) -> Values:
        from distconsole_agent.server.traces import take

        return take(request, self._runs.folder(request.run))

    def _slurm(self, request: AgentRequest, asker: PendingRequest) -> Values:
        from distconsole_agent.engines import slurm

        return slurm.do(request, inherit_environment(asker.environment), self._runs)

    def _all_ranks(self) -> list[RunningRank]:
        """Return the ranks to find on the GPUs; none if two runs would use the same numbers."""
        active = self._runs.active
        return active[0].rank_processes() if len(active) == 1 else []


def _answer_roll_call(runs: NodeRuns, request: AgentRequest) -> Values:
    """Return the places of a run's ranks on this node; none for a finished run.

    Raises Refusal: ``bad_request`` or ``no_such_run``.
    """
    seconds = request.call_seconds
    active = _attended(runs, request.run)
    if active is None:
        calls = []
    elif (roll := active.roll) is not None:
        calls = roll.call(seconds, "asked")
    else:  # an agent of another version, which may have another protocol, writes its journal
        with read_along(active.folder, active.spec) as roll:
            calls = roll.call(seconds, "asked")
    return {"ranks": calls, "time_ns": time.time_ns(), "host": os.uname().nodename}


def _attended(runs: NodeRuns, run: str) -> ActiveRun | None:
    """Return a run whose journal this agent writes or reads along; None if it is over."""
    if read_end(runs.folder(run)) is not None:
        return None
    runs.pick_up()
    until = time.monotonic() + ATTEND_SECONDS
    active = None
    while time.monotonic() < until:
        active = next((each for each in runs.active if each.run == run), None)
        if active is None or active.journal.ended:
            return None
        if active.roll is not None:
            break
        time.sleep(0.02)
    return active


def _begin_at(journal: Journal, known: str | None, after: int) -> int:
    """Return how many of the first ``after`` entries, by the writer ``known``, are in the journal still.

    Raises:
        Refusal: ``bad_request``, to a console that names no writer and has more than is there.
        OSError: when the journal cannot be read.
    """
    found = journal
    if not journal.writable:
        found = Journal(journal.folder)
        found.read_signature()
    if known is not None:
        return found.still_has(known, after)
    if after > found.last_seq:
        raise bad_request(
            f"this node has entries up to {found.last_seq}, none after {after}",
            "the end of its journal was lost, or its folder removed; follow from 0",
        )
    return after


def follow(
    journal: Journal,
    folder: str,
    after: int,
    asker: PendingRequest,
    end: RunEnd | None = None,
    wall: Callable[[], float] = time.time,
) -> int:
    """Send the entries after ``after`` until the last, or until it is cancelled; return the last number.

    ``end`` is the last one, from the run's summary, for a journal that has lost it. Entries are late by ``wall``.
    Raises OSError when the journal cannot be read or the connection is gone.
    """
    reader = Reader(journal.folder, after)
    past = journal.last_seq

    def is_late(entry: dict[str, Any]) -> bool:
        # Requests for the past wait for it; and after the end no entry is late.
        live = entry["seq"] > past and not journal.ended
        return live and wall() - entry["t"] > limits.LATE_SECONDS

    texts = LogTexts(os.path.join(folder, "logs"), is_late)
    told = ""
    try:
        while not asker.cancelled.is_set():
            if journal.trouble != told:
                told = journal.trouble
                asker.send_item({"entries": [], "trouble": told})
            # Asked before reading: later entries are there later.
            complete, there = journal.ended, journal.last_seq
            lines = reader.read()
            if lines:
                _send_in_items(lines, texts, asker, reader.journal_id)
            elif complete:
                if end is None or end.seq <= reader.last:
                    break
                # The journal has lost its last entry.
                body = json.dumps(records.write(end._replace(journal=None)), separators=(",", ":"))
                writer = reader.journal_id if end.journal is None else end.journal
                asker.send_entries([body.encode("ascii")], writer)
                return end.seq
            elif not journal.wait(max(reader.last, there), asker.cancelled.is_set, told):
                break
        return reader.last
    finally:
        reader.close()
        texts.close()


def _send_in_items(
    lines: list[bytes], texts: LogTexts, asker: PendingRequest, journal_id: str
) -> None:
    item: list[bytes] = []
    size = 0
    for line in lines:
        entry = texts.fill(line) if _LOG in line[:_KIND_WITHIN] else body_of(line)
        if item and (len(item) >= MAX_ENTRIES_PER_ITEM or size + len(entry) > limits.ITEM_BYTES):
            asker.send_entries(item, journal_id)
            if asker.cancelled.is_set():
                return
            item, size = [], 0
        item.append(entry)
        size += len(entry)
    asker.send_entries(item, journal_id)


class LogTexts:
    """Fills the text into log entries, unless it ``is_late`` and more is to come."""

    def __init__(self, folder: str, is_late: Callable[[dict[str, Any]], bool]) -> None:
        self._folder = folder
        self._is_late = is_late
        self._fds: dict[str, int] = {}
        self._left_out: dict[str, tuple[int, int]] = {}
        """Log -> the first byte that was left out, and how many lines since."""

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def fill(self, line: bytes) -> bytes:
        """Return a log entry with its text in place of the reference."""
        entry: dict[str, Any] = json.loads(body_of(line))
        length, name = entry.pop("length"), entry.pop("file")
        text = self._read(name, entry["offset"], length)
        size = os.fstat(self._fds[name]).st_size if name in self._fds else 0
        has_more = size - entry["offset"] - length > limits.LAST_UNCUT_BYTES
        if has_more and self._is_late(entry):
            start, lines = self._left_out.get(name, (entry["offset"], 0))
            self._left_out[name] = (start, lines + text.count("\n"))
            text = ""
        elif name in self._left_out:
            start, lines = self._left_out.pop(name)
            text = (
                f"[distconsole: {lines:,} lines are not shown here: the way to this console is too slow for them; they "
                f"are in {self._folder}/{name}, bytes {start} to {entry['offset']}]\n{text}"
            )
        entry["text"] = text
        return json.dumps(entry, separators=(",", ":")).encode("ascii")

    def _read(self, name: str, offset: int, length: int) -> str:
        try:
            if name not in self._fds:
                path = os.path.join(self._folder, os.path.basename(name))
                if len(self._fds) >= 64:
                    os.close(self._fds.pop(next(iter(self._fds))))
                self._fds[name] = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            return os.pread(self._fds[name], length, offset).decode("utf-8", "replace")
        except OSError:
            return ""
