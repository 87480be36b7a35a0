"""The newest messages, long enough to read them, and the progress of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from distconsole.tui.widgets.lines import Words

SHOWN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Message:
    parts: Sequence[Text]
    since: float
    more: int
    """Its lines that only the transcript has."""
    whole: bool
    """True for an error: it is shown to its end."""


class Messages(Words):
    """A message is gone after ten seconds; one that had to give way before is counted until then."""

    _messages: Sequence[_Message] = ()

    def add(self, said: Sequence[str], now: str, room: int, t: float) -> None:
        """Add the messages of ``t`` seconds; show the newest in ``room`` lines, and the progress ``now``."""
        new = [_read(words, t) for words in said if words.strip()]
        self._messages = [*self._messages, *new]
        if not (self._messages or now):
            self.show("")
            return
        self._messages = [each for each in self._messages if t - each.since < SHOWN_SECONDS]
        shown, left = self._lay_out(room - bool(now))
        if left and shown:
            mark = f"  +{left} F9"
            last = shown[-1]
            last.truncate(max(1, self._cells - len(mark)), overflow="ellipsis")
            last.append(mark, style="accent")
        if now:
            shown.append(Text(now, style="note", no_wrap=True, end=""))
        self.show(Text("\n").join(shown))

    def forget(self) -> None:
        self._messages = ()
        self.show("")

    @property
    def _cells(self) -> int:
        return max(1, self.content_size.width or self.app.size.width - 2)

    def _lay_out(self, room: int) -> tuple[list[Text], int]:
        shown: list[Text] = []
        left = 0
        for message in reversed(self._messages):
            lines = self._lines_of(message)
            kept = lines[: room if message.whole else 1]
            if shown and len(shown) + len(kept) > room:
                left += 1
                continue
            left += message.more + len(lines) - len(kept)
            shown[:0] = kept
        return shown, left

    def _lines_of(self, message: _Message) -> list[Text]:
        """Return an error and its hint side by side, else below each other."""
        side_by_side = Text("  ").join(message.parts)
        if side_by_side.cell_len <= self._cells:
            return [side_by_side]
        console, cells = self.app.console, self._cells
        return [line for part in message.parts for line in part.wrap(console, cells)]


def _read(words: str, t: float) -> _Message:
    first, *others = [line for line in words.split("\n") if line.strip()]
    hint = others[:1] if "hint:" in "".join(others[:1]) else []
    parts = [Text.from_ansi(each, end="") for each in (first, *hint)]
    return _Message(parts, t, len(others) - len(hint), whole="error:" in first)
