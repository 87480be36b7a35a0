"""Names that an SSH configuration gives to hosts, for completion alone. It resolves none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 1 << 20
MAX_NAMES = 2000
_HOST = re.compile(r"^\s*host(?:\s+|\s*=\s*)(.+?)\s*$", re.IGNORECASE)
_INCLUDE = re.compile(r"^\s*include(?:\s+|\s*=\s*)(.+?)\s*$", re.IGNORECASE)


def ssh_names(path: Path) -> list[str]:
    """Return the aliases in a file and in those that it includes, without patterns, at most ``MAX_NAMES``."""
    found: dict[str, None] = {}
    for line in _lines(path, deep=True):
        match = _HOST.match(line)
        for name in match[1].split() if match else ():
            if not set(name) & set("*?!\"'") and len(found) < MAX_NAMES:
                found[name] = None
    return list(found)


def _lines(path: Path, *, deep: bool) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_BYTES)
    except OSError:
        return
    for line in text.splitlines():
        included = _INCLUDE.match(line) if deep else None
        yield line
        for pattern in included[1].split() if included else ():
            for each in sorted(path.parent.glob(pattern.removeprefix("~/.ssh/"))):
                yield from _lines(each, deep=False)
