"""A run's id, which is shown and typed, and its secret, which is neither."""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from pathlib import PurePosixPath

from distconsole.model.names import RunId

SECRET_BYTES = 32
MAX_STEM = 20


def new_run_id(script: str, name: str | None, now: datetime) -> RunId:
    """Return a readable, unique id such as ``digits-1121-a3f9c2``.

    Args:
        script: The script's path or the module's name.
        name: The run's name, which is preferred.
        now: For the month and day.
    """
    file = PurePosixPath(script).name.removesuffix(".py").removesuffix(".sh")
    source = name or file.rpartition(".")[2]
    stem = re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")[:MAX_STEM].strip("-") or "run"
    return RunId(f"{stem}-{now:%m%d}-{secrets.token_hex(3)}")


def new_secret() -> str:
    """Return the secret that a run's nodes know each other by; it never reaches a disk here."""
    return secrets.token_hex(SECRET_BYTES)
