"""From slices of a rank's output to lines that are safe to show."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import UNSET

from distconsole.model.run_events import LogLine
from distconsole.rpc.frames import LogEntry
from distconsole.ssh.plain import colours_after, log_text, without_colours

MAX_LINE_CHARS = 64 * 1024
"""Characters of a line that are kept; a mark at its end has its whole length."""

MAX_LIVING_CHARS = 4096
"""A line without an end is shown as it stands if it is no longer than this."""

CUT_MARK = re.compile(r" … ([0-9.]+ MB)$")

_BACK_UP = re.compile(r"(?<!\n)\n++([^\n]*?)(?:\x1b\[[0-9]*A)++")
"""Text below the line that returns to it: the second bar of nested ones (tqdm's ``moveto``).
Linear: a match begins at the first of several newlines only, and takes all of them."""

_UP = re.compile(r"\x1b\[[0-9]*A")


class LineAssembler:
    """Joins the slices of one stream into lines.

    ``\\n`` and ``\\r\\n`` end a line; a bare ``\\r`` makes the text before it transient, as a
    progress bar does. Bars below bars, which move the cursor up again, are transient too. Colours
    (SGR) are kept and go on into the next line until they are reset, as on a terminal. Text kept
    between slices is bounded by ``MAX_LINE_CHARS``.
    """

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._length = 0
        self._cut = 0
        self._returned = False
        """The last slice ended in ``\\r``, which may be half of a ``\\r\\n``."""
        self._colours = ""
        self._nested = False
        """The stream moves the cursor up, so that the end of a line may be taken back."""
        self._held = ""
        """Of a nested stream, the last line's end and the text after it."""

    def feed(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield ``(line, transient)`` for each line that ``text`` ends.

        Of several transient lines without a full line between only the last is yielded.
        """
        if self._nested or _UP.search(text):
            text = self._unnested(text)
        if self._returned and text:
            self._returned = False
            if not text.startswith("\n"):
                text = "\r" + text
        if text.endswith("\r"):
            self._returned = True
            text = text[:-1]
        transient = ""
        *ended, rest = text.split("\n")
        for piece in ended:
            # Most output is like this: a whole line, short, with nothing before it.
            if self._length == 0 and len(piece) <= MAX_LINE_CHARS and "\r" not in piece:
                yield self._coloured(piece), False
            else:
                yield self._line(piece), False
        if "\r" in rest:
            shown, _, rest = rest.rpartition("\r")
            self._take(shown)
            transient = self._visible_of(self._drain())
        self._take(rest)
        if 0 < self._length <= MAX_LIVING_CHARS:
            # The visible rest: a bar that goes on seldom, or words that wait for their end.
            transient = self._visible("".join(self._kept)) or transient
        if transient:
            yield transient, True

    def _unnested(self, text: str) -> str:
        """Return ``text`` with lower bars drawn over the line, except a part that may not be a line's end."""
        self._nested = True
        text = _BACK_UP.sub("\r\\1\r", self._held + text)
        end = text.rfind("\n")
        self._held = text[end:][:MAX_LINE_CHARS] if end >= 0 else ""
        return text[:end] + "\r" if end >= 0 else text

    def flush(self) -> Iterator[tuple[str, bool]]:
        self._returned = self._nested = False
        held, self._held = self._held, ""
        if held:
            yield from self.feed(held)
        if self._length or self._cut:
            yield self._line(""), False

    def _line(self, piece: str) -> str:
        self._take(piece.removesuffix("\r"))
        return self._visible_of(self._drain())

    def _visible_of(self, text: str) -> str:
        """Return the visible part of a line in which bare returns overwrote the beginning."""
        return self._coloured(_last_part(text))

    def _visible(self, text: str) -> str:
        """As ``_visible_of``, of a rest that may go on: its colours are not those of the next line yet."""
        before = self._colours
        shown = self._coloured(_last_part(text))
        self._colours = before
        return shown

    def _coloured(self, text: str) -> str:
        if not text or (not self._colours and text.isprintable()):
            return text
        text = self._colours + text
        self._colours = colours_after(text)
        return log_text(text)

    def _take(self, piece: str) -> None:
        room = MAX_LINE_CHARS - self._length
        if len(piece) > room:
            self._cut += len(piece) - max(room, 0)
            piece = piece[: max(room, 0)]
        if piece:
            self._kept.append(piece)
            self._length += len(piece)

    def _drain(self) -> str:
        text = "".join(self._kept)
        if self._cut:
            text += f" … {(self._length + self._cut) / 1e6:.1f} MB"
        self._kept.clear()
        self._length = self._cut = 0
        return text


def _last_part(text: str) -> str:
    if "\r" not in text:
        return text
    return next((part for part in reversed(text.split("\r")) if part.strip()), "")


class LogLines:
    def __init__(self, run: str) -> None:
        self._run = run
        self._assemblers: dict[tuple[str, int | None, str], LineAssembler] = {}
        """By host, rank (None: the launcher) and stream."""

    def feed(self, host: str, entry: LogEntry, t: float) -> Iterator[LogLine]:
        source = (host, entry.rank, "err" if entry.stream == "err" else "out")
        assembler = self._assemblers.setdefault(source, LineAssembler())
        for line, transient in assembler.feed(entry.text):
            yield self._event(source, line, transient, t)

    def flush(self, t: float, host: str | None = None) -> Iterator[LogLine]:
        for source in sorted(self._assemblers, key=lambda each: each[0]):
            if host in (None, source[0]):
                for line, transient in self._assemblers.pop(source).flush():
                    yield self._event(source, line, transient, t)

    def _event(
        self, source: tuple[str, int | None, str], line: str, transient: bool, t: float
    ) -> LogLine:
        host, rank, stream = source
        coloured = "\x1b" in line
        return LogLine(
            t=t,
            run=self._run,
            host=host,
            stream=stream,
            line=without_colours(line) if coloured else line,
            rank=UNSET if rank is None else rank,
            transient=transient,
            styled=line if coloured else UNSET,
        )
