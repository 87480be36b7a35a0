"""What the starts of a run in a job that Slurm requeues are told; no host is asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from distconsole.cli.main import exit_code_of
from distconsole.errors import UnreachableError
from distconsole.model.cluster import Host
from distconsole.model.events import Event, Narration
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run, Where
from distconsole.model.run_events import EndState, RunEnded
from distconsole.operations import Control
from distconsole.operations.launch.submitted import OVER_SECONDS, SubmittedRun


class Queue:
    """A link to a host with Slurm's commands, which answer one state of job 7 after the other, then the last.

    A state may name the job's nodes: ``RUNNING n5``.
    """

    host = Host(HostName("login"))

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.requests = 0

    def request(self, _op: str, _seconds: float, **_arguments: Any) -> dict[str, Any]:
        self.requests += 1
        said = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        state, _, nodes = said.partition(" ")
        nodes = nodes or "n[1-2]"
        return {"text": f"JobState={state} Reason=None Restarts=0 NodeList={nodes} NumTasks=2"}


class Nodes:
    """Sessions with hosts that let nobody in for a while, and then tell of a checkpoint."""

    def __init__(self, closed: int, path: str) -> None:
        self.closed, self.path = closed, path
        self.asked: list[dict[str, Any]] = []

    @contextmanager
    def __call__(self, where: Where) -> Iterator["Nodes"]:
        self.closed -= 1
        if self.closed >= 0:
            raise UnreachableError(f"{where.hosts} lets nobody in")
        yield self

    def link(self, _host: str) -> "Nodes":
        return self

    def request(self, _op: str, _seconds: float, **arguments: Any) -> dict[str, Any]:
        self.asked.append(arguments)
        return {"path": self.path}


def ended(run: str) -> RunEnded:
    return RunEnded(t=1.0, run=run, state=EndState.FAILED, exit_code=143, seconds=1.0)


def job_on(queue: Queue, nodes: Nodes | None = None, slurm: str = "--requeue") -> SubmittedRun:
    asked = Run("t.py", slurm=slurm, env=(("A", "1"), ("DISTCONSOLE_RESTART", "x")))
    sessions: Any = nodes or Nodes(0, "")
    link: Any = queue
    return SubmittedRun(asked, RunId("run-1"), {"n2": 3}, "7", link, sessions, Control())


def follow(job: SubmittedRun) -> tuple[list[Run], list[str]]:
    """Let every start of ``job`` fail; return their requests, and what was narrated."""
    placed = list[Run]()

    def whole() -> Iterator[Event]:
        while (request := (yield from job.next_start())) is not None:
            placed.append(request)
            yield from job.watch(iter([ended(f"run-{len(placed)}")]))

    texts = [event.text for event in whole() if isinstance(event, Narration)]
    return placed, texts


def test_a_start_is_told_which_it_is_and_where_to_go_on() -> None:
    nodes = Nodes(0, "/shared/step-3.pt")
    job = job_on(Queue("RUNNING", "PENDING", "RUNNING", "COMPLETED"), nodes)
    placed, texts = follow(job)
    assert placed[0].where.hosts == "n1,n2:3"
    assert placed[0].env == (("A", "1"), ("DISTCONSOLE_RESTART", "x"))
    told = {"A": "1", "DISTCONSOLE_RESTART": "1", "DISTCONSOLE_CHECKPOINT": "/shared/step-3.pt"}
    assert dict(placed[1].env) == told
    said = "Slurm requeued job 7: start 2 follows, with the checkpoint /shared/step-3.pt"
    assert said in texts
    assert nodes.asked == [{"do": "checkpoint", "run": "run-1"}]
    assert not job.used


def test_a_host_that_let_nobody_in_is_asked_again_when_it_is_the_jobs() -> None:
    nodes = Nodes(2, "/shared/step-3.pt")
    states = ("RUNNING", "PENDING", "RUNNING n5", "PENDING", "RUNNING n5", "COMPLETED")
    placed, _ = follow(job_on(Queue(*states), nodes))
    assert "DISTCONSOLE_CHECKPOINT" not in dict(placed[1].env)
    assert dict(placed[2].env)["DISTCONSOLE_CHECKPOINT"] == "/shared/step-3.pt"
    assert nodes.asked == [{"do": "checkpoint", "run": "run-2"}]


# EXPEDITING is of 25.11 and newer, the other states of 22.05 too.
@pytest.mark.parametrize("state", ["EXPEDITING", "RESV_DEL_HOLD", "SUSPENDED", "OF_A_LATER_SLURM"])
def test_only_a_job_that_has_ended_is_not_waited_for(state: str) -> None:
    queue = Queue("PENDING", state, "RUNNING", "COMPLETING", state, "FAILED")
    placed, _ = follow(job_on(queue, slurm="-N2"))
    assert [each.where.hosts for each in placed] == ["n1,n2:3"]


def test_a_job_that_slurm_expedites_is_started_again() -> None:
    states = (
        "RUNNING",
        "COMPLETING",
        "SIGNALING",
        "EXPEDITING",
        "PENDING",
        "RUNNING",
        "COMPLETED",
    )
    placed, _ = follow(job_on(Queue(*states), slurm="-N2 --requeue=expedite"))
    assert len(placed) == 2


@pytest.mark.parametrize(
    ("state", "over"),
    [("SUSPENDED", False), ("SIGNALING", False), ("COMPLETING", False), ("EXPEDITING", True), ("TIMEOUT", True)],
)  # fmt: skip
def test_a_job_is_over_when_it_has_ended_or_will_be_started_again(state: str, over: bool) -> None:
    job = job_on(Queue("RUNNING", state))
    list(job.next_start())
    assert job.is_over() is over


def test_slurm_is_asked_rarely_whether_a_job_is_over() -> None:
    queue, clock = Queue("RUNNING", "RUNNING", "COMPLETED"), [1.0]
    job = job_on(queue)
    job.clock = lambda: clock[0]
    list(job.next_start())
    assert [job.is_over(), job.is_over()] == [False, False]
    clock[0] += OVER_SECONDS
    assert [job.is_over(), job.is_over()] == [True, True]
    assert queue.requests == 3


def test_a_later_start_that_cannot_be_leaves_the_outcome_of_the_one_before() -> None:
    job = job_on(Queue("RUNNING"))
    job.number = 1
    refused = RunEnded(
        t=1.0, run="run-2", state=EndState.FAILED, exit_code=3, seconds=0.0, error="n1 is away"
    )

    def then() -> Iterator[Event]:
        yield refused
        raise UnreachableError("n1 is away")

    seen = list(job.watch(then()))
    assert job.ended is None
    assert seen[0] is refused
    assert [exit_code_of(event) for event in seen] == [None, None]
