"""Whether the start-up file is done: wherever the console opens, unless somebody said no. It reads none."""

from __future__ import annotations

from distconsole.config.schema import Config
from distconsole.model import requests as ask


def wants_startup(request: ask.Request, config: Config) -> bool:
    """Return whether the start-up file is done in the console that opens on ``request``."""
    asked = getattr(request, "startup", None)
    return (config.startup if asked is None else asked) is not False
