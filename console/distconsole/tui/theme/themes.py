"""The console's own themes, the choice of the first one, and colours by meaning.

Text reaches a contrast of 4.5:1 on each of its backgrounds, and 7:1 in ``contrast`` (WCAG 2.2,
1.4.3 and 1.4.6); a test reads that off the screens. ``terminal`` has no colours of its own: it takes
the terminal's sixteen, for terminals without more, and none under NO_COLOR. Rich looks a
style's name up in its console's theme: a ``bad`` cell is red enough to read in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rich.color import Color as RichColor
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.theme import Theme as RichTheme
from textual.color import Color
from textual.theme import Theme

DARK, LIGHT, CONTRAST, TERMINAL = "dark", "light", "contrast", "terminal"
NAMES = (DARK, LIGHT, CONTRAST, TERMINAL)
"""In the order of the key that changes them."""

ROLES = {
    "good": ("text-success", False),
    "warn": ("text-warning", False),
    "bad": ("text-error", True),
    "note": ("text-primary", False),
    "accent": ("text-accent", False),
    "data": ("phase-data", False),
    "forward": ("phase-forward", False),
    "backward": ("phase-backward", False),
    "optimizer": ("phase-optimizer", False),
    "curve": ("curve", False),
    "band": ("band", False),
    "frame": ("frame", False),
}
"""Meaning -> the variable of Textual's themes, and True if bold."""

FAINT_SHARE = 0.35
"""Share of the background in faint text, unless the theme has its own."""


@dataclass(frozen=True, slots=True)
class Look:
    """A theme, the sixteen colours of text printed in it (None: the terminal's own), and its faintness."""

    theme: Theme
    ansi: TerminalTheme | None
    faint_share: float = FAINT_SHARE


COLOURS: Mapping[str, tuple[str | None, str | None, str | None]] = {
    "primary": ("#0178D4", "#00579E", "#1E6FFF"),
    "secondary": ("#004578", "#0178D4", "#A6C8FF"),
    "accent": ("#8FA8FF", "#4046B8", "#B4C0FF"),
    "warning": ("#ffa62b", "#B25B00", "#FFE066"),
    "error": ("#ba3c5b", "#A8001C", "#FFA0A0"),
    "success": ("#4EBF71", "#1B6E2A", "#7CFF9C"),
    "foreground": ("#e0e0e0", "#1c1c1c", "#FFFFFF"),
    "background": (None, "#F5F5F5", "#000000"),
    "surface": (None, "#EBEBEB", "#0A0A0A"),
    # Dark: grey, as terminals with 256 colours show a bluer one as a deep blue.
    "panel": ("#282d32", "#DCDCDC", "#262626"),
    "boost": (None, None, "#101018"),
}
"""Colours of Textual's themes in ours: dark, light, contrast; None where Textual makes one of the others."""

VARIABLES: Mapping[str, tuple[str | None, str, str]] = {
    "text-muted": ("#a0a0a0", "#4A4A4A", "#D8D8D8"),
    "text-primary": ("#57A5E2", "#004578", "#A6C8FF"),
    "text-accent": ("#A9BBFF", "#1C1CA8", "#C4CEFF"),
    "text-success": ("#8AD4A1", "#15561F", "#7CFF9C"),
    "text-warning": ("#FFC473", "#6E4700", "#FFE066"),
    "text-error": ("#E58FA3", "#98001A", "#FFA8A8"),
    "primary-lighten-2": (None, "#00579E", "#A6C8FF"),
}

PICTURES: Mapping[str, tuple[str, str, str]] = {
    "frame": ("#4d545c", "#b0b0b0", "#9a9a9a"),
    "curve": ("#5FD0EE", "#006B85", "#7CF0FF"),
    "band": ("#2F7C93", "#5E9FB0", "#3FA8BC"),
    "phase-data": ("#B48EF0", "#6B3FB0", "#D0B4FF"),
    "phase-forward": ("#3FBFAE", "#006B60", "#5FE0CF"),
    "phase-backward": ("#5B9BE6", "#0B57A8", "#8FC0FF"),
    "phase-optimizer": ("#F08AC0", "#A82E78", "#FF9AD0"),
}
"""Colours of pictures, none of them a verdict: frames, curves with their bands, the parts of a step."""

PRINTED: Mapping[str, tuple[str, str, str]] = {
    "background": ("#121212", "#f5f5f5", "#000000"),
    "black": ("#9a9a9a", "#4a4a4a", "#c8c8c8"),  # black on black cannot be read
    "red": ("#ff8a8a", "#98001a", "#ffa8a8"),
    "green": ("#98e024", "#15561f", "#7cff9c"),
    "yellow": ("#f4bf75", "#6b4e00", "#ffe066"),
    "blue": ("#8ab4ff", "#0b3d91", "#a6c8ff"),
    "magenta": ("#ff7ac6", "#7a1f7a", "#ffb0f0"),
    "cyan": ("#58d1eb", "#005866", "#7cf0ff"),
    "white": ("#e0e0e0", "#1c1c1c", "#ffffff"),
}
"""The background and the eight colours of printed text; the bright ones are the same."""


def _look(name: str, at: int, faint_share: float) -> Look:
    colours: dict[str, Any] = {role: row[at] for role, row in COLOURS.items() if row[at]}
    rows = {**VARIABLES, **PICTURES}
    variables = {role: colour for role, row in rows.items() if (colour := row[at])}
    back, *eight = (Color.parse(row[at]).rgb for row in PRINTED.values())
    theme = Theme(name, dark=name != LIGHT, variables=variables, **colours)
    return Look(theme, TerminalTheme(back, eight[-1], eight, eight), faint_share)


_TERMINAL = Look(
    Theme(
        TERMINAL,
        ansi=True,
        primary="ansi_cyan",
        secondary="ansi_cyan",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        accent="ansi_bright_blue",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables={
            "ansi-background": "ansi_black",
            "ansi-foreground": "ansi_white",
            "frame": "ansi_bright_black",
            "curve": "ansi_cyan",
            "band": "ansi_cyan",
            "phase-data": "ansi_magenta",
            "phase-forward": "ansi_cyan",
            "phase-backward": "ansi_blue",
            "phase-optimizer": "ansi_bright_magenta",
        },
    ),
    None,
)

LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        DARK: _look(DARK, 0, FAINT_SHARE),
        LIGHT: _look(LIGHT, 1, 0.2),
        CONTRAST: _look(CONTRAST, 2, 0.2),
        TERMINAL: _TERMINAL,
    }
)


def first_theme(asked: str | None, kept: str | None, *, colours: int, no_color: bool) -> str:
    """Return the first theme on a terminal with ``colours``: ``asked``, else ``kept``."""
    if no_color:
        return TERMINAL
    if asked is not None:
        return asked
    if colours < 256:
        return TERMINAL  # others come out as whatever is nearest, which cannot always be read
    return kept or DARK


def meanings(variables: Mapping[str, str], faint_share: float = FAINT_SHARE) -> RichTheme:
    """Return Rich's styles by meaning (``ROLES``), in the colours of a theme of Textual's."""
    styles = {
        name: Style(color=_rich(variables.get(variable, "")), bold=bold)
        for name, (variable, bold) in ROLES.items()
    }
    styles["faint"] = Style(dim=True)
    front, back = variables.get("foreground", ""), variables.get("background", "")
    if front.startswith("#") and back.startswith("#"):
        mixed = Color.parse(front).blend(Color.parse(back), faint_share)
        styles["faint"] = Style(color=RichColor.from_rgb(*mixed.rgb))
    styles["strong"] = Style(bold=True)
    return RichTheme(styles, inherit=False)


def _rich(value: str) -> RichColor | None:
    if value.startswith("#"):
        return RichColor.from_rgb(*Color.parse(value).rgb)
    name = value.partition(" ")[0].removeprefix("ansi_")
    return RichColor.parse(name) if value.startswith("ansi_") and name else None
