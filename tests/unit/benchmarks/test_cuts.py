"""The audit that the figure of lost records rests on: it must see what is lost and what is doubled."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.cuts import audit, blind_spots
from distconsole.model.names import HostName
from distconsole.runs.store.run_file import StoredEntry


def entry(seq: int, **body: Any) -> StoredEntry:
    return StoredEntry(HostName("node1"), seq, float(seq), json.dumps(body).encode())


def printed(seq: int, text: str) -> StoredEntry:
    return entry(seq, kind="log", rank=0, stream="out", text=text)


WHOLE = [
    entry(1, kind="window", rank=0, steps=2, dropped=0),
    printed(2, "step 0\nste"),
    printed(3, "p 1\nstep 2\n"),
    entry(4, kind="window", rank=0, steps=1, dropped=0),
    printed(5, "total 3\n"),
]


def test_a_whole_run_adds_up() -> None:
    found = audit(WHOLE)
    assert (found.off, found.steps, found.ranks, found.entries) == (0, 3, 1, 5)


def test_a_lost_window_is_steps_off_and_a_gap() -> None:
    found = audit([WHOLE[0], *WHOLE[1:3], WHOLE[4]])
    assert (found.steps_off, found.gaps, found.lines_lost) == (1, 1, 0)


def test_a_window_counted_twice_is_seen_though_no_number_is_missing() -> None:
    again = entry(6, kind="window", rank=0, steps=2, dropped=0)
    found = audit([*WHOLE, again])
    assert (found.steps_off, found.gaps) == (2, 0)


def test_lost_and_doubled_lines_are_told_apart() -> None:
    without = [*WHOLE[:2], printed(3, "p 1\n"), *WHOLE[3:]]
    assert audit(without).lines_lost == 1
    doubled = [*WHOLE[:2], printed(3, "p 1\nstep 2\nstep 2\n"), *WHOLE[3:]]
    assert audit(doubled).lines_doubled == 1


def test_a_slice_counted_twice_makes_lines_that_nobody_printed() -> None:
    assert audit([*WHOLE[:2], *WHOLE[1:]]).lines_garbled == 1


def test_what_a_host_says_it_dropped_counts() -> None:
    assert audit([*WHOLE, entry(6, kind="window", rank=0, steps=0, dropped=7)]).off == 7


def test_the_audit_is_blind_to_none_of_the_planted_faults() -> None:
    assert blind_spots(WHOLE) == 0
