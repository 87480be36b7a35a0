"""Whether the start-up file is done: where the console opens without a verb, and nobody said no. It reads none."""

from __future__ import annotations

from distconsole.config.schema import Config
from distconsole.model import requests as ask


def wants_startup(request: ask.Request, config: Config) -> bool:
    """Return whether ``request`` opens the console as a place to work in; ``attach`` shows one run."""
    if not isinstance(request, ask.OpenConsole):
        return False
    asked = config.startup if request.startup is None else request.startup
    return asked is not False
