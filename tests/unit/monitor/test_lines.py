"""Slices of output joined to lines."""

from __future__ import annotations

import random

import pytest

from distconsole.monitor.lines import MAX_LINE_CHARS, LineAssembler


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
        (" 50%", True),
        ("100%", False),
    ]


def test_of_many_transient_lines_in_a_slice_only_the_last_is_told() -> None:
    text = "".join(f"\r{number}%" for number in range(100))
    assert joined(text, flush=False) == [("98%", True)]


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
