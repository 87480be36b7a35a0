"""``report`` without a console, and with one that cannot be written to."""

from __future__ import annotations

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
