"""Runs programs to their end and keeps what they print; it judges nothing."""

import socket
import subprocess
from collections.abc import Sequence
from typing import Any

SECONDS = 120.0
"""Less than a whole test may take, so that a program that hangs is named."""


def run_to_end(words: Sequence[Any], **how: Any) -> subprocess.CompletedProcess[str]:
    """Return how a program without input ended and what it printed; ``how`` as for ``subprocess.run``."""
    given = {"timeout": SECONDS} | ({} if "input" in how else {"stdin": subprocess.DEVNULL})
    return subprocess.run(
        words, capture_output=True, text=True, **{"check": False, **given, **how}
    )


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
