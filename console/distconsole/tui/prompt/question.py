"""A question above the prompt, for yes or no; the rest of the screen goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Input, Static

from distconsole.tui.terminal.sanitize import one_line

LOOK_SECONDS = 0.2
"""Seconds between two looks of a waiting thread at whether its answer is still wanted."""
ANSWER = "answer"
FRAME_CELLS = 8
"""Cells of a frame besides its title; a longer question goes inside."""
YES, NO = ("enter", "y", "Y"), ("escape", "n", "N", "ctrl+c")
RESTS = {"y": "es", "n": "o"}
"""The rest of an answer that is typed in full, by its first letter."""
REST_SECONDS = 2.0
"""Seconds after the first letter within which more letters belong to the answer."""


class RestOfAnswer:
    """Tells keys that finish an answer from those that begin another line."""

    _left = ""
    _ends = False
    _since = 0.0
    _held: Sequence[events.Key] = ()

    def begin(self, event: events.Key) -> None:
        """Expect the rest of the word that ``event`` has begun."""
        self._left = RESTS.get((event.character or "").lower(), "")
        self._ends, self._since, self._held = False, event.time, []

    def take(self, event: events.Key) -> list[events.Key]:
        """Return the keys to handle now: none while they may be of the word, else also those held back."""
        if not self._left and not self._ends:
            return [event]
        late = event.time - self._since > REST_SECONDS
        letter = (event.character or "").lower()
        if self._left and not late and letter == self._left[0]:
            self._left = self._left[1:]
            self._held, self._ends = [*self._held, event] if self._left else [], not self._left
            return []
        ended, held = self._ends and not late and event.key in ("enter", "ctrl+j"), self._held
        self._left, self._ends, self._held = "", False, []
        return [] if ended else [*held, event]


@dataclass(frozen=True, slots=True)
class Danger:
    question: str
    details: tuple[str, ...]
    yes: str


@dataclass(slots=True)
class Asked:
    """One question; only one for the person's own last request takes the keys ``at_once``."""

    danger: Danger
    answered: Callable[[bool], None]
    at_once: bool = True


class Question(Static, can_focus=True):
    """The question that waits for an answer; hidden while there is none."""

    DEFAULT_CSS = """
    Question { height: auto; padding: 0 1; display: none; border: round $text-warning; }
    Question:focus { background: $warning 20%; }
    .-ruled Question, .-short Question { border: none; border-top: solid $text-warning; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(YES), "answer(True)", "Yes", show=False),
        Binding(",".join(NO), "answer(False)", "No", show=False),
    ]

    @dataclass
    class Put(Message):
        asked: Asked

    class Over(Message):
        """No question waits any more."""

    _before: Widget | None = None

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(id=id, markup=False)
        self.rest = RestOfAnswer()
        self._asked: deque[Asked] = deque()

    @property
    def waits(self) -> bool:
        return bool(self._asked)

    def ask(self, asked: Asked) -> None:
        self._asked.append(asked)
        if len(self._asked) == 1:
            self._show()

    def answer(self, yes: bool) -> bool:
        """Answer the shown question; return False without one."""
        if not self._asked:
            return False
        asked = self._asked.popleft()
        if self._asked:
            self._show()
        else:
            self.display = False
            if self.has_focus:
                self.screen.set_focus(self._before)
            self.post_message(self.Over())
        asked.answered(yes)
        return True

    def on_key(self, event: events.Key) -> None:
        """Take the answer, and the rest of its word if that was typed before the question closed."""
        keys = self.rest.take(event)
        for key in keys:
            self._take(key)
        if event not in keys:
            _keep(event)

    def _take(self, event: events.Key) -> None:
        """Take the answer; let other letters pass to a line that was begun before the question came.

        The Enter of that line, or a y in it, is no answer: the question then waits for ``yes`` at the prompt. This
        happens here in the order of typing: a binding would run after later keys.
        """
        asked = self._asked[0] if self._asked else None
        at_once = asked is not None and asked.at_once
        if at_once and event.key in (*YES, *NO):
            self.rest.begin(event)
            self.answer(event.key in YES)
        elif asked is None or not at_once:
            self._pass_on(event)
        elif event.is_printable and not isinstance(self._before, Input):
            self.app.bell()
        elif event.is_printable:
            asked.at_once = False
            self._draw()
            self._pass_on(event)
            self.call_later(self._leave)
        else:
            return
        _keep(event)

    def _pass_on(self, event: events.Key) -> None:
        if self._before is not None:
            self._before.post_message(events.Key(event.key, event.character))

    def _leave(self) -> None:
        if self.has_focus:
            self.screen.set_focus(self._before)

    def action_answer(self, yes: bool) -> None:
        self.answer(yes)

    def on_question_put(self, message: Put) -> None:
        """Ask a question of another thread."""
        message.stop()
        self.ask(message.asked)

    def on_click(self, event: events.Click) -> None:
        answer = event.style.meta.get(ANSWER)
        if answer is not None:
            self.answer(answer == "yes")
        elif self._asked:
            self._asked[0].at_once = True
            self._draw()
            self.focus()

    def _show(self) -> None:
        self._draw()
        self.display = True
        if not self._asked[0].at_once:
            self.app.bell()
            return
        if not self.has_focus:
            self._before = self.screen.focused
        self.focus()

    def _draw(self) -> None:
        asked = self._asked[0]
        danger = asked.danger
        keys = ("Enter or y", "Esc or n") if asked.at_once else ("yes", "no")
        yes, no = (
            Content(f"{key}: {does}").stylize(Style.from_meta({ANSWER: answer})).stylize("bold")
            for key, does, answer in zip(
                keys, (danger.yes, "do nothing"), ("yes", "no"), strict=True
            )
        )
        where = "" if asked.at_once else "   (typed at the prompt)"
        question = Content(one_line(danger.question)).stylize("bold")
        in_frame = question.cell_length < self.app.size.width - FRAME_CELLS
        self.border_title = question if in_frame else Content("")
        lines = [
            *([] if in_frame else [question]),
            *(Content(one_line(line)) for line in danger.details),
            Content.assemble(yes, "   ·   ", no, where),
        ]
        self.update(Content("\n").join(lines))


def _keep(event: events.Key) -> None:
    event.stop()
    event.prevent_default()


def ask_from_thread(
    post: Callable[[Question.Put], object], question: str, wanted: Callable[[], bool]
) -> bool:
    """Ask from a thread that may block, and return the answer; False if it is no longer wanted."""
    answers: SimpleQueue[bool] = SimpleQueue()
    post(Question.Put(Asked(Danger(question, (), "do it"), answers.put, at_once=False)))
    while wanted():
        with suppress(Empty):
            return answers.get(timeout=LOOK_SECONDS)
    return False
