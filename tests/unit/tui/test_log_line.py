"""A row of the logs in words: who said it, how often, and until when."""

from distconsole.model.run_events import LogLine
from distconsole.runs.logs.rows import rows_of
from distconsole.tui.widgets.log_line import LineStyle, line_texts, name_cells

TIMES = "\u00d7"


def words(lines: list[LogLine], *, times: bool = False) -> str:
    rows = rows_of(lines)
    row = rows.row(0)
    assert row is not None
    line = rows.line_of(row)
    assert line is not None
    style = LineStyle(width=99, times=times)
    return line_texts(row, line, rows.book, 8, style)[0].plain


def said(ranks: range, times: int) -> list[LogLine]:
    return [
        LogLine(t=at / 100, run="r", host="n", stream="out", line="nan", rank=rank)
        for at in range(times)
        for rank in ranks
    ]


def test_what_is_repeated_is_told_with_how_often_and_who() -> None:
    assert words(said(range(3, 4), 1204)).split() == ["◆", "3", TIMES, "1,204", "nan"]
    assert words(said(range(8), 2)).split() == ["all", "8", TIMES, "16", "nan"]
    assert words(said(range(8), 1)).split() == ["all", "8", "nan"]
    assert words(said(range(2), 1)).split() == ["0-1", "x2", "nan"]


def test_with_times_it_is_told_when_it_was_said_last() -> None:
    first, *rest = words(said(range(3, 4), 301), times=True).split()
    assert first.endswith("00.0")
    assert rest[2:] == [TIMES, "301", "until", first.replace("00.0", "03.0"), "nan"]


def test_on_a_wide_screen_the_text_begins_behind_the_longest_name() -> None:
    def line(host: str, rank: int) -> str:
        event = LogLine(t=0.0, run="r", host=host, stream="out", line="nan", rank=rank)
        rows = rows_of([event])
        row = rows.row(0)
        assert row is not None
        told = rows.line_of(row)
        assert told is not None
        style = LineStyle(width=160, names=name_cells(rows.book.speakers))
        return line_texts(row, told, rows.book, 8, style)[0].plain

    assert line("node1", 3) == "  ◆ 3 node1 nan"
    assert line("n", 3) == "  ◆ 3 n    nan", "what several ranks said needs some cells"
    assert line("a-name-that-is-very-long", 12) == "  ▲ 12 a-name-that… nan"
