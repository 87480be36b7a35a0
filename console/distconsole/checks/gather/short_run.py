"""A check's job as a hidden run: placed, started and stopped like any other, then forgotten.

So a check proves the behaviour of ``run``.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from distconsole.checks.facts.jobs import RankReport
from distconsole.checks.gather.engine_jobs import EngineAnswer, EngineJob
from distconsole.checks.gather.transports import read_mpi_words, split_mpi_words
from distconsole.errors import NodeError
from distconsole.launch.execute import start, undo
from distconsole.launch.place import PreparedLaunch
from distconsole.launch.plan import NodePlan, Plan
from distconsole.launch.planner import ask_engines, collect_facts, plan_launch
from distconsole.model.findings import HostCure
from distconsole.model.job import ScriptTraits
from distconsole.model.requests import LauncherName, Run
from distconsole.rpc.frames import (
    EndEntry,
    FailedFirst,
    JournalEntry,
    LogEntry,
    StateEntry,
    VerdictEntry,
)
from distconsole.rpc.link import NodeLink
from distconsole.rpc.pack import rank_script
from distconsole.session import Session, on_every

WORKER = "distconsole-rank"
"""Stands for the ranks' script in the plan, as if it were a module."""

MARK = "distconsole-rank "
"""Begins the lines that are for us (``collectives.worker`` of the agent)."""

KILLED = "killed"
"""The state of a rank that ended because the run was stopped (``distconsole_agent.contract.protocol``)."""

TICK_SECONDS = 0.25
KILL_SECONDS = 5.0
LOST_AFTER_SECONDS = 40.0
MAX_LINES, MAX_LOG_CHARS, MAX_ERROR_LINES = 2000, 4 << 20, 12


def short_run(session: Session, job: EngineJob) -> EngineAnswer:
    """Start ``job``, wait for its end, leave nothing of it on the hosts; raises PlanError, ConsoleError."""
    began = time.monotonic()
    plan = _plan(session, job)
    journals = {host: _NodeJournal() for host in plan.hosts}
    start(plan, session)
    try:
        ends = began + job.seconds

        def listen(link: NodeLink) -> None:
            _listen(link, plan.run, journals[link.host.name], ends, job.given_up)

        on_every(session, plan.hosts, listen, job.seconds + KILL_SECONDS * 2)
    finally:
        undo(plan, session)
    first = journals[plan.master.name]
    return EngineAnswer(
        launcher=plan.launcher.value,
        ranks={
            node.name: tuple(journals[node.name].report(rank) for rank in node.world_ranks)
            for node in plan.nodes
        },
        said=first.engine_words(),
    )


def _plan(session: Session, job: EngineJob) -> Plan:
    request = Run(
        script=WORKER,
        module=True,
        arguments=(repr(job.seconds), job.engine, json.dumps(job.work)),
        launcher=job.launcher,
        nic=job.nic,
        workdir="/",
        name=f"check-{job.launcher}",
        grace_seconds=1.0,
        lost_after_seconds=LOST_AFTER_SECONDS,
        watch=False,
    )
    traits = ScriptTraits(readable=True, horovod=job.launcher is LauncherName.HOROVOD)
    launch = PreparedLaunch(request, job.env, traits)
    launch = collect_facts(launch, session, replace(session.cluster, hosts=job.hosts))
    plan = plan_launch(ask_engines(launch, session))
    return replace(plan, nodes=tuple(_insert_script(node, job) for node in plan.nodes))


def _insert_script(node: NodePlan, job: EngineJob) -> NodePlan:
    """Insert the text of the ranks' script into the plan, as it is on no node's disk; change the variables."""
    ranks = []
    for rank in node.ranks:
        at = rank.argv.index(WORKER) if WORKER in rank.argv else 0
        script = (*rank.argv[: at - 1], "-c", rank_script(), *rank.argv[at + 1 :])
        ranks.append(replace(rank, argv=script) if at else rank)
    change = job.changes.get(node.name, HostCure())
    dropped = {*(set(job.without) - set(job.env)), *change.unset}
    env = {name: value for name, value in node.env.items() if name not in dropped}
    unset = tuple(name for name in (*node.unset, *change.unset) if name not in change.env)
    return replace(node, ranks=tuple(ranks), env={**env, **change.env}, unset=unset)


def _listen(
    link: NodeLink, run: str, journal: _NodeJournal, ends: float, given_up: Callable[[], bool]
) -> None:
    """Read a node's journal of the run to its end; once the time is over, kill it and read on."""
    killed = False
    with link.stream("follow", run=run, after=0) as stream, suppress(StopIteration):
        while not (journal.ended or given_up()):
            item = stream.take(TICK_SECONDS)
            if item is not None:
                for entry in item.entries:
                    journal.take(entry)
            elif time.monotonic() > ends:
                if killed:
                    return
                killed = True
                ends += KILL_SECONDS
                with suppress(NodeError):
                    link.request("kill", KILL_SECONDS, run=run)


@dataclass(slots=True)
class _NodeJournal:
    """One node's journal of the run."""

    ended: bool = False
    began: float | None = None
    refusal: str = ""
    _states: dict[int, StateEntry] = field(default_factory=dict)
    _logs: dict[tuple[int | None, str], list[str]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _chars: int = 0

    def take(self, entry: JournalEntry) -> None:
        self.began = entry.t if self.began is None else self.began
        match entry:
            case LogEntry() if self._chars < MAX_LOG_CHARS:
                self._chars += len(entry.text)
                self._logs[entry.rank, entry.stream].append(entry.text)
            case StateEntry():
                self._states[entry.rank] = entry
            case VerdictEntry(first_failure=FailedFirst(error=str(error))):
                # Of an engine, not of a rank (``engines.mpi`` of the agent).
                self.refusal = error if error.startswith("mpirun") else ""
            case EndEntry():
                self.ended = True
            case _:
                pass

    def lines(self, rank: int | None, stream: str) -> list[str]:
        text = "".join(self._logs.get((rank, stream), ()))
        return [line[:500] if stream == "err" else line for line in text.splitlines()]

    def engine_words(self) -> tuple[str, ...]:
        """Return the engine's last lines; of one that refused the reason, and its first lines."""
        lines = self.lines(None, "err")
        if self.refusal:
            return (self.refusal, *lines[: MAX_ERROR_LINES - 1])
        return tuple(lines[-MAX_ERROR_LINES:])

    def report(self, rank: int) -> RankReport:
        """Return what became of a rank; one that was killed by us has no exit code."""
        state = self._states.get(rank)
        code = None if state is None or state.state == KILLED else state.exit_code
        if code and state is not None and state.signal:
            code = -state.signal
        words, error = split_mpi_words([e for e in self.lines(rank, "err") if e.strip()])
        took = read_mpi_words(words, rank)
        return RankReport(
            rank=rank,
            exit_code=code,
            seconds=0.0 if state is None else max(0.0, state.t - (self.began or state.t)),
            said=(*_parse_lines(self.lines(rank, "out")), *([{"took": took}] if took else [])),
            error=tuple(error[-MAX_ERROR_LINES:]),
        )


def _parse_lines(lines: list[str]) -> Iterator[dict[str, object]]:
    for line in [line for line in lines if line.startswith(MARK)][:MAX_LINES]:
        with suppress(ValueError):
            said = json.loads(line.removeprefix(MARK))
            if isinstance(said, dict):
                yield said
