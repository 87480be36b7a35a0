"""Text from a node, sanitized for a terminal."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, modes
    r"|(?:\x1b\]|\x9d)[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC: titles, links, the clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x1b\\|\x9c)"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # every other escape sequence
)
"""ECMA-48, sections 5.4, 5.6 and 8.3, in 7-bit and 8-bit form. A text in one
ends at the next control character, so that matching takes linear time; one without an end is shown."""

_UNWANTED = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f"  # C0 without tab, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, overrides, isolates
    "\u2028\u2029\ufeff\U000e0000-\U000e007f]"  # line separators, BOM, invisible tags
)
_LINE_ENDS = re.compile(r"(?<=\S)[\t\r ]*+\n\s*+")
"""With the blanks around it; it never stands alone, so that each character is looked at once."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_SGR = re.compile(r"(\x1b\[[0-9;:]{0,64}m)")
_RESET = "\x1b[0m"
MAX_COLOUR_CHARS = 128
"""Characters of colours that are carried from one line to the next."""


def plain_text(text: str) -> str:
    """Return ``text`` as one line without anything a terminal would obey.

    Tabs and printable characters stay; a line's end becomes a blank between words. Halves of a surrogate pair, which JSON
    can carry and UTF-8 cannot, become U+FFFD.
    """
    if text.isprintable():
        return text
    text = _UNWANTED.sub("", _LINE_ENDS.sub(" ", _ESCAPES.sub("", text).strip("\r\n")))
    return _SURROGATES.sub("\ufffd", text)


def plain_lines(text: str) -> str:
    """Return ``text`` with ``plain_text`` done to each of its lines; for tracebacks."""
    if text.isprintable():
        return text
    return "\n".join(plain_text(line) for line in text.replace("\r\n", "\n").split("\n"))


def log_text(line: str) -> str:
    """Return one printed line with its colours (SGR) kept and everything else done as ``plain_text``.

    A line that sets colours ends with a reset. Needs a whole line: a sequence that is cut in two
    by a slice of a log cannot be recognised in either half.
    """
    if line.isprintable():
        return line
    parts = _SGR.split(line)
    if len(parts) == 1:
        return plain_text(line)
    # Odd parts are the colour sequences themselves.
    kept = "".join(part if index % 2 else plain_text(part) for index, part in enumerate(parts))
    return kept if kept.endswith((_RESET, "\x1b[m")) else kept + _RESET


def without_colours(line: str) -> str:
    return _SGR.sub("", line)


def colours_after(text: str) -> str:
    """Return the colours (SGR sequences) that are on after ``text``; empty if none are."""
    state = ""
    for sequence in _SGR.findall(text):
        attributes = sequence[2:-1]
        if not attributes.strip("0;"):
            state = ""
        elif attributes.startswith(("0;", ";")) or len(state) > MAX_COLOUR_CHARS:
            state = sequence
        else:
            state += sequence
    return state


def quote(data: bytes, limit: int = 120) -> str:
    """Return the beginning of ``data`` as a person may see it: cleaned, in quotes."""
    text = data[: 4 * limit].decode("utf-8", "replace").replace("\n", " ")
    text = plain_text(text).strip()
    return f"'{text[:limit]}…'" if len(text) > limit or len(data) > 4 * limit else f"'{text}'"
