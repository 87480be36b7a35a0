"""A plugin of pytest that writes one line of JSON for each test: its outcome, warnings and output.

It runs in the suites' own pytest, bare and watched alike; ``DIFFERENTIAL_FILE`` names the file, which a rank's number ends.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest

RANK = os.environ.get("HOROVOD_RANK", os.environ.get("RANK", "0"))
FILE = f"{os.environ['DIFFERENTIAL_FILE']}.{RANK}"

_warned: list[str] = []


@pytest.hookimpl
def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    _warned.append(f"{warning_message.category.__name__}: {warning_message.message}")


@pytest.hookimpl
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:
        return
    words = [f"{report.outcome} in {report.when}", *(text for _, text in report.sections)]
    if report.failed or report.skipped:
        words.append(str(report.longrepr))
    _write(report.nodeid, report.outcome, words)


@pytest.hookimpl
def pytest_sessionfinish() -> None:
    _write("warnings of all tests", "passed", sorted(_warned))


def _write(test: str, outcome: str, words: list[str]) -> None:
    with Path(FILE).open("a") as file:
        file.write(json.dumps([test, outcome, "\n".join(words)]) + "\n")
