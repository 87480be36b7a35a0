"""One definition of standing still and of slow: all that is shown of a run agrees on both, at every moment."""

import random
from typing import Any

import pytest

from distconsole.expression import parse_condition
from distconsole.formats.page import interesting_ranks
from distconsole.model.run_events import RunFinding
from distconsole.runs.conditions.rank_fields import RANK_FIELDS, ranks_of
from distconsole.runs.health import Tone, health_line, health_of, trend_of
from distconsole.runs.pace import TOGETHER_SECONDS
from distconsole.runs.present import present
from distconsole.runs.series import Series
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.view_models.rank_rows import RankRows
from distconsole.tui.views.ranks import RANK_COLUMNS
from distconsole.tui.views.run import troubles_of
from unit.runs.test_reduce import T0, Feed

HOSTS = ("h0", "h1", "h2", "h3")
(STATE,) = (column for column in RANK_COLUMNS if column.title == "state")


class Watched:
    """A run of four ranks in lockstep, as one who looks at it sees it."""

    def __init__(self) -> None:
        self.feed, self.timeline = Feed(*HOSTS), RunTimeline()
        self.step = 0
        for rank, host in enumerate(HOSTS):
            self.tell(host, "state", T0, rank=rank, local_rank=0, pid=7, state="running")

    def tell(self, host: str, kind: str, at: float, **body: Any) -> None:
        for event in self.feed(host, kind, at, **body):
            self.timeline.apply(event)

    def second(self, t: float, ratio: float = 1.0, *, steps: int = 10) -> None:
        """Let a second pass: rank 2 waits for data so that all steps are ``ratio`` times as long."""
        self.step += steps
        for rank, host in enumerate(HOSTS):
            if steps:
                late = 100.0 * (ratio - 1)
                ms = 100.0 * ratio
                parts = {"data_ms": 1.0, "forward_ms": 30.0, "optimizer_ms": 5.0}
                parts["backward_ms"] = 60.0 + late
                if rank == 2:
                    parts |= {"data_ms": 1.0 + late, "backward_ms": 60.0}
                self.tell(
                    host, "window", t, rank=rank, step=self.step, steps=steps, points={},
                    step_ms=[ms, ms], samples_s=80.0 / ratio, **parts,
                )  # fmt: skip
            self.tell(host, "sample", t, node={"cpu": 50.0}, gpus=[])

    def tone(self, t: float) -> Tone:
        return health_of(self.timeline, t).tone

    def heading(self, t: float) -> str:
        return health_line(self.timeline, t)

    def states(self, t: float) -> list[str]:
        cells = [STATE.cell(row) for row in RankRows(self.timeline, t)]
        return [cell if isinstance(cell, str) else cell.plain for cell in cells]

    def troubles(self, t: float, mark: str) -> list[int]:
        """The ranks that the heat map lists with ``mark``."""
        figures = present(self.timeline, t)
        told = troubles_of(self.timeline, figures.standing, figures.slow)
        return sorted(int(words.split()[0]) for each, words in told if each == mark)

    def matching(self, condition: str) -> list[int]:
        """The ranks that ``show RUN --json --where CONDITION`` lists."""
        found = parse_condition(condition, RANK_FIELDS).matching(ranks_of(self.timeline))
        return [row.view.rank for row in found]

    def findings(self, check: str) -> list[RunFinding]:
        return [each for each in self.timeline.findings if each.check == check]


def test_in_a_standstill_all_agree_at_every_second() -> None:
    run, everybody = Watched(), [0, 1, 2, 3]
    for second in range(10):
        run.second(T0 + second)
    last = T0 + 9
    for age in range(61):
        t = last + age
        if age:
            run.second(t, steps=0)
        for rank, host in enumerate(HOSTS if age == 31 else ()):  # as the agents judge
            run.tell(host, "state", t, rank=rank, local_rank=0, pid=7, state="stalled")
        still = everybody if age > 5 else []
        assert (present(run.timeline, t).samples_s == 0) is bool(still)
        assert run.heading(t).startswith("healthy") is not bool(still), (age, run.heading(t))
        assert [words.startswith("no step") for words in run.states(t)] == [bool(still)] * 4, age
        assert run.troubles(t, "‖") == still
        assert run.matching("still") == still
        stalled = age >= 31
        assert run.matching("state=stalled") == (everybody if stalled else [])
        assert (run.tone(t) is Tone.WARN) is stalled
        assert bool(run.findings("run.stall")) is (age >= 31 + TOGETHER_SECONDS)
    run.second(last + 61)
    for rank, host in enumerate(HOSTS):
        run.tell(host, "state", last + 61, rank=rank, local_rank=0, pid=7, state="running")
    assert run.heading(last + 61).startswith("healthy")
    assert run.troubles(last + 61, "‖") == run.matching("still") == []


@pytest.mark.parametrize("ratio", [1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0])
def test_whether_a_rank_is_slow_is_said_by_all_or_by_none(ratio: float) -> None:
    run = Watched()
    for second in range(40):
        t = T0 + second
        run.second(t, ratio)
        slow = [2] if run.findings("run.straggler") else []
        assert run.heading(t).startswith("rank 2 on h2 is slow") is bool(slow), second
        assert [rank for rank, words in enumerate(run.states(t)) if "slow" in words] == slow
        assert run.troubles(t, "▲") == slow
        assert run.matching("slow") == slow
        assert [
            rank for rank, why in interesting_ranks(run.timeline, 9) if "straggler" in why
        ] == slow
    assert bool(slow) is (ratio > 1.11), "a tenth of a step"
    for second in range(40, 45):
        run.second(T0 + second)
    after = T0 + 44
    assert run.heading(after).startswith("healthy")
    assert run.troubles(after, "▲") == run.matching("slow") == []


def test_what_ranks_do_behind_a_silent_host_is_not_known() -> None:
    run = Watched()
    for second in range(10):
        run.second(T0 + second)
    for age in range(1, 30):
        t = T0 + 9 + age
        unheard = age > 5
        assert run.heading(t).startswith("the newest word of the hosts is") is unheard, age
        assert [words.startswith("no word") for words in run.states(t)] == [unheard] * 4
        assert run.troubles(t, "‖") == []


@pytest.mark.parametrize("seed", range(8))
def test_noise_turns_no_arrow_and_a_change_does(seed: int) -> None:
    chance = random.Random(seed)

    def curve(slope: float) -> Series:
        series = Series()
        for step in range(600):
            series.put(step, 2.0 + slope * step / 600 + chance.gauss(0, 0.1))
        return series

    assert trend_of(curve(0.0)) == "→"
    assert trend_of(curve(-1.0)) == "↓"
    assert trend_of(curve(1.0)) == "↑"
