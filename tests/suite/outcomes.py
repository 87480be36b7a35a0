"""Whether a test failed, for the fixtures that clean up after it."""

import pytest

_FAILED = pytest.StashKey[bool]()


def remember(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep that a phase of a test failed."""
    if report.failed:
        item.stash[_FAILED] = True


def has_failed(item: pytest.Item) -> bool:
    """Return whether a test, or its setup, failed."""
    return item.stash.get(_FAILED, False)
