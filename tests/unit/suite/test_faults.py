"""The laboratory's list speaks of checks that there are, at levels at which they run."""

from __future__ import annotations

import argparse
import shlex

import pytest

from distconsole.checks.engine.catalogue import at_level, find_rule
from distconsole.model.requests import Level
from testbed.faults import BY_NAME, FAULTS, THREE_AT_ONCE, Fault
from testbed.lab import chosen, lab, listed

WHY_A_HOST_IS_LEFT_OUT = "net.reach_tcp"
"""Told also where only jobs were asked for."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_must_be_found_can_be_found(fault: Fault) -> None:
    assert fault.expected
    for expected in fault.expected:
        rule = find_rule(expected.check)
        assert rule is not None
        assert at_level(rule, Level(fault.level))
        assert (
            not fault.only or rule.id.startswith(fault.only) or rule.id == WHY_A_HOST_IS_LEFT_OUT
        )


def test_names_are_words_and_stand_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BY_NAME) == len(FAULTS)
    assert all(shlex.quote(name) == name for name in BY_NAME)
    assert set(THREE_AT_ONCE) < set(BY_NAME)
    lab(argparse.Namespace(fault=[]))
    assert capsys.readouterr().out == listed() + "\n"


def test_a_fault_or_a_host_that_is_not_there_is_one_line() -> None:
    assert chosen("dead-host:2", 3) == (BY_NAME["dead-host"], 2)
    for word in ("dead-hots", "dead-host:4", "dead-host:x"):
        with pytest.raises(SystemExit, match=word.partition(":")[0]):
            chosen(word, 3)
