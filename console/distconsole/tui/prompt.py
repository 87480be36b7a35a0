"""The prompt: completion, history kept between sittings, and nothing that knows what a verb does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from distconsole.grammar import Completion

MAX_HISTORY = 1000

Completer = Callable[[str], list[Completion]]


class History:
    """Lines typed before, oldest first, in a file of one line each.

    Args:
        path: The file; None keeps them for this sitting only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.lines: list[str] = []
        if path is not None:
            self.lines = self._read(path)

    def _read(self, path: Path) -> list[str]:
        """Return the newest lines of the file, and cut it down to them when it has grown far beyond."""
        try:
            kept = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if len(kept) > 2 * MAX_HISTORY:
                aside = path.with_name(f"{path.name}.{os.getpid()}")
                aside.touch(mode=0o600)
                aside.write_text("\n".join(kept[-MAX_HISTORY:]) + "\n", encoding="utf-8")
                aside.replace(path)
        except OSError:
            return []
        return kept[-MAX_HISTORY:]

    def add(self, line: str) -> None:
        """Keep ``line``, unless it is the last one again. A disk that refuses costs only the history."""
        if not line.strip() or self.lines[-1:] == [line]:
            return
        self.lines = [*self.lines, line][-MAX_HISTORY:]
        if self._path is None:
            return
        try:
            self._append(self._path, line)
        except OSError:
            self._path = None

    def _append(self, path: Path, line: str) -> None:
        """Add to the file, so that two consoles side by side lose nothing of each other's."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Values given with --env may be secrets: the file is for its owner only.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with open(
            path, "a", encoding="utf-8", opener=lambda name, _: os.open(name, flags, 0o600)
        ) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(line + "\n")

    def before(self, start: str, position: int) -> int | None:
        """Return the place of the newest line before ``position`` that begins with ``start``."""
        places = range(min(position, len(self.lines)) - 1, -1, -1)
        return next((place for place in places if self.lines[place].startswith(start)), None)

    def after(self, start: str, position: int) -> int | None:
        """Return the place of the oldest line after ``position`` that begins with ``start``."""
        places = range(position + 1, len(self.lines))
        return next((place for place in places if self.lines[place].startswith(start)), None)


class _Ghost(Suggester):
    """Shows the newest line of the history, else the first completion, behind the cursor."""

    def __init__(self, history: History, completer: Completer) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._history = history
        self._completer = completer

    async def get_suggestion(self, value: str) -> str | None:
        if not value.strip():
            return None
        place = self._history.before(value, len(self._history.lines))
        if place is not None:
            return self._history.lines[place]
        return next((found.line for found in self._completer(value)), None)


class Prompt(Input):
    """One line of the grammar."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete", show=False, priority=True),
        Binding("up", "older", "Older", show=False),
        Binding("down", "newer", "Newer", show=False),
        Binding("ctrl+u", "empty", "Empty", show=False),
        Binding("ctrl+c", "give_up_line", "Empty", show=False),
        Binding("pageup", "scroll_view(-1)", "Page up", show=False),
        Binding("pagedown", "scroll_view(1)", "Page down", show=False),
    ]

    class Offered(Message):
        """Completions of the unfinished word, for whoever shows them."""

        def __init__(self, completions: list[Completion]) -> None:
            super().__init__()
            self.completions = completions

    class Paged(Message):
        """The view above should go back (-1) or on (1) by a page."""

        def __init__(self, direction: int) -> None:
            super().__init__()
            self.direction = direction

    class Interrupted(Message):
        """Ctrl-C on an empty line: whoever presses it wants something to stop."""

    def __init__(self, history: History, completer: Completer, id: str | None = None) -> None:  # noqa: A002
        super().__init__(
            placeholder="a verb, such as: check, run train.py, demo, help",
            suggester=_Ghost(history, completer),
            select_on_focus=False,
            id=id,
        )
        self._history = history
        self._completer = completer
        self._place: int | None = None
        self._typed = ""

    def offer(self, line: str) -> None:
        """Put ``line`` there for Enter to confirm."""
        self.value = line
        self.cursor_position = len(line)
        self.focus()

    def keep(self, line: str) -> None:
        """Remember ``line`` and be empty."""
        self._history.add(line)
        self._place = None
        self.value = ""

    def action_complete(self) -> None:
        """Go on as far as all completions agree, and show them if there are several."""
        found = self._completer(self.value)
        if not found:
            self.post_message(self.Offered([]))
            return
        common = found[0].line
        for completion in found[1:]:
            while not completion.line.startswith(common):
                common = common[:-1]
        if len(found) == 1 and not common.endswith(("/", " ", ",")):
            common += " "
        if len(common) > len(self.value):
            self.value = common
            self.cursor_position = len(common)
        self.post_message(self.Offered(found if len(found) > 1 else []))

    def action_older(self) -> None:
        """Show the newest older line that begins as this one did."""
        if self._place is None:
            self._typed = self.value
        place = self._history.before(
            self._typed, len(self._history.lines) if self._place is None else self._place
        )
        if place is not None:
            self._show(place)

    def action_newer(self) -> None:
        """Go back towards what was being typed."""
        if self._place is None:
            return
        place = self._history.after(self._typed, self._place)
        if place is None:
            self._place = None
            self.value = self._typed
            self.cursor_position = len(self.value)
        else:
            self._show(place)

    def action_empty(self) -> None:
        """Begin anew."""
        self.value = ""
        self._place = None

    def action_give_up_line(self) -> None:
        """Copy what is selected; else be empty; else say that there is nothing here to interrupt."""
        if not self.selection.is_empty:
            self.action_copy()
        elif self.value:
            self.action_empty()
        else:
            self.post_message(self.Interrupted())

    def action_scroll_view(self, direction: int) -> None:
        """Page the view without leaving the prompt."""
        self.post_message(self.Paged(direction))

    def _show(self, place: int) -> None:
        self._place = place
        self.value = self._history.lines[place]
        self.cursor_position = len(self.value)
