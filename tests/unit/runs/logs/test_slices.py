"""Slices of output joined to lines."""

from __future__ import annotations

import random
import re

import pytest

from distconsole.runs.logs.slices import MAX_LINE_CHARS, LineAssembler


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


def test_a_progress_bar_is_transient_and_its_last_state_is_a_line() -> None:
    assert joined("\r 10%", "\r 50%\r 90%", "\r100%\n") == [
        (" 10%", True),
        (" 90%", True),
        ("100%", False),
    ]


def test_of_many_transient_lines_in_a_slice_only_the_last_is_told() -> None:
    text = "".join(f"\r{number}%" for number in range(100))
    assert joined(text, flush=False) == [("99%", True)]


def test_a_bar_that_ends_in_a_return_is_shown() -> None:
    assert joined("10%\r", flush=False) == [("10%", True)]
    assert joined("10%\r", "20%\r", flush=False) == [("10%", True), ("20%", True)]


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


def test_words_that_wait_for_their_end_are_seen_and_become_one_line() -> None:
    assert joined("loading", " the model\n") == [("loading", True), ("loading the model", False)]


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
