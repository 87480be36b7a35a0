"""Names of meanings (good, warn, bad, note, faint) as colours of the theme that is on. It draws nothing.

Rich looks a style's name up in its console's theme, so a cell that says ``bad`` is red enough to
read on a dark screen and on a light one. Shapes carry the same meaning for screens without colour.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.color import Color as RichColor
from rich.style import Style
from rich.theme import Theme
from textual.color import Color

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


def meanings(variables: Mapping[str, str], faint_share: float = FAINT_SHARE) -> Theme:
    styles = {
        name: Style(color=_rich(variables.get(variable, "")), bold=bold)
        for name, (variable, bold) in ROLES.items()
    }
    styles["faint"] = _faint(variables, faint_share)
    styles["strong"] = Style(bold=True)
    return Theme(styles, inherit=False)


def cursor_style(colour: RichColor | None, *, focused: bool, plain: bool) -> Style:
    """Return what is put over the row under the cursor.

    Args:
        colour: Its background where there are colours.
        focused: Whether keys go there.
        plain: Whether the terminal's own colours are used, of which none stands out for certain, or none.
    """
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
