"""Rings the terminal for what becomes of runs. Tasks put it in from their threads; the screen takes it out."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from distconsole.config.load import load_config
from distconsole.config.notify import NOBODY, NotifySettings, notify_settings
from distconsole.errors import ConsoleError
from distconsole.model import requests as ask
from distconsole.model.notices import Notice, Way
from distconsole.operations.notifying import Notifier, trial, usual_ways, ways_for
from distconsole.text.ringing import ringing
from distconsole.tui.transcript import Transcript

MAX_WAITING = 32


class TerminalBell:
    """What is still to be rung, and who rings for which run.

    Args:
        transcript: Where failures are said.
    """

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._waiting: deque[str] = deque(maxlen=MAX_WAITING)

    def notifier(self, request: ask.Request) -> Notifier | None:
        """Return what tells of ``request``; what is wrong with its configuration is said, and nothing told."""
        try:
            settings = notify_settings(load_config().notify)
            ways = ways_for(request, settings, on_screen=True)
        except ConsoleError as error:
            self._transcript.error(error)
            return None
        attached = isinstance(request, ask.Attach)
        ring = self._ringer(settings)
        return Notifier(settings, ways, ring, self._transcript.say, attached=attached)

    def trial(self) -> None:
        """Ring as for a run."""
        try:
            settings = notify_settings(load_config().notify)
        except ConsoleError:
            settings = NOBODY
        self._ringer(settings)(trial(0.0), usual_ways(settings, on_screen=True))

    def drain(self) -> str:
        """Return what to write to the terminal now."""
        return "".join(self._waiting.popleft() for _ in range(len(self._waiting)))

    def _ringer(self, settings: NotifySettings) -> Callable[[Notice, frozenset[Way]], None]:
        desktop = settings.desktop or "auto"

        def ring(notice: Notice, ways: frozenset[Way]) -> None:
            self._waiting.append(ringing(notice, ways, desktop, os.environ))

        return ring
