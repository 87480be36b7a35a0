"""How long a process waits for a processor."""

from __future__ import annotations

import os

import pytest

from distconsole_agent.journal import queueing as module
from distconsole_agent.journal.queueing import Queueing


def test_it_is_told_of_the_time_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    queueing = Queueing()
    assert queueing.percent(os.getpid()) is None
    found = queueing.percent(os.getpid())
    assert found is not None
    assert 0.0 <= found <= 100.0
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: 0)
    assert queueing.percent(os.getpid()) is None, "a clock that goes back tells nothing"


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    assert Queueing().percent(2**22 + 1) is None
