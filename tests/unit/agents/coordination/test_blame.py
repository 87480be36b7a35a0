"""The verdict from what is known: who failed first, and which code the run ends with."""

import pytest

from distconsole_agent.contract import records
from distconsole_agent.contract.runspec import NodeSpec
from distconsole_agent.coordination.blame import (
    BlamedRank,
    Evidence,
    Failure,
    NodeLost,
    RunVerdict,
    StopRequest,
    determine_verdict,
)

NODES = (NodeSpec("a", "10.0.0.1", (0, 1)), NodeSpec("b", "10.0.0.2", (2, 3)))
MS = 1_000_000


def failed(rank: int, t_ns: int, error: str = "ValueError: boom", **how: object) -> Failure:
    base = Failure(rank // 2, rank, 100 + rank, t_ns, 1, None, error, "")
    return base._replace(**how)  # type: ignore[arg-type]


def verdict(
    failures: tuple[Failure, ...] = (),
    stops: tuple[StopRequest, ...] = (),
    lost: tuple[NodeLost, ...] = (),
    offsets_ns: dict[int, int] | None = None,
    outlived: tuple[NodeLost, ...] = (),
) -> RunVerdict:
    return determine_verdict(Evidence(failures, stops, lost, offsets_ns or {}, outlived), NODES)


def blamed(*failures: Failure, **more: object) -> int:
    found = verdict(failures, **more).first_failure  # type: ignore[arg-type]
    return found.rank


def test_the_earliest_failure_is_the_first_and_gives_its_code() -> None:
    late, early = failed(0, 2000), failed(3, 1000, exit_code=3)
    assert verdict((late, early)) == RunVerdict(
        "failed", 3, BlamedRank(3, "b", 3, "ValueError: boom")
    )


def test_a_signal_is_in_the_verdict_only_where_there_was_one() -> None:
    first = verdict((failed(0, 1, signal=9, exit_code=137),)).first_failure
    assert first.signal == 9
    assert "signal" not in records.write(first._replace(signal=None))


def test_a_stop_before_a_loss_by_the_clock_of_who_reports_it_is_a_stop() -> None:
    lost, stop = (NodeLost(1, 5_000 * MS),), (StopRequest(0, 4_000 * MS, "user"),)
    assert verdict(stops=stop, lost=lost, offsets_ns={1: -3_600_000 * MS}).state == "stopped"
    assert verdict(stops=stop, lost=(NodeLost(1, 3_000 * MS),)).state == "failed"


def test_clocks_are_corrected_before_times_are_compared() -> None:
    on_a, on_b = failed(0, 10_000 * MS), failed(2, 9_000 * MS)
    assert blamed(on_a, on_b) == 2
    assert blamed(on_a, on_b, offsets_ns={1: 1_001 * MS}) == 0
    assert blamed(on_a, on_b, offsets_ns={1: 999 * MS}) == 2


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or "
        "there was a network error, ncclRemoteError: A call failed possibly due to a network error",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "RuntimeError: [1] is setting up NCCL communicator: Broken pipe",
        "horovod.common.exceptions.HorovodInternalError: HorovodAllreduce failed",
        "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks.",
        "mpirun exited with code 1",
        "mpirun ended, and rank 0 had not said how it ended",
    ],
)
def test_a_victim_does_not_take_the_blame_though_it_noticed_first(error: str) -> None:
    victim = failed(0, 1000 * MS, error)
    killed = failed(2, 1030 * MS, "killed by SIGKILL", signal=9, exit_code=137)
    assert blamed(victim, killed) == 2
    assert blamed(victim) == 0


def test_a_chained_consequence_in_the_traceback_is_one_too() -> None:
    victim = failed(
        0,
        1000 * MS,
        "TrainError: step failed",
        traceback="ConnectionResetError: x\n\nDuring handling of the above exception, ...",
    )
    assert blamed(victim, failed(2, 1030 * MS)) == 2


def test_what_a_killed_rank_printed_before_takes_no_blame_from_it() -> None:
    victim = failed(0, 1000 * MS, "ConnectionError: connection closed by peer")
    of_the_round_before = "ConnectionResetError: [Errno 104] Connection reset by peer"
    killed = failed(2, 1030 * MS, "killed by SIGKILL", signal=9, traceback=of_the_round_before)
    assert blamed(victim, killed) == 2
    aborted = failed(2, 1030 * MS, "killed by SIGABRT", signal=6, traceback=of_the_round_before)
    assert blamed(victim, aborted) == 0


def test_of_victims_the_one_that_knows_the_culprit_or_is_it_is_named() -> None:
    error = "ConnectionError: connection closed by peer"
    known = failed(2, 1030 * MS, error, traceback="rank 3 had ended before (exited with code 0)")
    assert blamed(failed(0, 1000 * MS, error), known) == 2
    passed = "Rank 3 successfully reached monitoredBarrier, but received errors: connection closed by peer"
    absent = "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 4 ms\ngloo/transport: timed out"
    assert blamed(failed(3, 990 * MS, passed), failed(0, 1000 * MS, absent)) == 0
    checkpoint = "Traceback (most recent call last): (RANK 2)\nOSError: no space"
    told = [failed(rank, rank * MS, traceback=checkpoint) for rank in (0, 2)]
    assert (blamed(*told), blamed(told[0], failed(2, 2 * MS))) == (2, 0)


def test_what_fails_much_later_is_not_the_cause_of_a_broken_connection() -> None:
    broken = failed(0, 0, "ConnectionResetError: x")
    assert blamed(broken, failed(2, 60_000 * MS)) == 0


def test_what_breaks_while_a_run_is_stopped_is_no_failure() -> None:
    stop = StopRequest(0, 1000, "sigint")
    assert verdict((failed(0, 1500),), (stop,)) == RunVerdict("stopped", 130, None)
    assert verdict((failed(0, 500),), (stop,)).state == "failed"


def test_the_first_stop_gives_the_code() -> None:
    stops = (StopRequest(0, 2000, "user"), StopRequest(1, 1000, "sigint"))
    assert verdict(stops=stops).exit_code == 130
    assert verdict(stops=stops, offsets_ns={1: 5000}).exit_code == 143


def test_a_lost_node_fails_the_run_in_the_name_of_its_first_rank() -> None:
    judged = verdict(lost=(NodeLost(1, 1000),))
    assert (judged.state, judged.exit_code) == ("failed", 1)
    assert judged.first_failure.rank == 2
    assert judged.first_failure.error == "node b lost"


def test_a_lost_node_has_the_blame_for_connections_but_not_for_errors() -> None:
    lost = (NodeLost(1, 40_000 * MS),)
    broken = failed(0, 1000 * MS, "RuntimeError: Connection closed by peer")
    assert verdict((broken,), lost=lost).first_failure.error == "node b lost"  # type: ignore[index]
    assert verdict((failed(0, 1000 * MS),), lost=lost).first_failure.rank == 0  # type: ignore[index]


def test_a_node_whose_loss_the_run_outlived_is_not_blamed() -> None:
    assert verdict(outlived=(NodeLost(1, 1000),)) == RunVerdict("succeeded", 0, None)
    assert blamed(failed(0, 2000), outlived=(NodeLost(1, 1000),)) == 0


@pytest.mark.parametrize(("seconds_later", "rank"), [(1, 2), (59, 2), (61, 0)])
def test_what_comes_long_after_an_outlived_loss_is_not_its(seconds_later: int, rank: int) -> None:
    reset = failed(0, seconds_later * 1000 * MS, "RuntimeError: Connection reset by peer")
    assert blamed(reset, outlived=(NodeLost(1, 0),)) == rank


GLOO = "what():  [enforce fail at /gloo/transport/tcp/pair.cc:456] 64 vs 32. Received data size doesn't match expected size."
HOROVOD = "HorovodInternalError: Mismatched ALLREDUCE tensor shapes: One rank sent [8], but another rank sent [16]."


@pytest.mark.parametrize("error", [GLOO, HOROVOD])
def test_who_notices_that_ranks_disagree_has_no_blame(error: str) -> None:
    reset = failed(0, 900 * MS, "RuntimeError: Connection closed by peer")
    first = verdict((reset, failed(3, 1000 * MS, error))).first_failure
    assert first.error.startswith("ranks disagree in a collective; rank 3 on b noticed it")
    assert error in first.error


def test_a_rank_that_raised_is_to_blame_for_the_collective_of_its_teardown() -> None:
    assert blamed(failed(3, 1000 * MS, GLOO), failed(1, 1020 * MS)) == 1


def said_by_torch(rank: int, other: int) -> Failure:
    words = f"Rank {rank} is running collective: (TensorShape=[8]), but Rank {other} is running collective: ()"
    return failed(rank, rank, f"Detected mismatch between collectives on ranks. {words}")


def test_the_rank_that_differs_from_two_others_is_named_whoever_failed_first() -> None:
    pairs = (said_by_torch(0, 3), said_by_torch(1, 3), said_by_torch(3, 0))
    found = verdict(pairs).first_failure
    assert (found.rank, found.host) == (3, "b")
    assert "ranks disagree" not in found.error
    alone = verdict(pairs[2:]).first_failure
    assert alone.error.startswith("ranks disagree in a collective; rank 3 on b noticed it")
