"""The last lines: what is repeated is one, a flood leaves the others a place, and memory is bounded."""

from collections.abc import Iterable, Sequence

import pytest

from distconsole.model.run_events import LogLine
from distconsole.runs.logs import last as last_module
from distconsole.runs.logs.last import FRESH_SECONDS, MOST_EQUAL, LastLine, LastLines, chosen


def line(rank: int, text: str, t: float, stream: str = "out") -> LogLine:
    return LogLine(t=t, run="r", host="n0", stream=stream, line=text, rank=rank)


def last(lines: Iterable[LogLine], most: int = 20) -> LastLines:
    kept = LastLines(most)
    for each in lines:
        kept.append(each)
    return kept


def texts(kept: LastLines, rows: int) -> list[str]:
    return [each.line.line for each in kept.newest(rows)]


def flood(first: float, count: int) -> list[LogLine]:
    """Rank 3 prints a thousand lines a second, and before them rank 0 two and rank 5 an error."""
    calm = [line(0, "step 1", first), line(5, "oom", first, "err"), line(0, "step 2", first)]
    return [*calm, *(line(3, f"debug {at}", first + at / 1000) for at in range(count))]


def test_a_flood_of_one_rank_leaves_rank_0_and_stderr_a_place() -> None:
    kept = last(flood(0.0, 5000))
    assert texts(kept, 3) == ["oom", "step 2", "debug 4999"]
    assert texts(kept, 5) == ["step 1", "oom", "step 2", "debug 4998", "debug 4999"]
    assert len(kept) == len(list(kept)) == 20


def test_after_some_seconds_the_newest_come_first_again() -> None:
    kept = last(flood(0.0, 5000))
    kept.append(line(3, "debug", 5.0 + FRESH_SECONDS))
    assert texts(kept, 3) == ["debug 4998", "debug 4999", "debug"]


def test_what_a_rank_repeats_takes_one_place_and_is_counted() -> None:
    kept = last([line(0, "step", 0.0), *(line(1, "nan", at / 1000) for at in range(1204))])
    assert [(each.line.line, each.count, each.until) for each in kept.newest(5)] == [
        ("step", 1, 0.0),
        ("nan", 1204, 1.203),
    ]


def test_what_all_ranks_say_takes_one_row() -> None:
    said = [line(rank, text, 1.0) for text in ("a", "b", "c", "d") for rank in range(8)]
    assert texts(last(said, 40), 2) == 8 * ["c"] + 8 * ["d"]


def test_what_all_ranks_say_is_chosen_anew_only_when_as_many_lines_have_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times: list[int] = []

    def count(lines: Sequence[LastLine], rows: int) -> list[LastLine]:
        times.append(len(lines))
        return chosen(lines, rows)

    monkeypatch.setattr(last_module, "chosen", count)
    last((line(rank, f"step {at}", at / 1000) for at in range(500) for rank in range(8)), 20)
    # 4,000 lines, of which each was looked at once or twice.
    assert 0 < sum(times) < 3 * 4000


def test_of_what_very_many_ranks_say_a_bounded_number_of_lines_is_kept() -> None:
    said = (line(rank, f"step {at}", at / 1000) for at in range(60) for rank in range(1000))
    assert len(last(said, 40).newest(40)) <= MOST_EQUAL
