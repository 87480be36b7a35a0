"""The console's own themes, which one a terminal begins with, and colours by what they mean.

Text reaches a contrast of 4.5:1 on every background it stands on, and 7:1 in ``contrast`` (WCAG 2.2,
1.4.3 and 1.4.6); a test reads that off the screens. ``terminal`` has no colours of its own: it takes
the terminal's sixteen, for terminals that have no more, and for none at all (NO_COLOR). Rich looks a
style's name up in its console's theme: a cell that says ``bad`` is red enough to read on any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rich.color import Color as RichColor
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.theme import Theme as RichTheme
from textual.color import Color
from textual.theme import Theme

DARK, LIGHT, CONTRAST, TERMINAL = "dark", "light", "contrast", "terminal"
NAMES = (DARK, LIGHT, CONTRAST, TERMINAL)
"""In the order in which a key goes through them."""

ROLES = {
    "good": ("text-success", False),
    "warn": ("text-warning", False),
    "bad": ("text-error", True),
    "note": ("text-primary", False),
    "accent": ("text-accent", False),
}
"""Meaning -> the variable of Textual's themes and whether it is bold."""

FAINT_SHARE = 0.35
"""How far faint text goes towards the background, if the theme does not say."""


@dataclass(frozen=True, slots=True)
class Look:
    """A theme with what the sixteen colours of printed text are in it.

    Attributes:
        ansi: None where they are the terminal's own.
        faint_share: How far faint text goes towards the background.
    """

    theme: Theme
    ansi: TerminalTheme | None
    faint_share: float = FAINT_SHARE


def _ansi(back: str, front: str, dull: str, **colours: str) -> TerminalTheme:
    """Return sixteen colours, the bright ones the same; black and bright black are ``dull``, to be read at all."""
    names = ("red", "green", "yellow", "blue", "magenta", "cyan")
    eight = [_rgb(each) for each in (dull, *(colours[name] for name in names), front)]
    return TerminalTheme(_rgb(back), _rgb(front), eight, eight)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _text(*colours: str) -> dict[str, str]:
    names = ("muted", "primary", "accent", "success", "warning", "error")
    return {f"text-{name}": colour for name, colour in zip(names, colours, strict=True)}


_DARK = Look(
    Theme(
        DARK,
        primary="#0178D4",
        secondary="#004578",
        accent="#ffa62b",
        warning="#ffa62b",
        error="#ba3c5b",
        success="#4EBF71",
        foreground="#e0e0e0",
        panel="#282d32",  # grey enough that 256 colours do not make a deep blue of it
        variables=_text("#a0a0a0", "#57A5E2", "#FFC473", "#8AD4A1", "#FFC473", "#E58FA3"),
    ),
    _ansi(
        "#121212", "#e0e0e0", "#9a9a9a", red="#ff8a8a", green="#98e024", yellow="#f4bf75",
        blue="#8ab4ff", magenta="#ff7ac6", cyan="#58d1eb",
    ),
)  # fmt: skip

_LIGHT = Look(
    Theme(
        LIGHT,
        primary="#00579E",
        secondary="#0178D4",
        accent="#B25B00",
        warning="#B25B00",
        error="#A8001C",
        success="#1B6E2A",
        foreground="#1c1c1c",
        background="#F5F5F5",
        surface="#EBEBEB",
        panel="#DCDCDC",
        dark=False,
        variables={
            **_text("#4A4A4A", "#004578", "#6E4700", "#15561F", "#6E4700", "#98001A"),
            "primary-lighten-2": "#00579E",
        },
    ),
    _ansi(
        "#f5f5f5", "#1c1c1c", "#4a4a4a", red="#98001a", green="#15561f", yellow="#6b4e00",
        blue="#0b3d91", magenta="#7a1f7a", cyan="#005866",
    ),
    faint_share=0.2,
)  # fmt: skip

_CONTRAST = Look(
    Theme(
        CONTRAST,
        primary="#1E6FFF",
        secondary="#A6C8FF",
        accent="#FFE066",
        warning="#FFE066",
        error="#FFA0A0",
        success="#7CFF9C",
        foreground="#FFFFFF",
        background="#000000",
        surface="#0A0A0A",
        panel="#262626",
        boost="#101018",
        variables={
            **_text("#D8D8D8", "#A6C8FF", "#FFE066", "#7CFF9C", "#FFE066", "#FFA8A8"),
            "primary-lighten-2": "#A6C8FF",
        },
    ),
    _ansi(
        "#000000", "#ffffff", "#c8c8c8", red="#ffa8a8", green="#7cff9c", yellow="#ffe066",
        blue="#a6c8ff", magenta="#ffb0f0", cyan="#7cf0ff",
    ),
    faint_share=0.2,
)  # fmt: skip

_TERMINAL = Look(
    Theme(
        TERMINAL,
        ansi=True,
        primary="ansi_cyan",
        secondary="ansi_cyan",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        accent="ansi_yellow",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables={"ansi-background": "ansi_black", "ansi-foreground": "ansi_white"},
    ),
    None,
)

LOOKS: Mapping[str, Look] = MappingProxyType(
    {look.theme.name: look for look in (_DARK, _LIGHT, _CONTRAST, _TERMINAL)}
)


def first_theme(asked: str | None, kept: str | None, *, colours: int, no_color: bool) -> str:
    """Return the theme to begin with on a terminal of so many ``colours``: what was ``asked`` for, else ``kept``."""
    if no_color:
        return TERMINAL
    if asked is not None:
        return asked
    if colours < 256:
        return TERMINAL  # others come out as whatever is nearest, which cannot always be read
    return kept or DARK


def meanings(variables: Mapping[str, str], faint_share: float = FAINT_SHARE) -> RichTheme:
    styles = {
        name: Style(color=_rich(variables.get(variable, "")), bold=bold)
        for name, (variable, bold) in ROLES.items()
    }
    styles["faint"] = _faint(variables, faint_share)
    styles["strong"] = Style(bold=True)
    return RichTheme(styles, inherit=False)


def cursor_style(colour: RichColor | None, *, focused: bool, plain: bool) -> Style:
    """Return what is put over the row under the cursor; ``plain`` where only the terminal's own colours are used."""
    if plain:
        return Style(reverse=True) if focused else Style(underline=True)
    return Style(bgcolor=colour)


def _faint(variables: Mapping[str, str], share: float) -> Style:
    front, back = variables.get("foreground", ""), variables.get("background", "")
    if not (front.startswith("#") and back.startswith("#")):
        return Style(dim=True)
    mixed = Color.parse(front).blend(Color.parse(back), share)
    return Style(color=RichColor.from_rgb(*mixed.rgb))


def _rich(value: str) -> RichColor | None:
    if value.startswith("#"):
        return RichColor.from_rgb(*Color.parse(value).rgb)
    name = value.partition(" ")[0].removeprefix("ansi_")
    return RichColor.parse(name) if value.startswith("ansi_") and name else None
