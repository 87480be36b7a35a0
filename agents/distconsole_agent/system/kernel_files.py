"""Small files: /proc and /sys as text and numbers, the end of a log, a job's files; this boot, its time."""

from __future__ import annotations

import os
import time

MAX_CHARS = 1 << 16


def text_of(path: str | os.PathLike[str]) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_CHARS)
    except OSError:
        return ""


def end_of(path: str, max_bytes: int, since: int = 0) -> str:
    """Return the end of a log, from byte ``since`` at most; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(min(since, size), size - max_bytes))
            return file.read(max_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def read_foreign(path: str, size: int, offset: int = 0) -> bytes:
    """Return a part of a file that a job may have put there: no link is followed, no pipe waited for.

    Raises OSError when it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def first_line_of(path: str | os.PathLike[str]) -> str | None:
    """Return the first line without blanks around it; None if the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline(512).strip()
    except OSError:
        return None


def number_of(path: str | os.PathLike[str]) -> int | None:
    """Return the whole number in a file; None for another word, or if it cannot be read."""
    text = first_line_of(path) or ""
    return int(text) if text.removeprefix("-").isdecimal() else None


def entries_of(folder: str) -> list[str]:
    """Return the names in a folder, in order; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def boot_id() -> str | None:
    """Return an identifier of this boot of the node; None if the kernel has none."""
    return first_line_of("/proc/sys/kernel/random/boot_id")


def boottime() -> float:
    """Return seconds since the boot, with those in suspend: a clock that cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
