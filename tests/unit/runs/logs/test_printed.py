"""Losses that ranks print: which words are one, of which step, and only where the hook has none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from distconsole.model.run_events import LogLine, Metric
from distconsole.rpc.frames import LogEntry
from distconsole.runs.logs.printed import (
    MAX_HELD,
    MAX_POINTS,
    MAX_PRINTED_NAMES,
    WAIT_SECONDS,
    PrintedLosses,
)
from distconsole.runs.points import Point, PointReducer


class Printing:
    """One rank whose lines are read; nothing else is known of the run."""

    def __init__(self) -> None:
        self.points = PointReducer("r")
        self.losses = PrintedLosses("r", self.points)
        self.t = 0.0
        self.lines = 0

    def says(
        self, *lines: str, rank: int | None = 0, end: str = "\n"
    ) -> list[tuple[str, int, float]]:
        text = "".join(line + end for line in lines)
        entry = LogEntry(seq=1, t=self.t, rank=rank, stream="out", offset=0, text=text)
        return self._told(self.losses.feed("a", entry, self.t))

    def ends(self) -> list[tuple[str, int, float]]:
        return self._told([*self.losses.flush(self.t), *self.points.flush(self.t)])

    def _told(self, events: Any) -> list[tuple[str, int, float]]:
        told = []
        for event in events:
            self.lines += isinstance(event, LogLine)
            if isinstance(event, Metric):
                told.append((event.name, event.step, event.value))
        return told


WORDS = {
    "iter 10: loss 4.1812, time 123.45ms, mfu -100.00%": [("loss", 10, 4.1812)],
    "step 250: train loss 1.5, val loss 1.75": [("train loss", 250, 1.5), ("val loss", 250, 1.75)],
    "[7/8][15/16]\tLoss_D: 1.3675\tLoss_G: 0.6337\tD(x): 0.5": [
        ("loss d", 15, 1.3675),
        ("loss g", 15, 0.6337),
    ],
    "{'loss': '1.465', 'grad_norm': '2.996', 'epoch': '0.3125'}": [("loss", 0, 1.465)],
    '{"train/loss": 2.5e-3, "global_step": 40}': [("train loss", 40, 0.0025)],
    "Epoch: [0][ 10/500]\tTime  0.1 ( 0.2)\tLoss 6.9041e+00 (6.95)": [("loss", 10, 6.9041)],
    "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.303": [("loss", 640, 2.303)],
    "Epoch 2:  89%|████ | 57/64 [00:01<00:00, 57.32it/s, loss=0.885]": [("loss", 57, 0.885)],
    "2026-11-24 INFO step 180/192 lr 0.001 loss -0.24": [("loss", 180, -0.24)],
    "loss: tensor(0.4312, grad_fn=<MseLossBackward0>)": [("loss", 0, 0.4312)],
    "lm loss: 1.05E+01 | loss scale: 4096.0 | loss_scale=1 |": [("lm loss", 0, 10.5)],
    "loss: nan": [("loss", 0, math.nan)],
    "best_loss: inf, val loss: nan, loss 1e999": [],
    "packet loss 0.5%, loss 3/4, loss 1,234, no loss, loss of 3, floss 3, a.loss 3": [],
}


@pytest.mark.parametrize("line", WORDS, ids=range(len(WORDS)))
def test_words_that_say_a_loss(line: str) -> None:
    rank = Printing()
    rank.says(line)
    wanted = [(f"printed {name}", step, value) for name, step, value in WORDS[line]]
    assert repr(rank.ends()) == repr(wanted)
    assert rank.lines == 1


def test_it_is_held_until_the_hook_would_have_seen_one() -> None:
    rank = Printing()
    assert rank.says("loss 3", "loss 2") == []
    rank.t = WAIT_SECONDS + 1
    assert rank.says("loss 1") == [("printed loss", step, 3.0 - step) for step in range(3)]
    assert rank.says("loss 0.5", rank=None) == []  # of what starts the ranks
    assert rank.says("loss 0.5") == [("printed loss", 3, 0.5)]


def test_a_loss_that_the_hook_sees_or_the_script_reports_is_enough() -> None:
    rank = Printing()
    rank.says("loss 3")
    rank.t = WAIT_SECONDS + 1
    rank.points.add(0, {"loss": [Point(0, 2.5, None)]}, rank.t, trained=True)
    assert rank.says("loss 2") == []
    assert rank.ends() == []


def test_a_bar_that_stands_still_says_it_once() -> None:
    rank = Printing()
    bar = "\r 50%|█████     | 32/64 [00:01<00:01, 31it/s, loss=0.5]"
    for _ in range(3):
        rank.says(bar, end="")
    assert rank.ends() == [("printed loss", 32, 0.5)]


def test_what_is_kept_is_bounded() -> None:
    rank = Printing()
    for number in range(MAX_HELD + 9):
        rank.says(f"step {number} loss {number}")
    rank.says(*(f"step {n} loss 1" for n in range(10**4, 10**4 + 99)))
    rank.says(*(f"{name}_loss 1" for name in range(99)))
    told = rank.ends()
    assert len({name for name, _, _ in told}) == MAX_PRINTED_NAMES
    steps = [step for name, step, _ in told if name == "printed loss"]
    assert steps[-MAX_POINTS:] == [*range(10**4 + 99 - MAX_POINTS, 10**4 + 99)]
    assert len(steps) == MAX_HELD - 2 + MAX_POINTS
