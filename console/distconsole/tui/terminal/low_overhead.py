"""An application that costs little while it stands there all day.

It knows the terminal's content cell by cell, and writes only the cells that differ, in as few bytes as that
takes; Textual writes whole lines of a widget, each piece with all of its colours. All uses of Textual's
private parts are here.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.style import Style
from textual import events
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.app import App, ScreenError
from textual.binding import Binding, BindingType
from textual.css.model import RuleSet
from textual.filter import LineFilter
from textual.geometry import Size
from textual.message import Message
from textual.messages import Layout
from textual.screen import Screen
from textual.strip import Strip

from distconsole.tui.terminal.input_priority import InputPriority
from distconsole.tui.terminal.sanitize import Sanitizer
from distconsole.tui.theme.glyphs import PlainCharacters

Result = TypeVar("Result")

# Textual looks each rule up by a hash in Python (8.2), 300 times a widget: a tenth of the time of all styles.
RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]

SANITIZER = Sanitizer()
COLLECTED_AFTER = (700, 2, 2000)
"""Thresholds of the garbage collector; Python's own are (700, 10, 10). Each search is short: 6,000 objects take
1 ms, and 5 or more with other data in the caches."""
HURRY_SECONDS = 0.1
"""Seconds after a key in which changes are drawn as they come, not at the next of 60 moments a second."""

UNKNOWN = ""
"""An unknown cell; it differs from every content."""
BRIDGED_CELLS = 4
"""Rewriting up to this many cells takes no more bytes than moving over them."""
SGR_WORD = re.compile(r"[34]8;2;\d+;\d+;\d+|[34]8;5;\d+|\d+")
"""A colour, or an attribute, of an SGR sequence."""
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts of an SVG from a server, which would learn of each opening of the file."""
WIDE_FROM = "\U0001f000"
"""From here on terminals disagree on the width of characters."""


class PunctualScreen(Screen[object]):
    """A screen that draws the answer to a key at once; of very many keys those that half of the time suffices for."""

    app: LowOverheadApp[Any]
    _rests_until = 0.0

    async def _on_idle(self, event: events.Idle) -> None:
        began = time.monotonic()
        if self.app.hurries and began >= self._rests_until:
            self._on_timer_update()
            now = time.monotonic()
            self._rests_until = now + (now - began)

    async def _on_layout(self, message: Layout) -> None:
        # Textual (8.2) keeps the size of a layout between a first request of a widget and the one that reaches us.
        message.widget._box_model_cache.clear()


class LowOverheadApp(App[Result]):
    """An application that writes only changes to its terminal, and seldom collects garbage."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+l", "draw_anew", "Draw anew", show=False, priority=True)
    ]

    def __init__(self, input_priority: InputPriority, *, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self._terminal_diff = TerminalDiff()
        self._plain = PlainCharacters()
        self.input_priority = input_priority
        self._hurried_until = 0.0

    @property
    def hurries(self) -> bool:
        return time.monotonic() < self._hurried_until

    def begin_with(self, theme: str) -> None:
        """Set ``theme`` before the first picture: later, all styles would be read and applied twice."""
        self.set_reactive(App.theme, theme)
        self.stylesheet.set_variables(self.get_css_variables())
        self._refresh_truecolor_filter(self.ansi_theme)

    def _post_message(self, message: Message) -> Coroutine[None, None, bool]:
        # The thread that reads the terminal calls this; the rest runs when the application gets to it.
        if _is_press(message):
            self.input_priority.ask()
        return super()._post_message(message)

    async def on_event(self, event: events.Event) -> None:
        if _is_press(event):
            self.hurry()
        await super().on_event(event)
        if _is_press(event):
            with suppress(ScreenError):  # it is being taken down
                # After the press, in the queue of the focused widget.
                (self.focused or self.screen).call_later(self.input_priority.take)

    def hurry(self) -> None:
        """Draw the effect of a key at once."""
        self._hurried_until = time.monotonic() + HURRY_SECONDS

    def spare_collector(self) -> None:
        """Freeze the long-lived objects, most of all: a collection of all takes 50 ms and more."""
        if not self.is_headless:
            gc.collect()
            gc.freeze()
            gc.set_threshold(*COLLECTED_AFTER)
            gc.enable()

    def action_draw_anew(self) -> None:
        """Write all cells again, in case another program has written to the terminal."""
        self._terminal_diff.forget()
        self.screen.refresh()

    def picture(self, title: str) -> str:
        """Return the screen as an SVG without external resources."""
        return FONTS.sub("", self.export_screenshot(title=title))

    def on_resize(self) -> None:
        """Forget the terminal's content: a new size may keep, move or lose it."""
        self._terminal_diff.forget()
        # Textual (8.2) waits for a timer of 1/120 s, which never ends if the process was not scheduled for so long as
        # it began: then the screen kept its size for good.
        self.call_later(self._check_resize)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters for every drawn line; the last removes control characters."""
        plain = [self._plain] if self._plain.enabled else []
        return [*super().get_line_filters(), *plain, SANITIZER]

    def to_terminal(self, sequence: str) -> None:
        if sequence and self._driver is not None:
            self._driver.write(sequence)
            self._driver.flush()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        if isinstance(renderable, ChopsUpdate | LayoutUpdate):
            update = DiffUpdate(self._terminal_diff, renderable, self.size)
            renderable = cast("RenderableType", update)
        super()._display(screen, renderable)
        if self.hurries:
            self.input_priority.drawn()


def _is_press(message: Message) -> bool:
    return isinstance(message, events.InputEvent) and not isinstance(message, events.MouseMove)


class DiffUpdate(CompositorUpdate):
    """One of Textual's updates, reduced to the cells that changed."""

    def __init__(
        self, canvas: TerminalDiff, update: ChopsUpdate | LayoutUpdate, size: Size
    ) -> None:
        self._canvas = canvas
        self._update = update
        self._size = size

    def render_segments(self, console: Console) -> str:
        return self._canvas.draw(self._update, self._size, console)


class TerminalDiff:
    """The cells of a terminal as last written."""

    def __init__(self) -> None:
        self._size = Size(0, 0)
        self._texts: list[list[str]] = []
        self._codes: list[list[str]] = []
        self._pen = ""
        self._out: list[str] = []

    def forget(self) -> None:
        """Forget the terminal's content: the next update writes all cells."""
        self._size = Size(0, 0)

    def draw(self, update: ChopsUpdate | LayoutUpdate, size: Size, console: Console) -> str:
        """Return the bytes that bring ``update`` to the terminal, and record its cells as shown."""
        if size != self._size or isinstance(update, LayoutUpdate):
            self._size = size
            self._texts = [[UNKNOWN] * size.width for _ in range(size.height)]
            self._codes = [[UNKNOWN] * size.width for _ in range(size.height)]
        self._pen, self._out = "", []
        system = console._color_system or ColorSystem.TRUECOLOR
        for y, x, strip in _pieces(update):
            if y < size.height and x < size.width:
                self._draw_strip(y, x, strip, system, console)
        if self._pen:
            self._out.append("\x1b[m")
        return "".join(self._out)

    def _draw_strip(
        self, y: int, x: int, strip: Strip, system: ColorSystem, console: Console
    ) -> None:
        cells = _cells(strip, system)
        if cells is not None:
            self._draw_cells(y, x, *cells)
            return
        self._turn_to("")
        self._out += [_move(y, x), strip.render(console)]
        unknown = [UNKNOWN] * strip.cell_length
        # What stands right of it may have been pushed or cut, if the terminal thinks it wider.
        self._texts[y][x:] = (unknown + [UNKNOWN] * self._size.width)[: self._size.width - x]

    def _draw_cells(self, y: int, x: int, texts: list[str], codes: list[str]) -> None:
        end = min(x + len(texts), self._size.width)
        texts, codes = texts[: end - x], codes[: end - x]
        before, before_codes = self._texts[y][x:end], self._codes[y][x:end]
        if texts == before and codes == before_codes:
            return
        pen_at = -1
        for at, cell in enumerate(zip(texts, codes, before, before_codes, strict=True)):
            if cell[:2] == cell[2:]:
                continue
            if pen_at < 0:
                self._out.append(_move(y, x + at))
            elif at - pen_at <= BRIDGED_CELLS and set(codes[pen_at:at]) <= {self._pen}:
                self._out += texts[pen_at:at]
            elif pen_at != at:
                self._out.append(f"\x1b[{at - pen_at}C")
            self._turn_to(cell[1])
            self._out.append(cell[0])
            pen_at = at + 1
        self._texts[y][x:end], self._codes[y][x:end] = texts, codes

    def _turn_to(self, code: str) -> None:
        if code != self._pen:
            self._out.append(_turn(self._pen, code))
            self._pen = code


def _pieces(update: ChopsUpdate | LayoutUpdate) -> Iterator[tuple[int, int, Strip]]:
    """Yield (line, cell, content)."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                yield y, x, strip
                x += strip.cell_length
        return
    for y, first, end in update.spans:
        for strip_end, (x, chop) in zip(
            update.chop_ends[y], update.chops[y].items(), strict=False
        ):
            left, right = max(x, first), min(strip_end, end)
            if chop is None or left >= right:
                continue
            whole = left == x and right - x >= chop.cell_length
            yield y, left, chop if whole else chop.crop(left - x, right - x)


def _cells(strip: Strip, system: ColorSystem) -> tuple[list[str], list[str]] | None:
    """Return the character and the colours of each cell, or None unless each character is a cell wide."""
    texts: list[str] = []
    codes: list[str] = []
    for text, style, control in strip:
        if control or (style is not None and style.link) or not _is_plain(text):
            return None
        texts += text
        codes += [_code(style, system)] * len(text)
    return texts, codes


def _code(style: Style | None, system: ColorSystem) -> str:
    if style is None:
        return ""
    kept = style._ansi
    return Strip.render_ansi(style, system) if kept is None else kept


@lru_cache(maxsize=4096)
def _is_plain(text: str) -> bool:
    if text.isascii():
        return text.isprintable()
    return text.isprintable() and all(cell_len(each) == 1 and each < WIDE_FROM for each in text)


@lru_cache(maxsize=16384)
def _turn(pen: str, code: str) -> str:
    """Return the sequence from ``pen`` to ``code``, without the attributes that both have."""
    before, now = _parts(pen), _parts(code)
    if before.keys() <= now.keys():
        return f"\x1b[{';'.join(now[kind] for kind in now if now[kind] != before.get(kind))}m"
    return f"\x1b[0;{code}m" if code else "\x1b[m"


def _parts(code: str) -> dict[str, str]:
    """Return the colour (3), the background (4) and each attribute of the parameters of an SGR sequence."""
    found = {}
    for word in SGR_WORD.findall(code):
        kind = {"3": "3", "9": "3", "4": "4", "1": "4"}.get(word[0], word)
        found[kind if len(word) > 1 else f"{word} alone"] = word
    return found


def _move(y: int, x: int) -> str:
    return f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H"
