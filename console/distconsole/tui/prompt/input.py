"""The prompt: one line, with completion as a list and a search of the history."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from textual import events
from textual.message import Message
from textual.widgets import Input

from distconsole.config.shortcuts import MAX_LINE_CHARS
from distconsole.grammar.completion import Completion
from distconsole.model.names import count_text
from distconsole.tui.prompt.history import Ghost, History
from distconsole.tui.terminal.sanitize import one_line
from distconsole.tui.widgets.offer_list import Offer, OfferList, Walk

if TYPE_CHECKING:
    from distconsole.tui.prompt.completer import LineCompleter

INVITATION = "a verb, such as: check, run train.py, demo, help"
WAY_HERE = ": types a verb, such as: check, run train.py, demo, help"
SEARCHING = "words of a line that was typed before"
MAX_FOUND = 500


class Prompt(Input):
    DEFAULT_CSS = """
    Prompt.-searching { background: $primary 20%; }
    """

    @dataclass
    class Paged(Message):
        """Asks to page the view back (-1) or on (1)."""

        direction: int

    class Interrupted(Message):
        """Ctrl-C on an empty line: whoever presses it wants something to stop."""

    class FilesCame(Message):
        """A folder that was slow has answered."""

    keys_to_come = 0
    """Keys pressed for the prompt that it has not handled yet."""
    _walk: Walk | None = None
    _put_there = ""
    _place: int | None = None
    _typed = ""
    meant = ""
    """The suggestion that Tab takes into an empty line."""
    refused = False
    """True if the last line was invalid: the history leaves it out."""
    _awaited: str | None = None
    """The line that waits for a slow folder's entries."""
    _noted: str | None = None
    """The line with a note in place of a list."""

    def __init__(
        self,
        history: History,
        completer: Callable[[], LineCompleter],
        offers: OfferList,
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(
            placeholder=WAY_HERE, suggester=Ghost(history, completer), select_on_focus=False, id=id
        )
        # A blink costs two drawings a second all day.
        self.set_reactive(Input.cursor_blink, False)
        self._history = history
        self._completer = completer
        self._offers = offers

    async def _on_key(self, event: events.Key) -> None:
        """Handle the prompt's own keys in the order of typing.

        Bindings run only after the key has reached the application: behind letters that were typed
        later, or, with priority, before those that were typed earlier.
        """
        self.keys_to_come = max(0, self.keys_to_come - 1)
        actions: dict[str, Callable[[], None]] = {
            "tab": self.action_complete,
            "shift+tab": self.action_back,
            "up": self.action_older,
            "down": self.action_newer,
            "ctrl+r": self.action_search,
            "ctrl+u": self.action_empty,
            "ctrl+c": self.action_give_up_line,
            "pageup": partial(self.action_scroll_view, -1),
            "pagedown": partial(self.action_scroll_view, 1),
        }
        if self._walk is not None:
            actions |= dict.fromkeys(("escape", "ctrl+g"), self.action_leave_list)
        # Keys typed before Textual sets the terminal's mode arrive with newlines for Enter.
        if event.key in ("enter", "ctrl+j"):
            await self.action_submit()
        elif event.key in actions:
            actions[event.key]()
        else:
            return  # what edits the line is Input's own
        event.stop()
        event.prevent_default()

    def validate_value(self, value: str) -> str:
        """Return ``value`` cut to a line, without control characters."""
        return one_line(value)[:MAX_LINE_CHARS]

    def offer(self, line: str) -> None:
        self._close()
        self._put(line)
        self.open()

    def mean(self, line: str) -> None:
        """Suggest ``line`` for Tab."""
        self.meant = line
        self._invite()

    def tell(self, words: str) -> None:
        self.meant = ""
        self.placeholder = words

    def open(self) -> None:
        """Take the keys at once: the next one is the prompt's."""
        self.screen.set_focus(self)

    def give_up(self) -> None:
        """Empty the line; Tab brings it back, unless it is a verb alone: a key may have typed that."""
        line = self.value
        self.action_empty()
        if len(line.split()) > 1:
            self.mean(line)

    def on_focus(self) -> None:
        self._invite(here=True)

    def on_blur(self) -> None:
        if self.placeholder in (INVITATION, f"Tab: {self.meant}"):
            self._invite(here=False)  # else what was told since stays

    def begin(self) -> None:
        """Drop the suggestion and the refusal of the last line."""
        self.meant, self.refused = "", False
        self._invite()

    def keep(self, line: str) -> None:
        self._history.add(line)

    def choose(self, index: int) -> None:
        if self._walk is not None:
            self._show_choice(index)
            self._take()

    async def action_submit(self) -> None:
        """Take the list's chosen offer; else submit the line."""
        if self._walk is not None and (self._walk.at is not None or self._walk.searching):
            self._take()
            return
        line = self.value
        # At once: letters of the next line may come before this one is done.
        self.action_empty()
        self.post_message(self.Submitted(self, line))

    def action_complete(self) -> None:
        """Extend the line as far as all completions agree, and list several; then walk through them."""
        if self._walk is not None:
            self._step(1)
            return
        if not self.value and self.meant:
            self.offer(self.meant)
            return
        before, after = self.value[: self.cursor_position], self.value[self.cursor_position :]
        found = self._completer().complete(before)
        if not found:
            waiting = self._completer().waiting
            self._awaited = self.value if waiting else None
            self.note(f"reading {one_line(waiting)} …" if waiting else "")
            return
        lines = [completion.line for completion in found]
        common = os.path.commonprefix(lines)  # noqa: RUF071 - letters are compared
        if len(found) == 1 and not found[0].goes_on and not after.startswith(" "):
            common += " "
        if len(common) > len(before):
            self._put(common + after, len(common))
        if len(found) > 1:
            self._list(found)

    def action_back(self) -> None:
        self._step(-1)

    def action_search(self) -> None:
        if self._walk is not None and self._walk.searching:
            self._step(1)
            return
        self._close()
        self._history.refresh()
        self._walk = Walk(self.value, self.cursor_position, (), searching=True)
        self.add_class("-searching")
        self.placeholder = SEARCHING
        self._find()

    def action_older(self) -> None:
        if self._walk is not None:
            self._step(-1)
            return
        if self._place is None:
            self._history.refresh()
            self._typed = self.value
        place = self._history.before(
            self._typed, len(self._history.lines) if self._place is None else self._place
        )
        if place is not None:
            self._place = place
            self._put(self._history.lines[place])

    def action_newer(self) -> None:
        if self._walk is not None:
            self._step(1)
            return
        if self._place is None:
            return
        place = self._history.after(self._typed, self._place)
        self._place = place
        self._put(self._typed if place is None else self._history.lines[place])

    def action_cursor_right(self, select: bool = False) -> None:
        """Go right; at the end take the suggestion."""
        if not self.value and self.meant:
            self.offer(self.meant)
            return
        super().action_cursor_right(select)

    def action_cursor_right_word(self, select: bool = False) -> None:
        """Go right by a word; at the end take a word of the suggestion."""
        ghost = self._suggestion
        if select or not self.cursor_at_end or not ghost:
            super().action_cursor_right_word(select)
            return
        rest = ghost[len(self.value) :]
        blanks = len(rest) - len(rest.lstrip())
        end = rest.find(" ", blanks)
        self._put(ghost if end < 0 else self.value + rest[:end])

    def action_empty(self) -> None:
        self._close()
        self._put("")
        self._place = None

    def action_leave_list(self) -> None:
        walk = self._walk
        self._close()
        if walk is not None:
            self._put(walk.typed, walk.cursor)

    def action_give_up_line(self) -> None:
        """Leave the list; else copy the selection; else empty the line; else report an interrupt."""
        if self._walk is not None:
            self.action_leave_list()
        elif not self.selection.is_empty:
            self.action_copy()
        elif self.value:
            self.action_empty()
        else:
            self.post_message(self.Interrupted())

    def action_scroll_view(self, direction: int) -> None:
        if self._walk is not None:
            self._step(direction * self._offers.rows, around=False)
        else:
            self.post_message(self.Paged(direction))

    def on_input_changed(self) -> None:
        if self.value in (self._put_there, self._noted):
            return
        self._put_there = ""
        self._place = None
        self._awaited = self._noted = None
        if self._walk is None:
            self._offers.hide()
            return
        if self._walk.searching:
            self._find()
            return
        self._close()
        typed = self.value[: self.cursor_position]
        found = [] if typed.endswith(" ") or not typed else self._completer().complete(typed)
        if found:
            self._list(found)

    def on_prompt_files_came(self) -> None:
        """List late entries, if Tab has asked for them and the line is still the same."""
        if self._awaited == self.value and self._walk is None:
            self._close()
            self.action_complete()

    def _on_paste(self, event: events.Paste) -> None:
        """Paste the first line, joined with continuations after a backslash; note the others as left out."""
        event.stop()
        event.prevent_default()
        lines = event.text.replace("\\\r\n", " ").replace("\\\n", " ").strip("\r\n").splitlines()
        if lines:
            self.replace(one_line(lines[0]), *self.selection)
        if len(lines) > 1:
            self.note(f"one line at a time: {count_text(len(lines) - 1, 'more line')} left out")

    def _invite(self, *, here: bool | None = None) -> None:
        here = self.has_focus if here is None else here
        if self.meant:
            self.placeholder = f"{'' if here else ': then '}Tab: {self.meant}"
        else:
            self.placeholder = INVITATION if here else WAY_HERE

    def _put(self, line: str, cursor: int | None = None) -> None:
        line = self.validate_value(line)
        self._put_there = line
        self.value = line
        self.cursor_position = len(line) if cursor is None else cursor

    def _list(self, found: Sequence[Completion]) -> None:
        after = self.value[self.cursor_position :]
        self._walk = Walk(
            typed=self.value,
            cursor=self.cursor_position,
            offers=[
                Offer(
                    each.line + after,
                    one_line(each.shown or each.word),
                    one_line(each.help),
                    ends=not each.goes_on,
                )
                for each in found
            ],
        )
        self._draw_list()

    def _find(self) -> None:
        assert self._walk is not None
        walk, words = self._walk, tuple(self.value.split())
        found = self._history.search(self.value)[:MAX_FOUND]
        walk.offers = [Offer(line, line, found=words) for line in found]
        walk.at = 0 if found else None
        self._draw_list()

    def _draw_list(self) -> None:
        walk = self._walk
        assert walk is not None
        self._offers.show(walk.offers, walk.at, walk.note)

    def note(self, words: str) -> None:
        """Show a note on the line while it is typed."""
        self._noted = self.value
        self._offers.show((), None, words)

    def _step(self, by: int, *, around: bool = True) -> None:
        if self._walk is not None:
            self._show_choice(self._walk.place_after(by, around=around))

    def _show_choice(self, at: int) -> None:
        walk = self._walk
        if walk is None or not 0 <= at < len(walk.offers):
            return
        walk.at = at
        if not walk.searching:
            line = walk.offers[at].line
            self._put(line, len(line) - len(walk.typed) + walk.cursor)
        self._draw_list()

    def _take(self) -> None:
        walk = self._walk
        self._close()
        if walk is None:
            return
        if walk.at is None:
            self._put(walk.typed, walk.cursor)
            return
        offer = walk.offers[walk.at]
        line = offer.line
        at = len(line) - (0 if walk.searching else len(walk.typed) - walk.cursor)
        if offer.ends and not line[at:].startswith(" "):
            line, at = f"{line[:at]} {line[at:]}", at + 1
        self._put(line, at)

    def _close(self) -> None:
        self._walk = None
        self._offers.hide()
        if self.has_class("-searching"):
            self.remove_class("-searching")
            self._invite()
