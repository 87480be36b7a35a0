"""A picture of the screen, as a file."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from textual.app import App

from distconsole.config.paths import expand_home, state_dir
from distconsole.errors import ConsoleError

_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts from a server, which would learn of each opening of the file."""


def picture_of(app: App[Any], title: str) -> str:
    """Return the screen as an SVG without external resources."""
    return _FONTS.sub("", app.export_screenshot(title=title))


def save_screenshot(app: App[Any], view: str, path: str | None) -> str:
    """Write a picture of the screen and return a message; raises ConsoleError if it cannot be written.

    Without a ``path`` it makes up a name in this folder, else in that of the console's state.
    """
    picture = picture_of(app, f"distconsole {view}")
    name = time.strftime(f"distconsole-{view}-%Y%m%d-%H%M%S.svg")
    folder = Path.cwd() if os.access(".", os.W_OK) else state_dir()
    file = folder / name if path is None else expand_home(path)
    try:
        if path is None:
            folder.mkdir(parents=True, exist_ok=True)
        file.write_text(picture, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConsoleError(
            f"the picture cannot be written: {error.strerror}: {file}", "screenshot FILE"
        ) from None
    return f"saved {file.name} in {file.parent.resolve()}"
