"""Prose is broken between words on a terminal, and stays one line in a pipe."""

from __future__ import annotations

import io

from distconsole.cli.streams import Streams
from distconsole.text.output import COLOUR, tell, wrap_line


def test_prose_is_broken_between_words_with_colours_counted_as_nothing() -> None:
    line = "\x1b[31mFAIL\x1b[0m \x1b[1mn1,n2:\x1b[0m n1 and n2 cannot reach each other"
    lines = wrap_line(line, 24, 5)
    assert [COLOUR.sub("", each) for each in lines] == [
        "FAIL n1,n2: n1 and n2",
        "     cannot reach each",
        "     other",
    ]
    assert " ".join(each.strip() for each in lines) == line


def test_a_word_that_is_too_long_and_an_indented_line_stay_whole() -> None:
    assert wrap_line("  see /a/very/long/path/of/something now", 12, 4) == [
        "  see",
        "    /a/very/long/path/of/something",
        "    now",
    ]
    assert wrap_line("", 40) == [""]


def test_in_a_pipe_a_line_stays_a_line() -> None:
    out = io.StringIO()
    streams = Streams(out, io.StringIO())
    tell(streams, "word " * 50)
    streams.close()
    assert out.getvalue() == "word " * 50 + "\n"
