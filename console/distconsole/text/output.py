"""Where words go: the seam between saying something and a terminal, a pipe or a transcript."""

from __future__ import annotations

from typing import Protocol

from distconsole.text.paint import Paint


class Output(Protocol):
    """Data, narration and a living status, each with its colours."""

    @property
    def paint_out(self) -> Paint:
        """Colours for data."""

    @property
    def paint_err(self) -> Paint:
        """Colours for narration."""

    @property
    def live(self) -> bool:
        """True if the status is seen; then nothing need be said every few seconds."""

    @property
    def width(self) -> int | None:
        """Columns of the terminal that shows data; None where it is none, or breaks lines by itself."""

    def data(self, line: str) -> None:
        """A line of data (stdout)."""

    def say(self, line: str) -> None:
        """A line of narration (stderr)."""

    def status(self, line: str, *, old_after: float | None = None) -> None:
        """What the status line says from now on; it says how old it is once it was not renewed for ``old_after`` seconds."""

    def close(self) -> None:
        """Take the status line away."""
