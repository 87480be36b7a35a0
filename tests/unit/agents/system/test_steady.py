"""Times that can be compared although a clock is set: two clocks that are moved by hand.
Claims about what nodes do at the same moment.
"""

import pytest

from distconsole_agent.system.steady import EARLY_SECONDS, STEP_NS, SteadyClock, to_next_second

SECOND = 10**9
HOUR = 3600 * SECOND
BOOTED = 1_700_000_000 * SECOND


class Clocks:
    """The node's clocks; ``set`` by so many nanoseconds, the wall clock is ahead from then on."""

    def __init__(self) -> None:
        self.since_boot = 500 * SECOND
        self.set = 0
        self.steady = SteadyClock(self.wall, lambda: self.since_boot)

    def wall(self) -> int:
        return BOOTED + self.since_boot + self.set

    def wait(self, seconds: int) -> None:
        """Let time go by, of which the clock is looked at every second."""
        for _ in range(seconds):
            self.since_boot += SECOND
            self.steady.look()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_it_is_the_wall_clock_as_long_as_nobody_sets_that(clocks: Clocks) -> None:
    clocks.wait(10)
    assert clocks.steady.now_ns() == clocks.wall()
    assert clocks.steady.of_wall(clocks.wall() - SECOND) == clocks.wall() - SECOND
    assert clocks.steady.to_wall(clocks.steady.now_ns()) == clocks.wall()


@pytest.mark.parametrize("step", [HOUR, -HOUR, 2 * SECOND])
def test_what_was_noted_before_and_after_a_step_keeps_its_order(clocks: Clocks, step: int) -> None:
    clocks.wait(7200)
    began = clocks.steady.now_ns()
    before = clocks.wall()
    clocks.wait(1)
    clocks.set = step
    clocks.wait(3)
    after = clocks.wall()
    clocks.wait(3)
    assert clocks.steady.now_ns() == began + 7 * SECOND
    assert clocks.steady.of_wall(before) == began
    assert clocks.steady.of_wall(after) == began + 4 * SECOND
    assert clocks.steady.to_wall(clocks.steady.now_ns()) == clocks.wall()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_not_looked_at_yet_is_seen_when_it_matters(clocks: Clocks, step: int) -> None:
    clocks.wait(5)
    before = clocks.wall()
    now = clocks.steady.now_ns()
    clocks.since_boot += SECOND // 2
    clocks.set = step
    assert clocks.steady.of_wall(before) == now


def test_a_clock_that_is_set_there_and_back_is_followed(clocks: Clocks) -> None:
    noted = []
    for step in (0, HOUR, -HOUR, 0, HOUR):
        clocks.set = step
        clocks.wait(5)
        noted.append((clocks.wall(), clocks.steady.now_ns()))
        clocks.wait(5)
    assert [clocks.steady.of_wall(wall) for wall, _ in noted] == [steady for _, steady in noted]


def test_a_time_that_never_was_is_now(clocks: Clocks) -> None:
    clocks.wait(5)
    assert clocks.steady.of_wall(clocks.wall() + HOUR) == clocks.steady.now_ns()


def test_a_clock_that_is_only_slewed_is_no_step(clocks: Clocks) -> None:
    noted = clocks.wall()
    clocks.set = STEP_NS // 2
    clocks.wait(1)
    assert clocks.steady.of_wall(noted) == noted


@pytest.mark.parametrize("t", [0.0, 17.25, 1_763_700_000.5, 1_763_700_000.89])
def test_it_goes_on_at_a_whole_second(t: float) -> None:
    assert (t + to_next_second(t)) % 1.0 == pytest.approx(0.0, abs=1e-6)
    assert EARLY_SECONDS <= to_next_second(t) <= 1.0 + EARLY_SECONDS
    assert to_next_second(16.999) == pytest.approx(1.001), "who wakes early does not do it twice"
