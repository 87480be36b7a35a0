"""What the starts of a run in a job that Slurm requeues are told; no host is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from distconsole.cli.main import exit_code_of
from distconsole.errors import UnreachableError
from distconsole.launch.slurm.srun import Allocation, JobState
from distconsole.model.cluster import Host
from distconsole.model.events import Event, Narration
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run, Where
from distconsole.model.run_events import EndState, RunEnded
from distconsole.operations import Control
from distconsole.operations.launch.submitted import OVER_SECONDS, AskRarely, SubmittedRun

STATE = JobState("RUNNING", nodes=("n1", "n2"))


class Queue:
    """A link to a host with Slurm's commands, which answer one state of job 7 after the other, then the last."""

    host = Host(HostName("login"))

    def __init__(self, *states: str) -> None:
        self.states = list(states)

    def request(self, _op: str, _seconds: float, **_arguments: Any) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {"text": f"JobState={state} Reason=None Restarts=0 NodeList=n[1-2] NumTasks=2"}


class Nodes:
    """Sessions with hosts that let nobody in for a while, and then tell of a checkpoint."""

    def __init__(self, closed: int, path: str) -> None:
        self.closed, self.path = closed, path
        self.asked: list[dict[str, Any]] = []

    @contextmanager
    def __call__(self, where: Where) -> Iterator[Nodes]:
        self.closed -= 1
        if self.closed >= 0:
            raise UnreachableError(f"{where.hosts} lets nobody in")
        yield self

    def link(self, _host: str) -> Nodes:
        return self

    def request(self, _op: str, _seconds: float, **arguments: Any) -> dict[str, Any]:
        self.asked.append(arguments)
        return {"path": self.path}


def ended(run: str) -> RunEnded:
    return RunEnded(t=1.0, run=run, state=EndState.FAILED, exit_code=143, seconds=1.0)


def starts(nodes: Nodes, placed: list[Run]) -> SubmittedRun:
    def then(request: Run, **_options: Any) -> Iterator[Event]:
        placed.append(request)
        yield ended(f"run-{len(placed)}")

    asked = Run("t.py", slurm="--requeue", env=(("A", "1"), ("DISTCONSOLE_RESTART", "x")))
    link = nodes.link("login")
    return SubmittedRun(asked, RunId("run-1"), "7", link, nodes, Control(), then)  # type: ignore[arg-type]


def test_a_start_is_told_which_it_is_and_where_to_go_on() -> None:
    placed: list[Run] = []
    nodes = Nodes(0, "/shared/step-3.pt")
    run = starts(nodes, placed)
    list(run.start(STATE, {"n2": 3}))
    (said,) = [e.text for e in run.prepare_next(ended("run-1"), STATE) if isinstance(e, Narration)]
    list(run.start(STATE, {}))
    assert placed[0].where.hosts == "n1,n2:3"
    assert placed[0].env == (("A", "1"), ("DISTCONSOLE_RESTART", "x"))
    told = {"A": "1", "DISTCONSOLE_RESTART": "1", "DISTCONSOLE_CHECKPOINT": "/shared/step-3.pt"}
    assert dict(placed[1].env) == told
    assert said == "Slurm requeued job 7: start 2 follows, with the checkpoint /shared/step-3.pt"
    assert nodes.asked == [{"do": "checkpoint", "run": "run-1"}]
    assert not run.used


def test_a_host_that_let_nobody_in_is_asked_again_when_it_is_the_jobs() -> None:
    placed: list[Run] = []
    run = starts(Nodes(1, "/shared/step-3.pt"), placed)
    list(run.start(STATE, {}))
    list(run.prepare_next(ended("run-1"), STATE))
    list(run.start(JobState("RUNNING", nodes=("n5",)), {}))
    list(run.start(STATE, {}))
    assert "DISTCONSOLE_CHECKPOINT" not in dict(placed[1].env)
    assert dict(placed[2].env)["DISTCONSOLE_CHECKPOINT"] == "/shared/step-3.pt"


# EXPEDITING is of 25.11 and newer, the other states of 22.05 too.
@pytest.mark.parametrize("state", ["EXPEDITING", "RESV_DEL_HOLD", "SUSPENDED", "OF_A_LATER_SLURM"])
def test_only_a_job_that_has_ended_is_not_waited_for(state: str) -> None:
    placed: list[Run] = []
    run = starts(Nodes(0, ""), placed)
    run.link = Queue("PENDING", state, "RUNNING", "COMPLETING", state, "FAILED")  # type: ignore[assignment]
    run.request = Run("t.py", slurm="-N2")
    list(run.follow({}))
    assert [each.where.hosts for each in placed] == ["n1,n2"]


def test_a_job_that_slurm_expedites_is_started_again() -> None:
    placed: list[Run] = []
    run = starts(Nodes(0, ""), placed)
    run.request = Run("t.py", slurm="-N2 --requeue=expedite")
    states = (
        "RUNNING",
        "COMPLETING",
        "SIGNALING",
        "EXPEDITING",
        "PENDING",
        "RUNNING",
        "COMPLETED",
    )
    run.link = Queue(*states)  # type: ignore[assignment]
    list(run.follow({}))
    assert len(placed) == 2


@pytest.mark.parametrize(
    ("state", "over"),
    [("SUSPENDED", False), ("SIGNALING", False), ("COMPLETING", False), ("EXPEDITING", True), ("TIMEOUT", True)],
)  # fmt: skip
def test_a_job_is_over_when_it_has_ended_or_will_be_started_again(state: str, over: bool) -> None:
    run, answers = starts(Nodes(0, ""), []), list[bool]()

    def ask(_request: Run, allocation: Allocation, **_options: Any) -> Iterator[Event]:
        answers.append(allocation.over())
        yield ended("run-1")

    run.run_on_nodes = ask
    run.link = Queue(state)  # type: ignore[assignment]
    list(run.start(STATE, {}))
    assert answers == [over]


def test_slurm_is_asked_rarely_whether_a_job_is_over() -> None:
    answers, clock = [False, True], [0.0]
    over = AskRarely(lambda: answers.pop(0), lambda: clock[0])
    assert [over(), over()] == [False, False]
    assert len(answers) == 1
    clock[0] = OVER_SECONDS
    assert [over(), over()] == [True, True]
    assert over.yes


def test_a_later_start_that_cannot_be_leaves_the_outcome_of_the_one_before() -> None:
    nodes = Nodes(0, "")
    run = starts(nodes, [])
    refused = RunEnded(
        t=1.0, run="run-2", state=EndState.FAILED, exit_code=3, seconds=0.0, error="n1 is away"
    )

    def then(_request: Run, **_options: Any) -> Iterator[Event]:
        yield refused
        raise UnreachableError("n1 is away")

    run.run_on_nodes, run.number = then, 1
    outcomes: list[RunEnded | None] = []

    def whole() -> Iterator[Event]:
        outcomes.append((yield from run.start(STATE, {})))

    seen = list(whole())
    assert outcomes == [None]
    assert seen[0] is refused
    assert [exit_code_of(event) for event in seen] == [None, None]
