"""From slices of what a rank printed to lines that are safe to show. It writes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.remote.plain import plain_text

MAX_LINE_CHARS = 64 * 1024
"""Characters of a line that are kept; the rest is counted in a mark at its end."""


class LineAssembler:
    """Joins the slices of one stream into lines.

    ``\\n`` and ``\\r\\n`` end a line; a bare ``\\r`` makes what stood before it transient, as a
    progress bar does. What is kept between slices is bounded by ``MAX_LINE_CHARS``.
    """

    __slots__ = ("_cut", "_kept", "_length", "_returned")

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._length = 0
        self._cut = 0
        self._returned = False
        """The last slice ended in ``\\r``, which may be half of a ``\\r\\n``."""

    def feed(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield ``(line, transient)`` for each line that ``text`` ends.

        Of several transient lines without a full line between only the last is yielded: the others
        were never to be seen.
        """
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
            # What most programs print: a whole line, short, with nothing before it.
            if self._length == 0 and len(piece) <= MAX_LINE_CHARS and "\r" not in piece:
                yield plain_text(piece), False
            else:
                yield self._line(piece), False
        if "\r" in rest:
            shown, _, rest = rest.rpartition("\r")
            self._take(shown)
            transient = self._visible_of(self._drain())
        self._take(rest)
        if self._returned and self._length:
            transient = plain_text("".join(self._kept)) or transient
        if transient:
            yield transient, True

    def flush(self) -> Iterator[tuple[str, bool]]:
        """Yield the last line if it has no end."""
        self._returned = False
        if self._length or self._cut:
            yield self._line(""), False

    def _line(self, piece: str) -> str:
        self._take(piece.removesuffix("\r"))
        return self._visible_of(self._drain())

    def _visible_of(self, text: str) -> str:
        """Return what is left to see of a line in which bare returns overwrote the beginning."""
        if "\r" in text:
            text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
        return plain_text(text)

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
            text += f" …[{self._cut} more characters]"
        self._kept.clear()
        self._length = self._cut = 0
        return text
