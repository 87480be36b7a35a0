"""What became of a test, for the fixtures that clean up after it and for the summary."""

from __future__ import annotations

import pytest

_FAILED = pytest.StashKey[bool]()

MAX_WORDS = 300


def remember(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep whether a phase of a test failed; its setup comes first."""
    if report.when == "setup":
        item.stash[_FAILED] = False
    if report.failed:
        item.stash[_FAILED] = True


def has_failed(item: pytest.Item) -> bool:
    """Return whether a test, or its setup, failed in this try."""
    return item.stash.get(_FAILED, False)


def first_words(report: pytest.TestReport) -> str:
    """Return where and why a test failed, on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    told = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
    return " ".join(told.split())[:MAX_WORDS]
