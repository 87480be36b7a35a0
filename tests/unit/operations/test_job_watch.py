"""A job that nobody prepared is told as a run: its ranks, its lines once, its GPUs; and its end when all are gone."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from distconsole.model.events import HostStatus
from distconsole.model.run_events import GpuSample, LinkChanged, LogLine, RankChanged
from distconsole.operations.job_watch import GONE_SECONDS, Followed
from distconsole.rpc.frames import JobPart, LogPart, Survey
from distconsole.runs.diagnosis.found import join_surveys
from fakes.blank import blank


def survey(*pids: int, first: int = 0, logs: tuple[LogPart, ...] = (), key: str = "k") -> Survey:
    ranks = [{"rank": first + at, "pid": pid, "alive": True} for at, pid in enumerate(pids)]
    part = JobPart(key=key, launcher="torchrun", script="t.py", here=False, size=4, ranks=ranks)
    return Survey(jobs=(part,) if pids else (), logs=logs)


def log(*lines: str, inode: int = 7, ranks: tuple[int, ...] = (0,), **more: Any) -> LogPart:
    told = {"key": "k", "path": "/home/u/out.log", "stream": "out", "next": 9, **more}
    return LogPart(inode=inode, ranks=ranks, output="".join(f"{line}\n" for line in lines), **told)


def followed() -> Followed:
    surveys = {"n1": survey(11, 12), "n2": survey(11, 12, first=2)}
    (found,) = join_surveys(surveys)
    made = Followed(found)
    for host, told in surveys.items():
        list(made.take(host, told))
    return made


def test_ranks_begin_are_replaced_and_end() -> None:
    surveys = {"n1": survey(11, 12), "n2": survey(11, 12, first=2)}
    (found,) = join_surveys(surveys)
    made = Followed(found)
    plan = made.plan()
    assert (plan.run, plan.world_size, plan.found) == ("torchrun-t.py", 4, True)
    assert [(host.host, host.ranks) for host in plan.hosts] == [("n1", (0, 1)), ("n2", (2, 3))]
    told = [event for host, each in surveys.items() for event in made.take(host, each)]
    assert [(event.rank, event.state) for event in told if isinstance(event, RankChanged)] == [
        (rank, "running") for rank in range(4)
    ]
    told = [*made.take("n2", survey(11, 99, first=2)), *made.take("n1", survey(11))]
    assert [(e.rank, e.pid, e.state) for e in told if isinstance(e, RankChanged)] == [
        (3, 99, "running"),
        (1, 12, "exited"),
    ]


def test_a_job_is_over_once_all_its_processes_are_gone_for_a_while() -> None:
    made = followed()
    list(made.take("n1", survey()))
    assert not made.over
    list(made.take("n2", survey()))
    assert not made.over
    made.gone_at = (made.gone_at or 0.0) - GONE_SECONDS
    assert made.over
    list(made.take("n1", survey(50, 51)))
    assert not made.over


def test_a_file_that_hosts_share_is_told_once_and_lines_of_other_jobs_are_not() -> None:
    made = followed()
    first = survey(11, 12, logs=(log("a", "b"), log("c", inode=8, key="other")))
    lines = [event for event in made.take("n1", first) if isinstance(event, LogLine)]
    assert [(line.line, line.rank, line.host) for line in lines] == [
        ("a", 0, "n1"),
        ("b", 0, "n1"),
    ]
    second = survey(
        11, 12, first=2, logs=(log("a", "b", ranks=(2,)), log("d", inode=9, ranks=(2,)))
    )
    lines = [event for event in made.take("n2", second) if isinstance(event, LogLine)]
    assert [(line.line, line.rank) for line in lines] == [("d", 2)]
    lines = [
        e for e in made.take("n1", survey(11, 12, logs=(log("e"),))) if isinstance(e, LogLine)
    ]
    assert [(line.line, line.rank) for line in lines] == [("e", UNSET)]


def test_its_own_processes_are_no_strangers_on_a_gpu() -> None:
    sample = blank(
        GpuSample,
        t=1.0,
        host="n2",
        util=1.0,
        mem_used=1,
        mem_total=2,
        strangers=("12 u python", "77 v other"),
    )
    (told,) = followed().take("n2", [sample])
    assert isinstance(told, GpuSample)
    assert (told.run, told.rank, told.strangers) == ("torchrun-t.py", 3, ("77 v other",))


def test_a_host_that_is_lost_is_told_once_and_when_it_is_there_again() -> None:
    made, lost = followed(), HostStatus(host="n1", reachable=False, detail="timed out")
    there = HostStatus(host="n1", reachable=True)
    told = [event for news in (there, lost, lost, there) for event in made.take("n1", news)]
    assert [event.connected for event in told if isinstance(event, LinkChanged)] == [False, True]
