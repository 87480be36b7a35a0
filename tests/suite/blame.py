"""What must be so after a run whose rank 2, on the host node2, broke: of every engine the same."""

from distconsole.model.run_events import EndState, RankChanged, RankState, RunEnded, RunFinding
from suite.driving import Operator

ENDED = (RankState.FAILED, RankState.KILLED, RankState.EXITED)


def assert_rank_2_is_blamed(
    run: Operator, end: RunEnded, how: str, exit_code: int, error: str
) -> None:
    """Assert that rank 2 has the blame, as it broke, and that all three ranks have ended.

    Args:
        how: The line of the script that broke it; an exception's traceback has it.
        error: What the verdict says of it.
    """
    assert end.first_failure, end
    first = end.first_failure
    assert (end.state, end.exit_code) == (EndState.FAILED, exit_code)
    assert (first.rank, first.host, first.exit_code) == (2, "node2", exit_code)
    assert first.error == error
    if "Error" in error:
        (finding,) = [each for each in run.of(RunFinding) if each.check == "run.first_failure"]
        assert how in finding.seen
    assert {e.rank for e in run.of(RankChanged) if e.state in ENDED} == {0, 1, 2}
