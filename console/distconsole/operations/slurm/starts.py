"""The starts of a run in one Slurm job, which Slurm may requeue: what each is told. It submits nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from msgspec import UNSET

from distconsole.errors import ConsoleError
from distconsole.launch.job import new_run_id
from distconsole.launch.slurm.srun import Allocation, JobState
from distconsole.launch.slurm.submit import read_options, words_of
from distconsole.model.events import Event, Narration
from distconsole.model.findings import Severity
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run, Where
from distconsole.model.run_events import PlanMade, RunEnded, RunEvent
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource

ASK_SECONDS = 10.0
RESTART_VARIABLE, CHECKPOINT_VARIABLE = "DISTCONSOLE_RESTART", "DISTCONSOLE_CHECKPOINT"
"""As the shims set them for ``--max-restarts`` (``restarts.py`` of the agent)."""

Then = Callable[..., Iterator[Event]]
"""``launching.run`` on the hosts of a job: called with a request and ``allocation``."""


UNSEEN = "Slurm job {job} is over, and its nodes let nobody in who could read how the run ended"

OVER_SECONDS = 5.0
"""Slurm is not asked more often, while no node answers, whether the job is over."""


class Paced:
    """A question that is asked rarely, and not again once the answer was yes.

    Attributes:
        said: Whether it was.
    """

    def __init__(
        self, ask: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._next = 0.0
        self.said = False

    def __call__(self) -> bool:
        """Return the answer, as far as it is known."""
        if not self.said and self._clock() >= self._next:
            self.said = self._ask()
            self._next = self._clock() + OVER_SECONDS
        return self.said


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
        is_over: Says whether the job that was restarted so often has ended, or will be once more.
        code: The run whose code is taken again; None before the first start.
        last: The run before and the host of its first rank, while its checkpoint is not known.
    """

    request: Run
    run: RunId
    held: Held
    sessions: SessionSource
    control: Control
    then: Then
    is_over: Callable[[int], bool]
    number: int = 0
    code: RunId | None = None
    last: tuple[RunId, HostName] | None = None
    news: tuple[tuple[str, str], ...] = ()

    @property
    def may_be_requeued(self) -> bool:
        """Whether the job may start again, and somebody still wants that."""
        return (
            self.control.asked is None and read_options(words_of(self.request.slurm or "")).requeue
        )

    def start(
        self, state: JobState, named: Mapping[str, int | None]
    ) -> Generator[Event, None, RunEnded | None]:
        """Launch and follow on the job's nodes; return the end.

        Raises:
            ConsoleError: if the first start cannot be; a later one leaves the outcome as it was.
        """
        ended: RunEnded | None = None
        again = {"again": self.code} if self.code is not None else {}
        if self.last is not None and self.last[1] in state.nodes:
            path = self._learn_checkpoint()
            if path is not None:
                yield Narration(text=f"the checkpoint of the start before is {path}")
        over = Paced(partial(self.is_over, state.restarts))
        allocation = Allocation(
            self.held.job, held=True, run=self.run, asked=self.request, state=state, over=over
        )
        try:
            for event in self.then(self._placed(state, named), allocation=allocation, **again):
                self.held.used = self.held.used or _says_started(event)
                if isinstance(event, RunEnded) and event.error is UNSET:
                    ended = event
                yield event
        except ConsoleError as error:
            if not self.number:
                raise
            yield Narration(text=f"not started again: {error.message}", severity=Severity.FAIL)
        if over.said:
            yield Narration(text=UNSEEN.format(job=self.held.job), severity=Severity.WARN)
        self.held.used = self.held.used or self.request.detach
        return ended

    def prepare_next(self, ended: RunEnded, state: JobState) -> Iterator[Event]:
        """Keep what the next start is told, and say that there will be one."""
        self.number += 1
        self.held.used = False
        self.code = self.code or RunId(ended.run)
        self.last = (RunId(ended.run), HostName(state.nodes[0]))
        path = self._learn_checkpoint()
        self.run = new_run_id(self.request.script, self.request.name)
        since = f"with the checkpoint {path}" if path else "with no checkpoint that is known"
        said = f"Slurm requeued job {self.held.job}: start {self.number + 1} follows, {since}"
        yield Narration(text=said, severity=Severity.WARN)

    def _placed(self, state: JobState, named: Mapping[str, int | None]) -> Run:
        kept = tuple(pair for pair in self.request.env if pair[0] not in dict(self.news))
        where = hosts_of(self.request.where, state, named)
        return replace(self.request, where=where, slurm=None, env=(*kept, *self.news))

    def _learn_checkpoint(self) -> str | None:
        """Keep what the next start is told: the checkpoint of the last one, or of one before it.

        A host may let nobody in between two starts, and is asked again at the next.
        """
        found = self._checkpoint(*self.last) if self.last is not None else None
        self.last = None if found is not None else self.last
        path = found or dict(self.news).get(CHECKPOINT_VARIABLE)
        told = ((RESTART_VARIABLE, str(self.number)), (CHECKPOINT_VARIABLE, path or ""))
        self.news = tuple(pair for pair in told if pair[1])
        return path

    def _checkpoint(self, run: RunId, host: HostName) -> str | None:
        """Return what a run has left as its last checkpoint on the host of its first rank."""
        try:
            with self.sessions(replace(self.request.where, hosts=host)) as session:
                told = session.link(host).request("slurm", ASK_SECONDS, do="checkpoint", run=run)
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
