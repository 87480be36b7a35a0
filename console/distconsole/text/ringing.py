"""A notice as bytes that a terminal rings for: the bell, and a note on the desktop.

OSC 9 (iTerm2, Windows Terminal, WezTerm, Ghostty, kitty): ``ESC ] 9 ; text BEL``. OSC 777 (urxvt, VTE, foot,
Ghostty, WezTerm): ``ESC ] 777 ; notify ; title ; text BEL``. tmux keeps both to itself unless they are
wrapped, and passes those on where ``allow-passthrough`` is on (tmux(1), from 3.3); so does screen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from distconsole.config.load import load_config
from distconsole.config.notify import notify_settings
from distconsole.model import requests as ask
from distconsole.model.notices import Notice, Way
from distconsole.model.verbs import RunRole, verb_of
from distconsole.operations.notifying import Notifier, trial, usual_ways, ways_for
from distconsole.ssh.plain import plain_text

MAX_CHARS = 200
BELL = "\x07"
NINE = ("iTerm.app", "WezTerm", "ghostty")
"""TERM_PROGRAM of terminals that know OSC 9."""
SILENT = ("linux", "dumb", "")
"""TERM of what has no desktop."""


def notifier_for(
    request: ask.Request,
    write: Callable[[str], object],
    say: Callable[[str], None],
    *,
    on_screen: bool,
) -> Notifier | None:
    """Return the notifier for the run of ``request``; None if notices are off. A trial rings at once.

    Raises ConfigError if the configuration cannot be read, UsageError if a way was asked for that is not configured.
    """
    is_trial = isinstance(request, ask.Notify) and request.test
    if not is_trial and verb_of(request).role in (RunRole.NONE, RunRole.REPLAYS):
        return None
    settings = notify_settings(load_config().notify)

    def ring(notice: Notice, ways: AbstractSet[Way]) -> None:
        write(ringing(notice, ways, settings.desktop or "auto", os.environ))

    if is_trial:
        ring(trial(0.0), usual_ways(settings, on_screen=True))
        return None
    ways = ways_for(request, settings, on_screen=on_screen)
    if not ways:
        return None
    return Notifier(settings, ways, ring, say, attached=isinstance(request, ask.Attach))


def ringing(
    notice: Notice, ways: AbstractSet[Way], desktop: str, environment: Mapping[str, str]
) -> str:
    """Return what to write to the terminal of this environment; ``desktop``: auto, osc9, osc777, both, off."""
    bell = BELL if Way.BELL in ways else ""
    if Way.DESKTOP not in ways:
        return bell
    for sequence in _sequences(notice, desktop, environment):
        if environment.get("TMUX"):
            bell += f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\"
        else:
            bell += f"\x1bP{sequence}\x1b\\" if environment.get("STY") else sequence
    return bell


def _sequences(notice: Notice, desktop: str, environment: Mapping[str, str]) -> list[str]:
    title, text = _words(notice.title), _words(notice.text)
    nine = f"\x1b]9;{title}: {text}{BELL}"
    named = f"\x1b]777;notify;{title.replace(';', ',')};{text.replace(';', ',')}{BELL}"
    match _guess_terminal(environment) if desktop == "auto" else desktop:
        case "osc9":
            return [nine]
        case "osc777":
            return [named]
        case "both":
            return [nine, named]
        case _:
            return []


def _guess_terminal(environment: Mapping[str, str]) -> str:
    """Return the terminal's abilities; both if it is unknown: each takes its own."""
    term = environment.get("TERM", "")
    if term in SILENT:
        return "off"
    if environment.get("TERM_PROGRAM") in NINE or term == "xterm-kitty":
        return "osc9"
    vte = "VTE_VERSION" in environment and "TMUX" not in environment
    return "osc777" if vte or term.startswith(("rxvt", "foot")) else "both"


def _words(text: str) -> str:
    """Return a text in which nothing ends or begins a sequence."""
    return plain_text(text).replace("\t", " ")[:MAX_CHARS]
