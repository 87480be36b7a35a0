"""From the events of runs to the figures of ``bench strategies``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median

from msgspec import UNSET

from distconsole.model.events import BenchResult, BenchRun, Event, Spread
from distconsole.model.run_events import EndState, GpuSample, Metric, PlanMade, RunEnded, Window

SPEED, LOSS, ACCURACY = "images_s", "test_loss", "test_accuracy"
"""What the recipe reports after each epoch."""


class RunFigures:
    """Folds the events of one run.

    Attributes:
        run: Its id, once it is planned.
        step: The last one of any rank.
        end: Its end, once it is known.
    """

    def __init__(self) -> None:
        self.run = ""
        self.step: int | None = None
        self.end: RunEnded | None = None
        self._speeds: dict[int, float] = {}
        self._last: dict[str, float] = {}
        self._loads: list[float] = []
        self._waiting_loads: list[float] = []

    def take(self, event: Event) -> None:
        """Take one event."""
        match event:
            case PlanMade():
                self.run = event.run
            case Window():
                self.step = max(event.step, self.step or 0)
                # A GPU counts from the first step to the last: samples after that stay behind.
                self._loads += self._waiting_loads
                self._waiting_loads.clear()
            case GpuSample():
                if self.step is not None and event.util is not None and event.rank is not UNSET:
                    self._waiting_loads.append(event.util)
            case Metric():
                # All ranks give one value for loss and accuracy; a mean of equals may round.
                self._last[event.name] = event.min
                if event.name == SPEED:
                    self._speeds[event.step] = event.value
            case RunEnded():
                self.end = event
            case _:
                pass

    def result(self, strategy: str, round_: int, rounds: int) -> BenchRun | None:
        """Return what it came to; None if it did not end."""
        end = self.end
        if end is None:
            return None
        failure = None if end.first_failure is UNSET else end.first_failure
        error = "" if failure is None else failure.short_blame
        speeds = [self._speeds[step] for step in sorted(self._speeds)]
        steady = speeds[1:] or speeds
        return BenchRun(
            t=end.t,
            run=end.run,
            strategy=strategy,
            round=round_,
            rounds=rounds,
            state=end.state,
            exit_code=end.exit_code,
            seconds=end.seconds,
            samples_s=median(steady) if steady else None,
            loss=self._last.get(LOSS),
            accuracy=self._last.get(ACCURACY),
            gpu_util=mean(self._loads) if self._loads else None,
            error=error or ("" if end.state is EndState.SUCCEEDED else end.state.value),
        )


def strategy_result(
    runs: Sequence[BenchRun],
    alone: Mapping[int, float],
    *,
    strategy: str,
    launcher: str,
    ranks: int,
    devices: int,
) -> BenchResult:
    """Return a strategy's figures over its rounds.

    ``alone`` has by round the samples a second of ``single``: a ratio is taken within a round.
    """
    good = [run for run in runs if run.state is EndState.SUCCEEDED]
    speedups = [
        run.samples_s / alone[run.round]
        for run in good
        if run.samples_s is not None and alone.get(run.round)
    ]
    return BenchResult(
        strategy=strategy,
        launcher=launcher,
        ranks=ranks,
        devices=devices,
        rounds=len(good),
        seconds=spread(run.seconds for run in good),
        samples_s=spread(run.samples_s for run in good),
        speedup=spread(speedups),
        efficiency=spread(each / devices for each in speedups),
        loss=spread(run.loss for run in good),
        accuracy=spread(run.accuracy for run in good),
        gpu_util=spread(run.gpu_util for run in good),
        error=next((run.error for run in runs if run.error), ""),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the median with the lowest and the highest of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(median=median(known), lowest=min(known), highest=max(known))
