"""``report`` without a console, and with one that cannot be written to."""

import os
import subprocess
import sys
from typing import Any

import pytest

from distconsole_training import report


class Hostile:
    def __float__(self) -> float:
        raise RuntimeError("no")


VALUES: dict[str, Any] = {"a": 1, "b": "text", "c": Hostile(), "d": [1, 2], "e": 10**400}


def test_it_does_nothing_without_a_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTCONSOLE_RINGS", raising=False)
    report(**VALUES)


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTCONSOLE_RINGS", "/proc/no/such/folder")
    report(**VALUES)
    report(step="x", samples=object(), **VALUES)  # type: ignore[arg-type]


def test_a_marked_step_needs_neither_torch_nor_a_console() -> None:
    program = (
        "import sys; from distconsole_training import mark_step\n"
        "with mark_step(samples=4): print('in it', 'torch' in sys.modules)"
    )
    bare = {name: value for name, value in os.environ.items() if name != "DISTCONSOLE_RINGS"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("in it False\n", "")
