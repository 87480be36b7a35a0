"""The rest of an answer that is typed in full: ``es`` behind a y. It answers nothing."""

from __future__ import annotations

from textual import events

RESTS = {"y": "es", "n": "o"}
WITHIN_SECONDS = 2.0
"""What comes so long after the first letter belongs to something else."""
ENTER = ("enter", "ctrl+j")


class RestOfAnswer:
    """Tells keys that finish a word from those that begin another line."""

    def __init__(self) -> None:
        self._left = ""
        self._ends = False
        self._since = 0.0
        self._held: list[events.Key] = []

    def begin(self, event: events.Key) -> None:
        """Expect what finishes the word that ``event`` has begun."""
        self._left = RESTS.get((event.character or "").lower(), "")
        self._ends = False
        self._since = event.time
        self._held = []

    def take(self, event: events.Key) -> list[events.Key]:
        """Return the keys to be done now: none while it may be of the word; those held back, if it is not."""
        if not self._left and not self._ends:
            return [event]
        late = event.time - self._since > WITHIN_SECONDS
        letter = (event.character or "").lower()
        if self._left and not late and letter == self._left[0]:
            self._held.append(event)
            self._left = self._left[1:]
            if not self._left:
                self._held, self._ends = [], True
            return []
        ended, held = self._ends and not late and event.key in ENTER, self._held
        self._left, self._ends, self._held = "", False, []
        return [] if ended else [*held, event]
