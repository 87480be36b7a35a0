"""Stages that go on at once are told as one, and cleared away when nobody listens any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from distconsole.rpc.fanout import run_at_once


def waits(own: threading.Event, others: threading.Event, name: str) -> Iterator[str]:
    own.set()
    assert others.wait(10)
    yield name


def test_each_goes_on_while_the_other_waits_for_it() -> None:
    first, second = threading.Event(), threading.Event()
    works = [("a", waits(first, second, "host1")), ("b", waits(second, first, "host2"))]
    told = list(run_at_once(works, pytest.fail))
    assert sorted(told) == [("a", ""), ("a", "host1"), ("b", ""), ("b", "host2")]


def test_what_one_raises_is_raised_after_the_others_were_told_to_give_up() -> None:
    given_up = threading.Event()
    cleared: list[str] = []

    def fails() -> Iterator[str]:
        yield "host1"
        raise ValueError("no")

    def clears() -> Iterator[str]:
        assert given_up.wait(10)
        cleared.append("b")
        yield "host2"

    with pytest.raises(ValueError, match="no"):
        list(run_at_once([("a", fails()), ("b", clears())], given_up.set))
    assert cleared == ["b"]


def test_a_consumer_that_goes_away_ends_them() -> None:
    given_up = threading.Event()

    def endless() -> Iterator[str]:
        yield "host1"
        assert given_up.wait(10)

    stages = run_at_once([("a", endless())], given_up.set)
    assert next(stages) == ("a", "host1")
    stages.close()
    assert given_up.is_set()
