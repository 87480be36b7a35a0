"""The steps of made-up event sequences."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from distconsole_training.loss import NOT_LOOKED_AT, LateMean, loss_of_step
from distconsole_training.records import MICRO, SKIPPED
from distconsole_training.steps import ACCUMULATED, SINGLES, Steps, Sums

FIELDS = [
    "ended",
    "flags",
    "samples",
    "seconds",
    "data",
    "forward",
    "backward",
    "optimizer",
    "loss",
]


@dataclass
class Script:
    """Plays a training script with a clock that it moves itself, in milliseconds."""

    emitted: list[dict[str, Any]] = field(default_factory=list)
    now: int = 1_000_000
    calls: int = 0

    def __post_init__(self) -> None:
        self.steps = Steps(self.emit, lambda: self.calls)

    def emit(self, *values: Any) -> None:
        self.emitted.append(dict(zip(FIELDS, values, strict=True)))

    def passes(self, milliseconds: int = 1) -> int:
        self.now += milliseconds * 1_000_000
        return self.now

    def asks(self, source: int = 1) -> None:
        self.steps.fetch_begins(source, self.now)

    def fetches(self, source: int = 1, samples: int = 8) -> None:
        began = self.passes()
        self.asks(source)
        self.steps.fetch_ended(source, began, self.passes(2), samples)

    def backward(self, loss: float | None = 0.5, divisor: float | None = NOT_LOOKED_AT) -> None:
        self.steps.backward_begins(self.passes(3), (loss, divisor))
        self.steps.backward_ends(self.passes(4))

    def optimizes(self, optimizer: int = 7, inside: Callable[[], None] | None = None) -> None:
        self.begins(optimizer)
        if inside is not None:
            inside()
        self.steps.optimizer_ends(optimizer, self.passes(5))
        self.calls -= 1

    def begins(self, optimizer: int = 7) -> None:
        self.calls += 1
        self.steps.optimizer_begins(optimizer, self.passes())

    def trains(
        self, times: int = 1, *, source: int = 1, samples: int = 8, loss: float = 0.5
    ) -> None:
        for _ in range(times):
            self.fetches(source, samples)
            self.backward(loss)
            self.optimizes()

    def column(self, name: str) -> list[Any]:
        return [step[name] for step in self.emitted]


@pytest.fixture
def script() -> Script:
    return Script()


def test_times_add_up_and_only_the_first_step_waits_for_the_next(script: Script) -> None:
    for emitted in (0, 2, 3, 4):  # the first step waits for the second
        script.trains()
        assert len(script.emitted) == emitted
    # From the second step on: 1 to the fetch, 2 data, 3 forward, 4 backward, 1, 5 optimizer.
    assert [round(value * 1e3) for value in script.column("seconds")] == [15, 16, 16, 16]
    for name, milliseconds in (("data", 2), ("forward", 3), ("backward", 4), ("optimizer", 5)):
        assert [round(value * 1e3) for value in script.column(name)] == [milliseconds] * 4


class EveryWait:
    """Of any time, the last millisecond was a wait."""

    def covers(self, began: int) -> bool:
        return began > 0

    def between(self, began: int, ended: int) -> int:
        return min(ended - began, 1_000_000)

    ended = 0

    def step_ended(self, ended: int) -> None:
        self.ended = ended


def test_waits_are_told_by_part_before_their_step(script: Script) -> None:
    told: list[tuple[int, ...]] = []

    def tell(*waits: int) -> None:
        told.append((len(script.emitted), *waits))

    waits = EveryWait()
    script.steps = Steps(script.emit, lambda: script.calls, waits, tell)
    for _ in range(3):
        script.fetches()
        script.backward()
        script.backward()
        script.optimizes()
    script.steps.finish()
    step, data, forward, backward, optimizer = (10**6 * each for each in (1, 1, 2, 2, 1))
    ends = [each["ended"] for each in script.emitted]
    parts = step, data, forward, backward, optimizer
    assert told == [(number, end, *parts) for number, end in enumerate(ends)]
    assert waits.ended == ends[-1]


def test_the_end_of_the_process_ends_the_last_step_without_later_work(script: Script) -> None:
    script.trains()
    script.fetches()
    script.backward()
    script.steps.finish()
    assert script.column("samples") == [8]


def test_an_evaluation_left_early_makes_one_step_doubtful(script: Script) -> None:
    script.trains(2)
    script.fetches(source=2, samples=3)
    script.trains(2)
    assert script.column("samples") == [8, 8, 0, 8]
    assert math.isnan(script.column("seconds")[2])


def test_an_evaluation_to_the_end_is_left_out(script: Script) -> None:
    script.trains(2)
    script.asks()
    for _ in range(3):
        script.fetches(source=2)
        script.passes(1000)
    script.asks(source=2)
    script.trains()
    assert script.column("samples") == [8, 8, 8]
    assert round(script.column("seconds")[2] * 1e3) == 15


def test_batches_that_are_passed_over_stay_out_of_the_samples(script: Script) -> None:
    script.trains()
    script.fetches()
    script.trains(2)
    assert script.column("samples") == [8, 8, 8]


def test_two_fetches_for_each_backward_give_no_samples(script: Script) -> None:
    for _ in range(4):
        script.fetches()
        script.trains()
    assert script.column("samples") == [8, 0, 0, 0]


def test_batches_fetched_before_the_first_backward_are_the_samples(script: Script) -> None:
    for size in (8, 8, 4):
        for _ in range(3):
            script.fetches(samples=size)
        for _ in range(3):
            script.backward(divisor=3.0)
        script.optimizes()
    assert script.column("samples") == [24, 24, 12]
    assert script.column("loss") == [1.5] * 3
    assert [round(each * 1e3) for each in script.column("data")] == [6] * 3


class Batches:
    """What is told of a script's batches, and when its waits ended."""

    def __init__(self, script: Script) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.waits = EveryWait()
        tell = lambda *_: None  # noqa: E731
        script.steps = Steps(script.emit, lambda: script.calls, self.waits, tell, self._take)

    def _take(self, ended: int, samples: int, spent: Any, waited: Any, loss: Any) -> None:
        assert waited == [0.001] * 3
        self.told.append((samples, *(round(part * 1e3) for part in spent), loss))
        assert self.waits.ended < ended


def test_an_inference_is_told_by_batches_until_the_first_step(script: Script) -> None:
    batches = Batches(script)
    for size in (8, 8, 5):
        script.fetches(samples=size)
        script.passes(4)
    # 2 data, 4 and 1 until the next one is asked for; the last one is over when there is no more.
    assert batches.told == [(8, 7, 2, 5, None)] * 2
    script.passes()
    script.asks()
    script.steps.finish()
    assert batches.told[2:] == [(5, 7, 2, 5, None)]
    for _ in range(3):
        script.trains(source=2)
        script.fetches(source=3)
    script.steps.finish()
    assert len(batches.told) == 3
    assert len(script.emitted) == 3


def test_batches_are_told_where_no_optimizer_is_seen(script: Script) -> None:
    batches = Batches(script)
    for number in range(ACCUMULATED + 6):
        script.fetches()
        script.backward(float(number), 2.0 if number % 2 else None)
    assert [each[0] for each in batches.told] == [8] * 5
    # A share of a loss is none.
    assert [each[-1] for each in batches.told] == [64.0, None, 66.0, None, 68.0]
    script.optimizes()
    script.trains()
    script.steps.finish()
    assert script.column("samples") == [8 * (ACCUMULATED + 6), 8]
    assert len(batches.told) == 5


def test_what_a_data_set_fetches_itself_is_not_a_batch(script: Script) -> None:
    for _ in range(3):
        began = script.passes()
        script.asks()
        script.fetches(source=2, samples=100)
        script.steps.fetch_ended(1, began, script.passes(), 8)
        script.backward()
        script.optimizes()
    assert script.column("samples") == [8, 8, 8]


def test_a_critic_trained_more_often(script: Script) -> None:
    for _ in range(3):
        for _ in range(2):
            script.fetches()
            script.backward()
            script.optimizes(1)
        script.backward()
        script.optimizes(2)
    script.steps.finish()
    assert len(script.emitted) == 6


def test_an_optimizer_that_joins_late_costs_the_early_end_of_steps(script: Script) -> None:
    script.trains(2)
    script.optimizes(9)
    for _ in range(2):
        script.fetches()
        script.backward()
        script.optimizes(7)
        script.optimizes(9)
    script.steps.finish()
    assert len(script.emitted) == 4


def test_a_nested_optimizer_is_part_of_the_outer(script: Script) -> None:
    for _ in range(3):
        script.fetches()
        script.backward()
        script.optimizes(7, inside=lambda: script.optimizes(7))
    assert [round(value * 1e3) for value in script.column("optimizer")] == [11, 11, 11]
    assert len(script.emitted) == 3


def test_an_optimizer_that_raised_has_not_stepped(script: Script) -> None:
    script.trains(2)
    for _ in range(2):
        script.fetches()
        script.backward()
        script.begins()
        script.calls = 0
    script.begins()
    script.calls = 0
    script.trains(2)
    assert len(script.emitted) == 4
    assert script.column("samples") == [8, 8, 24, 8]


def test_a_skipped_step_is_a_step(script: Script) -> None:
    for skips in (True, False, True, True, False):
        script.fetches()
        script.backward()
        if skips:
            script.steps.optimizers_skipped([7], script.passes())
        else:
            script.optimizes(7)
            script.steps.optimizers_skipped([7], script.passes())
    script.steps.finish()
    assert script.column("flags") == [SKIPPED, 0, SKIPPED, SKIPPED, 0]
    assert math.isnan(script.column("optimizer")[0])


def test_two_losses_of_one_batch_are_no_loss(script: Script) -> None:
    for _ in range(3):
        script.fetches()
        script.backward(1.0, None)
        script.backward(2.0, None)
        script.optimizes()
    assert all(loss is None for loss in script.column("loss"))
    assert script.column("flags") == [MICRO] * 3


@pytest.mark.parametrize(
    ("divisors", "loss"),
    [((2.0, 2.0), 3.0), ((None, None), 1.5), ((2.0, None), None), ((4.0, 4.0), None)],
)
def test_losses_of_micro_batches(
    script: Script, divisors: tuple[float | None, float | None], loss: float | None
) -> None:
    for _ in range(2):
        for value, divisor in zip((1.0, 2.0), divisors, strict=True):
            script.fetches()
            script.backward(value, divisor)
        script.optimizes()
    script.steps.finish()
    assert script.column("loss")[1] == loss


def test_a_loss_that_is_nan_is_not_an_unknown_one(script: Script) -> None:
    for loss in (0.5, math.nan, math.inf):
        script.trains(loss=loss)
    script.trains(loss=0.5)
    first, nan, inf, last = script.column("loss")
    assert (first, inf, last) == (0.5, math.inf, 0.5)
    assert math.isnan(nan)


def test_a_mean_of_micro_batches_hides_no_nan(script: Script) -> None:
    for losses in ((1.0, 2.0), (1.0, math.nan), (None, 2.0)):
        for loss in losses:
            script.fetches()
            script.backward(loss, None)
        script.optimizes()
    script.steps.finish()
    _, nan, unknown = script.column("loss")
    assert math.isnan(nan)
    assert unknown is None


class Coming:
    """A value that is on its way until it is told to arrive."""

    def __init__(self, value: float | None) -> None:
        self.here = False
        self.carried = value

    def arrived(self) -> bool:
        return self.here

    def value(self) -> float | None:
        return self.carried


@pytest.mark.parametrize(("carried", "mean"), [(3.0, 2.0), (None, None)])
def test_a_mean_arrives_with_its_last_value(carried: float | None, mean: float | None) -> None:
    late = Coming(carried)
    sums = Sums()
    sums.batches = 2
    seen = loss_of_step([(1.0, None), (late, None)], sums, optimizers=1, micro=True)
    assert isinstance(seen, LateMean)
    assert not seen.arrived()
    late.here = True
    assert seen.arrived()
    assert seen.value() == mean


def test_a_share_of_a_loss_is_not_a_loss(script: Script) -> None:
    for _ in range(2):
        script.fetches()
        script.backward(1.0, 2.0)
        script.fetches()
        script.backward(1.0, 2.0)
        script.optimizes()
    script.fetches()
    script.backward(1.0, 2.0)
    script.optimizes()
    assert script.column("loss")[2] is None


def test_a_script_that_stops_accumulating_is_believed_after_a_while(script: Script) -> None:
    script.fetches()
    script.backward()
    for _ in range(SINGLES + 3):
        script.fetches()
        script.backward(1.0, 2.0)
        script.optimizes()
    losses = script.column("loss")
    assert losses[:SINGLES] == [None] * SINGLES
    assert losses[-1] == 1.0


def test_a_backward_that_failed_was_none(script: Script) -> None:
    script.trains(2)
    script.fetches()
    script.steps.backward_begins(script.passes(), (9.0, NOT_LOOKED_AT))
    script.steps.backward_ends(script.passes(), failed=True)
    script.backward(0.25)
    script.optimizes()
    assert script.column("loss")[2] == 0.25
    assert script.column("flags") == [0, 0, 0]


def test_endless_backwards_keep_a_bounded_number_of_losses(script: Script) -> None:
    for _ in range(1000):
        script.backward()
    script.optimizes()
    script.steps.finish()
    assert script.column("loss")[0] is None
