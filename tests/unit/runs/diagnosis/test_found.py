"""Jobs of several hosts are put together and judged by the judge of runs; who is not seen is never said to be well."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from distconsole.model.diagnosis.diagnosis import Kind, Sure
from distconsole.rpc.frames import JobPart, Survey
from distconsole.runs.diagnosis.found import Found, join_surveys, judge_found
from suite.roll_calls import call_of

AT = {"waits": "all_reduce 7 train.py:88"}


def rank(number: int, words: dict[str, Any] | None = None, world: int = 4, **more: Any) -> Any:
    """Return a CALL as an agent tells it; without a stack where no words say where it is."""
    found = msgspec.to_builtins(call_of(number, words or {"at": "f train.py:1"}, world))
    found |= {"collectives": [], "stage": None, "silent_s": 80.0, "step": -1, "pid": 100 + number}
    return found | ({} if words else {"threads": [], "way": "proc"}) | more


def part(*ranks: Any, **more: Any) -> JobPart:
    fields = {"key": "k", "launcher": "torchrun", "script": "t.py", "here": False, "size": 4}
    return JobPart(ranks=ranks, **{**fields, **more})  # type: ignore[arg-type]


def joined(*parts: JobPart, **more: Any) -> list[Found]:
    return join_surveys(
        {f"n{at}": Survey(jobs=(each,), **more) for at, each in enumerate(parts, 1)}
    )


def test_the_ranks_of_all_hosts_are_one_job_and_the_one_that_is_elsewhere_is_named() -> None:
    sleeps = {"at": "load data.py:31"}
    (found,) = joined(part(rank(0, AT), rank(1, sleeps)), part(rank(2, AT), rank(3, AT)))
    made = judge_found(found, {})
    assert (made.ranks, made.hang, made.sure) == ((1,), True, Sure.LIKELY)
    assert "3 of 4 ranks wait in all_reduce at train.py:88. Rank 1 on n1" in f"{made.summary}"
    assert found.told(1).ranks == {"n1": {0: 100, 1: 101}, "n2": {2: 102, 3: 103}}


def test_a_stopped_rank_is_named_without_any_stack() -> None:
    idle = {"state": "S", "waits_for": {"kind": "socket", "what": ""}}
    (found,) = joined(part(*(rank(n, **idle) for n in (0, 2, 3)), rank(1, state="T")))
    made = judge_found(found, {})
    assert (made.kind, made.ranks, made.hang) == (Kind.STOPPED, (1,), True)


def test_without_stacks_what_the_kernel_says_is_told_and_nobody_is_blamed() -> None:
    idle = {"state": "S", "syscall": {"name": "futex"}, "main_cpu_s": 0.0, "over_s": 1.0}
    other = {**idle, "syscall": {"name": "clock_nanosleep"}}
    (found,) = joined(part(*(rank(n, **idle) for n in (0, 2, 3)), rank(1, **other)))
    made = judge_found(found, {})
    assert (made.kind, made.ranks, made.sure) == (Kind.UNDECIDED, (), Sure.UNKNOWN)
    assert "rank 1: state S in clock_nanosleep, no CPU; ranks 0,2-3: state S" in made.summary
    assert "py-spy" in made.hint


@pytest.mark.parametrize("away", [{}, {"n9": "timed out"}])
def test_a_rank_that_was_not_found_is_said_to_be_missing(away: dict[str, str]) -> None:
    (found,) = joined(part(*(rank(n, AT) for n in range(3))))
    made = judge_found(found, away)
    assert (made.ranks, found.told(1).missing) == ((3,), (3,))
    assert made.kind is (Kind.HOST_SILENT if away else Kind.NOT_STARTED)
    assert ("was not found on these hosts" in made.summary) is not bool(away)
    assert ("add the host that runs it" in made.hint) is not bool(away)


def test_a_rank_that_its_host_had_started_and_has_no_more_is_gone() -> None:
    (found,) = joined(part(*(rank(n, AT) for n in (0, 2, 3)), gone=(1,)))
    made = judge_found(found, {})
    assert (made.kind, made.ranks) == (Kind.FAILED, (1,))
    assert "distconsole logs" not in made.hint


def test_a_job_whose_ranks_run_on_is_not_said_to_hang() -> None:
    busy = [rank(n, AT, silent_s=0.0, stage="stepping" if n else None) for n in range(4)]
    (found,) = joined(part(*busy))
    made = judge_found(found, {})
    assert (made.kind, made.hang, made.sure) == (Kind.HEALTHY, False, Sure.CERTAIN)
    (found,) = joined(part(*(rank(n, silent_s=0.3) for n in range(4))))
    assert judge_found(found, {}).sure is Sure.LIKELY


def test_who_spins_in_one_place_is_no_hang_before_it_is_long() -> None:
    (found,) = joined(
        part(
            *(rank(n, AT, silent_s=0.0) for n in (0, 2, 3)),
            rank(1, {"at": "f d.py:3"}, silent_s=0.0),
        )
    )
    made = judge_found(found, {})
    assert (made.ranks, made.hang) == ((1,), False)


def test_spawned_ranks_go_on_behind_those_of_the_host_where_they_meet() -> None:
    counted = {"spawned": True, "size": 0}
    two = (rank(0, AT, 2), rank(1, AT, 2))
    (found,) = joined(part(*two, **counted), part(*two, **counted, leads=True))
    assert found.hosts == {0: "n2", 1: "n2", 2: "n1", 3: "n1"}
    assert found.world == 4


def test_jobs_that_mean_their_own_host_are_apart_and_our_own_come_last() -> None:
    jobs = joined(part(rank(0, AT), here=True, run="r-1"), part(rank(0, AT), here=True, size=1))
    assert [job.part.run for job in jobs] == ["", "r-1"]


def test_what_nccl_finds_is_evidence_and_blames_nobody() -> None:
    (found,) = joined(part(*(rank(n, AT) for n in range(4))), ras=("#0-0 MISMATCH: Rank 2",))
    made = judge_found(found, {})
    assert "NCCL RAS: #0-0 MISMATCH: Rank 2" in made.evidence
    assert made.ranks == ()
