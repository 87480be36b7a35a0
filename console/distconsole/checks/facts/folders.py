"""What a host says about folders that a training reads and writes, as types."""

from __future__ import annotations

import msgspec

from distconsole.checks.facts.node import Facts


class Touched(Facts, frozen=True, kw_only=True):
    """Whether a file could be made and removed; ``error`` is why not."""

    error: str = ""
    code: str = ""


class Moved(Facts, frozen=True, kw_only=True):
    """Bytes that were written to the disk, or read from it, and the seconds that it took."""

    bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    code: str = ""

    @property
    def rate(self) -> float | None:
        """Bytes a second; None where too little was moved to tell."""
        return self.bytes / self.seconds if self.bytes >= 1 << 20 and self.seconds > 0 else None


class Handled(Facts, frozen=True, kw_only=True):
    """Small files, or entries, and the seconds for one of them."""

    count: int = 0
    seconds: float = 0.0
    error: str = ""
    code: str = ""

    @property
    def latency(self) -> float | None:
        """Seconds for one; None where there were too few to tell."""
        return self.seconds if self.count >= 3 and self.seconds > 0 else None


class Folder(Facts, frozen=True, kw_only=True):
    """One folder; what was not asked is None. ``late``: the filesystem did not answer."""

    touch: Touched | None = None
    write: Moved | None = None
    small: Handled | None = None
    look: Handled | None = None
    read: Moved | None = None
    late: bool = False


class FolderFacts(Facts, frozen=True, kw_only=True):
    """Group ``folders``: whether a file can be made there, by path."""

    folders: dict[str, Folder] = msgspec.field(default_factory=dict)


class SpeedFacts(Facts, frozen=True, kw_only=True):
    """Group ``speed``: how fast folders are, by path; the best of the times they were measured."""

    folders: dict[str, Folder] = msgspec.field(default_factory=dict)
