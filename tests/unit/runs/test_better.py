"""Which value of a metric counts as its best."""

from __future__ import annotations

import math

import pytest

from distconsole.runs.figures import more_is_better, take_best
from distconsole.runs.summary import seen_in
from distconsole.runs.timeline import RunTimeline
from fakes import scenes


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *(
            (name, True)
            for name in ("acc", "test_accuracy", "val/f1", "mIoU", "top-5", "AUC", "r2")
        ),
        *(
            (name, False)
            for name in ("loss", "val_loss", "top1_error", "perplexity", "lr", "mapped")
        ),
        *((name, False) for name in ("accuracy_loss", "step", "grad_norm", "")),
    ],
)
def test_accuracies_and_scores_are_better_when_they_are_more(name: str, more: bool) -> None:
    assert more_is_better(name) is more


def test_the_best_is_kept_and_what_is_no_number_is_not() -> None:
    best: dict[str, float] = {}
    for value in (2.0, math.nan, 1.0, -math.inf, 3.0):
        take_best(best, "loss", value)
        take_best(best, "acc", value)
    assert best == {"loss": 1.0, "acc": 3.0}


def test_a_summary_says_what_was_best() -> None:
    timeline = RunTimeline()
    for event in scenes.training():
        timeline.apply(event)  # type: ignore[arg-type]
    (summary,) = [event.summary for event in list(scenes.past_runs())[:1]]  # type: ignore[union-attr]
    lowest = min(timeline.metrics["loss"].values)
    assert seen_in(summary, timeline).best["loss"] == pytest.approx(lowest)
