"""The starts of a run in one Slurm job, which Slurm may requeue: what each is told. It submits nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from distconsole.errors import ConsoleError
from distconsole.launch.identity import new_run_id
from distconsole.launch.slurm import Allocation, JobState
from distconsole.launch.slurm_submit import asked_of, words_of
from distconsole.model.events import Event, Narration, PlanMade, RunEnded, RunEvent
from distconsole.model.findings import Severity
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run, Where
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource

ASK_SECONDS = 10.0
RESTART_VARIABLE, CHECKPOINT_VARIABLE = "DISTCONSOLE_RESTART", "DISTCONSOLE_CHECKPOINT"
"""As the shims set them for ``--max-restarts`` (``restarts.py`` of the agent)."""

Then = Callable[..., Iterator[Event]]
"""``launching.run`` on the hosts of a job: called with a request and ``allocation``."""


@dataclass
class Held:
    """A job that was submitted; ``used`` once a run of ours ends it by itself."""

    job: str
    used: bool = False


@dataclass
class Starts:
    """A request, and what its next start in the job is told.

    Attributes:
        run: The id of the next start; the job is named after the first.
        code: The run whose code is taken again; None before the first start.
    """

    request: Run
    run: RunId
    held: Held
    sessions: SessionSource
    control: Control
    then: Then
    number: int = 0
    code: RunId | None = None
    news: tuple[tuple[str, str], ...] = ()

    @property
    def may_be_requeued(self) -> bool:
        """Whether the job may start again, and somebody still wants that."""
        return self.control.asked is None and asked_of(words_of(self.request.slurm or "")).requeue

    def start(
        self, state: JobState, named: Mapping[str, int | None]
    ) -> Generator[Event, None, RunEnded | None]:
        """Launch and follow on the job's nodes; return the end.

        Raises:
            ConsoleError: if the first start cannot be; a later one leaves the outcome as it was.
        """
        ended: RunEnded | None = None
        again = {"again": self.code} if self.code is not None else {}
        allocation = Allocation(
            self.held.job, held=True, run=self.run, asked=self.request, state=state
        )
        try:
            for event in self.then(self._placed(state, named), allocation=allocation, **again):
                self.held.used = self.held.used or _says_started(event)
                ended = event if isinstance(event, RunEnded) else ended
                yield event
        except ConsoleError as error:
            if not self.number:
                raise
            yield Narration(text=f"not started again: {error.message}", severity=Severity.FAIL)
        self.held.used = self.held.used or self.request.detach
        return ended

    def prepare_next(self, ended: RunEnded, state: JobState) -> Iterator[Event]:
        """Keep what the next start is told, and say that there will be one."""
        self.number += 1
        self.held.used = False
        self.code = self.code or RunId(ended.run)
        path = self._checkpoint(RunId(ended.run), state)
        path = path or dict(self.news).get(CHECKPOINT_VARIABLE)
        told = ((RESTART_VARIABLE, str(self.number)), (CHECKPOINT_VARIABLE, path or ""))
        self.news = tuple(pair for pair in told if pair[1])
        self.run = new_run_id(self.request.script, self.request.name, datetime.now().astimezone())
        since = f"with the checkpoint {path}" if path else "with no checkpoint that is known"
        said = f"Slurm requeued job {self.held.job}: start {self.number + 1} follows, {since}"
        yield Narration(text=said, severity=Severity.WARN)

    def _placed(self, state: JobState, named: Mapping[str, int | None]) -> Run:
        kept = tuple(pair for pair in self.request.env if pair[0] not in dict(self.news))
        where = hosts_of(self.request.where, state, named)
        return replace(self.request, where=where, slurm=None, env=(*kept, *self.news))

    def _checkpoint(self, run: RunId, state: JobState) -> str | None:
        """Return what the job has left as its last checkpoint on the node of its first rank."""
        first = HostName(state.nodes[0])
        where = self._placed(state, {}).where
        try:
            with self.sessions(replace(where, hosts=first)) as session:
                told = session.link(first).request("slurm", ASK_SECONDS, do="checkpoint", run=run)
        except ConsoleError:
            return None
        path = told.get("path")
        return path if isinstance(path, str) else None


def hosts_of(where: Where, state: JobState, named: Mapping[str, int | None]) -> Where:
    """Return the job's nodes as ``--hosts``, with the slots that were given."""
    words = [f"{node}:{slots}" if (slots := named.get(node)) else node for node in state.nodes]
    return replace(where, hosts=",".join(words), hostfile=None, cluster=None)


def _says_started(event: Event) -> bool:
    """Whether ``event`` comes from what runs on the nodes."""
    return isinstance(event, RunEvent) and not isinstance(event, PlanMade | RunEnded)
