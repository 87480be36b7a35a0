"""Progress bars that stand there now: one line a rank, or one for all that look alike."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text

from distconsole.model.run_events import LogLine
from distconsole.runs.logs.buffer import Said
from distconsole.text.progress import Bar, alike
from distconsole.tui.widgets.log_line import LineStyle, rank_colour, rank_shape, said_text

_BLANK = re.compile(r"\s+$")


def bars_text(lines: Sequence[LogLine], room: int, world: int, style: LineStyle) -> list[Text]:
    """Return the living lines in at most ``room`` lines, those that are least far first.

    Args:
        lines: Transient lines, one a rank and stream.
        room: Lines there are.
        world: Ranks of the run.
    """
    bars = alike(lines, fold=len(lines) > room)
    return [_drawn(bar, world, style) for bar in bars[:room]]


def _drawn(bar: Bar, world: int, style: LineStyle) -> Text:
    text = Text("▸", "note", end="", no_wrap=True, overflow="ellipsis")
    cells = style.who_cells
    who = Text(end="")
    if bar.count > 1:
        who.append(said_text(Said(bar.ranks, bar.hosts), bar.count, world, cells - 1), "strong")
    elif bar.ranks:
        rank = bar.ranks[0]
        who.append(f"{rank_shape(rank)} {rank}", rank_colour(rank, style.colours))
    else:
        who.append(bar.hosts[0], "faint")
    who.truncate(cells - 1, overflow="ellipsis")
    who.append(" " * (cells - who.cell_len))
    text.append_text(who)
    if bar.spread:
        text.append(f"{bar.spread} ", "strong")
    text.append_text(Text.from_ansi(_BLANK.sub("", bar.shown[:1000]), end=""))
    text.truncate(style.width, overflow="ellipsis")
    return text
