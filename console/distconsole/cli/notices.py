"""Tells whoever started a run without the screen what becomes of it."""

from __future__ import annotations

import os

from distconsole.cli.streams import Streams
from distconsole.config.load import load_config
from distconsole.config.notify import NotifySettings, notify_settings
from distconsole.model import requests as ask
from distconsole.model.notices import Notice, Way
from distconsole.operations.notifying import Notifier, trial, usual_ways, ways_for
from distconsole.text.ringing import ringing


def notifier_for(request: ask.Request, streams: Streams) -> Notifier | None:
    """Return what tells of ``request``; None where nobody is to be told.

    Raises:
        ConfigError: if the configuration cannot be read.
        UsageError: if a way was asked for that is not configured.
    """
    if not isinstance(request, ask.Run | ask.Rerun | ask.Attach | ask.Notify):
        return None
    settings = notify_settings(load_config().notify)

    def ring(notice: Notice, ways: frozenset[Way]) -> None:
        _ring(streams, settings, notice, ways)

    if isinstance(request, ask.Notify):
        if request.test:
            ring(trial(0.0), usual_ways(settings, on_screen=True))
        return None
    ways = ways_for(request, settings, on_screen=False)
    if not ways:
        return None
    attached = isinstance(request, ask.Attach)
    return Notifier(settings, ways, ring, streams.say, attached=attached)


def _ring(
    streams: Streams, settings: NotifySettings, notice: Notice, ways: frozenset[Way]
) -> None:
    """Ring the terminal behind stderr; where that is none there is nothing to ring."""
    if not streams.live:
        return
    try:
        streams.err.write(ringing(notice, ways, settings.desktop or "auto", os.environ))
        streams.err.flush()
    except OSError:
        return  # the terminal is gone, and with it whoever would hear it
