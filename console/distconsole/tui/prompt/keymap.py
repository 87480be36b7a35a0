"""The lines that keys type: ours, overridden by those of ``[keys]``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from textual.keys import _character_to_key

from distconsole.config.shortcuts import Alias, KeySetting
from distconsole.config.spelling import nearest, suggest
from distconsole.errors import ConfigError, UsageError
from distconsole.grammar.aliases import expand_alias
from distconsole.grammar.verbs import VERBS, parse_line
from distconsole.grammar.words import open_line
from distconsole.tui.prompt.keys import (
    CHARACTERS,
    FIRST_KEYS,
    KEYS,
    PROMPT_VERBS,
    REPLAY_KEYS,
    SCREEN_VERBS,
    TABS,
    VIEWS,
    Key,
)

NAMED = (
    *(f"f{number}" for number in range(1, 25)),
    *("insert", "space", "backspace", "delete", "tab", "enter", "escape"),
    *("home", "end", "pageup", "pagedown", "up", "down", "left", "right"),
)
SAME = {"ctrl+i": "Tab", "ctrl+m": "Enter", "ctrl+j": "Enter", "ctrl+h": "Backspace"}
"""Keys that a terminal encodes like another one."""

RESERVED = {
    **dict.fromkeys(("tab", "shift+tab", "enter", "escape", "up", "down", "left", "right"), ""),
    **dict.fromkeys(("home", "end", "pageup", "pagedown", "backspace", "delete"), ""),
    "ctrl+c": "cancels",
    "ctrl+r": "searches the history",
    "ctrl+g": "leaves a list",
    "ctrl+p": "opens the palette",
    "ctrl+l": "draws the screen anew",
    **{f"ctrl+{letter}": "edits the line" for letter in "adefkuvwxz"},
}
"""Keys that move and edit, and the prompt's others, with their effects."""
PLACES = ("run", "check", "host", "rank", "job")
FREE = "free are: f11, f12, insert, alt and a letter, ctrl+b ctrl+n ctrl+o ctrl+s ctrl+t ctrl+y"


@dataclass(frozen=True, slots=True)
class Keymap:
    """All keys, the configured ones first, and notes for the user on conflicts."""

    keys: tuple[Key, ...] = KEYS
    moving: tuple[Key, ...] = REPLAY_KEYS
    first: tuple[Key, ...] = FIRST_KEYS
    told: tuple[str, ...] = ()

    @property
    def tabs(self) -> tuple[Key, ...]:
        """The keys in the title: one for each of its views, if it has one."""
        found = []
        for tab in TABS:
            able = [key for key in self.keys if key.line == tab.line and not key.inside]
            able.sort(key=lambda key: key.key != tab.key)
            found += [replace(key, label=tab.label) for key in able[:1]]
        return tuple(found)

    @property
    def digits(self) -> dict[str, str]:
        """F-keys, and the digits that do the same inside a view, unless bound otherwise."""
        taken = {key.key for key in self.keys if key.inside}
        return {f"f{digit}": digit for digit in "123456789" if digit not in taken}

    def hints(self, view: str, *lines: str) -> str:
        """Return the keys that type ``lines`` in ``view``, as the border of a panel names them."""
        able = [key for key in self.keys if not key.views or view in key.views]
        found = (next((key for key in able if key.line == line), None) for line in lines)
        return " · ".join(f"{key.shown} {key.label}" for key in found if key is not None)

    def of(
        self, pressed: str, view: str, *, replayed: bool = False, offered: bool = False
    ) -> Key | None:
        """Return the key that works while ``view`` is on the screen, or None; ``offered``: while there are hosts to choose from."""
        able = (*(self.moving if replayed else ()), *(self.first if offered else ()), *self.keys)
        return next((key for key in able if key.key == pressed and key.works_in(view)), None)


def make_keymap(settings: Iterable[KeySetting], aliases: Mapping[str, Alias]) -> Keymap:
    """Return the keys with ``settings``, the last of which win; raises ConfigError naming file and line."""
    wanted: dict[tuple[str, str], KeySetting] = {}
    for setting in settings:
        if setting.view and setting.view not in VIEWS:
            known = f"known are: {', '.join(VIEWS)}"
            hint = suggest(setting.view, VIEWS, known, quote="'")
            raise ConfigError(f"{setting.place}: there is no view '{setting.view}'", hint)
        _check_line(setting, aliases)
        wanted[setting.view, _key_name(setting)] = setting
    own: list[Key] = []
    told: list[str] = []
    gone: set[Key] = set()
    for (view, name), setting in wanted.items():
        asks = setting.line.endswith(" ")
        line = setting.line if asks else setting.line.strip()
        key = Key(name, line, setting.label or line.strip(), asks, (view,) if view else ())
        if key.inside and not view:
            key = replace(key, views=VIEWS)
        same = [each for each in KEYS if each.key == name]
        places = set(key.views or VIEWS)
        replaced = [each for each in same if places & set(each.views or VIEWS)]
        gone |= {each for each in replaced if not view or each.views == (view,)}
        if setting.line:
            own.append(key)
        if lost := ", ".join(f"'{each.line}'" for each in replaced if each.line != key.line):
            where = f" in {view}" if view else ""
            what = f"is '{setting.line.strip()}'" if setting.line else "does nothing"
            told.append(f"{key.shown}{where} {what} ({setting.place}), no more {lost}")
    # A view's own binding goes before one for all views.
    own.sort(key=lambda key: not key.views)
    return Keymap((*own, *(key for key in KEYS if key not in gone)), told=tuple(told))


def _key_name(setting: KeySetting) -> str:
    """Return Textual's name of a key; raises ConfigError for an unknown or reserved one."""
    name = _textual_name(setting.key)
    if name is None:
        near = nearest(setting.key.rpartition("+")[2].lower(), NAMED)
        hint = f"did you mean '{near}'? " if near else ""
        raise ConfigError(
            f"{setting.place}: there is no key '{setting.key}'",
            f"{hint}keys are such as: f11, ctrl+t, alt+x, insert, x, /",
        )
    if name in SAME:
        raise ConfigError(
            f"{setting.place}: a terminal sends the same for '{setting.key}' and for {SAME[name]}",
            FREE,
        )
    if name in RESERVED:
        does = f": it {RESERVED[name]}" if RESERVED[name] else ""
        raise ConfigError(f"{setting.place}: '{setting.key}' is the prompt's own{does}", FREE)
    return name


def _textual_name(written: str) -> str | None:
    """Return Textual's name of ``ctrl+t``, ``^t``, ``F7``, ``/`` or ``N``; None if it is none."""
    text = f"ctrl+{written[1]}" if re.fullmatch(r"\^.", written) else written
    *modifiers, base = [text] if len(text) == 1 else re.split(r"\+(?=.)", text.strip())
    held = sorted(each.lower() for each in modifiers)
    if not set(held) <= {"ctrl", "alt"}:
        return None
    if len(base) == 1:
        if not base.isprintable():
            return None
        base = _character_to_key(base.lower() if "ctrl" in held else base)
    elif base.lower() in NAMED:
        base = base.lower()
    elif base not in CHARACTERS:
        return None
    return "+".join((*held, base))


def _check_line(setting: KeySetting, aliases: Mapping[str, Alias]) -> None:
    line = setting.line.strip()
    if not line:
        return
    unknown = [name for name in re.findall(r"\{([a-z_]+)\}", line) if name not in PLACES]
    if unknown:
        raise ConfigError(
            f"{setting.place}: the line of '{setting.key}' has {{{unknown[0]}}}, which stands for nothing",
            f"what stands for what is on the screen: {', '.join(f'{{{name}}}' for name in PLACES)}",
        )
    word = (open_line(f"{line} ").words or ("",))[0]
    known = (*PROMPT_VERBS, *aliases, "help")
    if word not in known:
        raise ConfigError(
            f"{setting.place}: the line of '{setting.key}' begins with '{word[:80]}', which is no verb",
            suggest(word, known, "'help' lists them", quote="'"),
        )
    if setting.line.endswith(" ") or word in SCREEN_VERBS:
        return
    try:
        parse_line(expand_alias(re.sub(r"\{[a-z]+\}", "x", line), aliases))
    except UsageError as error:
        if word in VERBS or "no verb" not in error.message:
            raise ConfigError(
                f"{setting.place}: the line of '{setting.key}': {error.message}", error.hint
            ) from None
