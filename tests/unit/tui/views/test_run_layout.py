"""How the view of a run shares its lines among ranks, plots and log."""

import pytest

from distconsole.tui.views.run import FEW_ROWS, LEAST_RANKS, share_lines
from distconsole.tui.widgets.plots import MOST_ROWS


@pytest.mark.parametrize("frame", [1, 2])
@pytest.mark.parametrize("rows", [1, 4, 64, 2048])
def test_lines_are_used_once_and_the_ranks_have_theirs_first(rows: int, frame: int) -> None:
    for lines in range(3, 96):
        ranks, plots, log = share_lines(lines, frame, rows, 5, 96)
        assert ranks + plots + log <= lines
        assert ranks >= min(lines, frame + 1 + min(rows, LEAST_RANKS))
        assert plots == 0 or frame + 5 <= plots <= frame + MOST_ROWS
        assert log == 0 or log > frame
        assert not log or plots or lines - ranks < 2 * frame + 5 + 2, "the log goes first"


def test_of_many_ranks_some_are_listed_and_the_log_keeps_its_room() -> None:
    ranks, plots, log = share_lines(40, 2, 64, 5, 96)
    assert (ranks, plots) == (2 + 1 + FEW_ROWS + 3, 2 + MOST_ROWS)
    assert log == 10
    assert share_lines(90, 2, 16, 5, 96)[0] == 2 + 1 + 16, "no more than there are"


def test_what_the_log_leaves_empty_on_a_large_screen_makes_the_plots_taller() -> None:
    ranks, plots, log = share_lines(54, 2, 4, 5, 96)
    assert (plots, log) == (2 + MOST_ROWS, 54 - ranks - plots)
    empty = log - 2
    assert share_lines(54, 2, 4, 5, 3) == (ranks, 2 + 54 // 3, log - (54 // 3 - MOST_ROWS))
    assert share_lines(54, 2, 4, 5, empty) == (ranks, plots, log), "lines have the room first"
    assert share_lines(20, 2, 4, 5, 0) == share_lines(20, 2, 4, 5, 96), "where there is little"
