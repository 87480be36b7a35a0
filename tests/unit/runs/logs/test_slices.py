"""Slices of output joined to lines; losses that ranks print, where the hook has none."""

import math
import random
import re
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
from distconsole.runs.logs.slices import MAX_LINE_CHARS, LineAssembler
from distconsole.runs.points import Point, PointReducer


def joined(*texts: str, flush: bool = True) -> list[tuple[str, bool]]:
    assembler = LineAssembler()
    found = [line for text in texts for line in assembler.feed(text)]
    return found + (list(assembler.flush()) if flush else [])


def full(*texts: str) -> list[str]:
    return [line for line, transient in joined(*texts) if not transient]


@pytest.mark.parametrize(
    ("texts", "lines"),
    [
        (("a\nb\n",), ["a", "b"]),
        (("a\r\nb\r\n",), ["a", "b"]),
        (("a\r", "\nb\n"), ["a", "b"]),
        (("\n\n",), ["", ""]),
        (("a",), ["a"]),
        (("",), []),
        (("a\tb\n",), ["a\tb"]),
        (("é", "\n"), ["é"]),
    ],
)
def test_a_line_ends_at_its_newline(texts: tuple[str, ...], lines: list[str]) -> None:
    assert full(*texts) == lines


@pytest.mark.parametrize(
    ("texts", "flush", "lines"),
    [
        (
            ("\r 10%", "\r 50%\r 90%", "\r100%\n"),
            True,
            [(" 10%", True), (" 90%", True), ("100%", False)],
        ),
        (("".join(f"\r{number}%" for number in range(100)),), False, [("99%", True)]),
        (("10%\r",), False, [("10%", True)]),
        (("10%\r", "20%\r"), False, [("10%", True), ("20%", True)]),
        (("loading", " the model\n"), True, [("loading", True), ("loading the model", False)]),
    ],
    ids=["its end is a line", "the last of a slice", "a return", "two returns", "no return"],
)
def test_what_waits_for_its_end_is_seen_and_becomes_one_line(
    texts: tuple[str, ...], flush: bool, lines: list[tuple[str, bool]]
) -> None:
    assert joined(*texts, flush=flush) == lines


def test_a_line_without_end_is_bounded_and_says_what_it_lacks() -> None:
    (line,) = full(*["x" * 10_000] * 100, "\n")
    assert len(line) < MAX_LINE_CHARS + 50
    assert line.endswith(" … 1.0 MB")


def test_slicing_anywhere_gives_the_same_lines() -> None:
    chance = random.Random(7)
    text = "".join(chance.choice(["ab", "\n", "\r\n", "é", "\t", " "]) for _ in range(400))
    whole = full(text)
    for _ in range(50):
        cuts = sorted(chance.sample(range(len(text)), 6))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert full(*pieces) == whole


def test_bars_below_bars_are_transient_and_leave_a_line_each_at_most() -> None:
    """What tqdm writes for two nested bars: the lower one goes down a line and up again."""
    inner = "".join(
        f"\r outer {o}/3" + "".join(f"\n\r inner {i}/50\x1b[A" for i in range(50))
        for o in range(4)
    )
    text = f"before\n{inner}\r outer 3/3\n\nafter\n"
    assert full(text) == ["before", " outer 3/3", "", "after"]
    for size in (40, 100, 1000):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        lines = full(*pieces)
        assert lines[0] == "before"
        assert lines[-1] == "after"
        assert len(lines) < 8


def test_colours_go_on_until_they_are_reset() -> None:
    red = "\x1b[31m"
    assert full(f"{red}a\nb\x1b[0m\nc\n") == [f"{red}a\x1b[0m", f"{red}b\x1b[0m", "c"]
    assert full(f"{red}a\n\x1b[1mb\n\x1b[0;32mc\nd\x1b[m\n") == [
        f"{red}a\x1b[0m",
        f"{red}\x1b[1mb\x1b[0m",
        f"{red}\x1b[1m\x1b[0;32mc\x1b[0m",
        "\x1b[0;32md\x1b[m",
    ]


def test_whatever_comes_in_whatever_slices_only_colours_are_left() -> None:
    chance = random.Random(11)
    parts = [
        *map(chr, range(0xA0)),
        *("\x1b[", "\x1b]", "\x1bP", "\x1b[31m", "\x1b[1;38;5;9m", "\x1b[2A", "\x1b]0;t\x07"),
        *("\x9b", "\x9d", "\u202e", "\u2066", "\u2028", "\ud800", "é", "日本", "\U0001f468\u200d"),
        *("\r", "\n", "m", "a", "0", ";", " 50%"),
    ]
    colours = re.compile(r"\x1b\[[0-9;:]{0,64}m")
    unwanted = re.compile(
        "[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\ud800-\udfff]"
    )
    for _ in range(3000):
        text = "".join(chance.choices(parts, k=chance.randrange(1, 60)))
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(3))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        for line, _transient in joined(*pieces):
            assert not unwanted.search(colours.sub("", line)), (pieces, line)
            line.encode()


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
    rank.points.add(0, {"loss": [Point(0, 2.5, None)]}, rank.t, range(1))
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
