"""A run in a few numbers: what the quicker fold makes of its record is what the whole picture says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole.model.names import HostName, RunId
from distconsole.runs.following.follow import EntryWriter
from distconsole.runs.store.run_file import StoredEntry
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import (
    UNSUMMED,
    stored_timeline,
    summarise,
    summary_of,
)
from fakes.journals import START, Journal

Told = list[tuple[float, int, dict[str, Any]]]


class Faulty(Journal):
    """A journal with its entries changed on the way."""

    def __init__(self, change: Callable[[Told], Told], **more: Any) -> None:
        super().__init__(hosts=2, per_host=4, **more)
        object.__setattr__(self, "change", change)

    def _told(self) -> Iterator[tuple[float, int, dict[str, Any]]]:
        yield from self.change(list(super()._told()))  # type: ignore[attr-defined]


def each_window(
    change: Callable[[float, dict[str, Any]], dict[str, Any]],
) -> Callable[[Told], Told]:
    def changed(told: Told) -> Told:
        return [
            (t, place, {**body, **change(t - START, body)} if body["kind"] == "window" else body)
            for t, place, body in told
        ]

    return changed


def shift(seconds: Callable[[float], float]) -> Callable[[Told], Told]:
    """Move what the second host tells, by its clock or because it comes late."""

    def changed(told: Told) -> Told:
        return [(t + seconds(t - START) * place, place, body) for t, place, body in told]

    return changed


def restart(told: Told) -> Told:
    attempt = {"kind": "attempt", "restart": 1, "of": 2}
    again = START + 30
    changed: Told = []
    for t, place, body in told:
        if t >= again and body["kind"] == "window":
            step = body["step"] - 20 * 23
            points = {"loss": [[step - 10, 1.0, 32.0], [step, 0.9, 32.0]]}
            body = {**body, "step": step, "points": points}
        changed.append((t, place, body))
    at = next(number for number, (t, _, _) in enumerate(changed) if t >= again)
    return [*changed[:at], (again, 0, attempt), (again, 1, attempt), *changed[at:]]


def lose(told: Told) -> Told:
    note = {
        "kind": "note",
        "check": "run.node_lost",
        "severity": "warn",
        "summary": "lost",
        "host": "node2",
    }
    at = next(number for number, (t, _, _) in enumerate(told) if t >= START + 40)
    return [*told[:at], (told[at][0], 0, note), *told[at:]]


WAITS = {"waited_ms": [20.0, 0.0, 0.0, 20.0, 0.0]}
FAULTS: dict[str, Faulty] = {
    "as ever": Faulty(list),
    "slow": Faulty(list, slow=5),
    "slow in lockstep, then failed": Faulty(list, slow=2, lockstep=True, fails=2),
    "slow, with waits": Faulty(
        each_window(lambda _, body: WAITS if body["rank"] != 3 else {"waited_ms": [0.0] * 5}),
        slow=3, lockstep=True,
    ),
    "slow for a while": Faulty(
        each_window(
            lambda t, body: {"step_ms": [90.0, 91.0], "data_ms": 40.0}
            if body["rank"] == 6 and 20 < t < 40 else {}
        )
    ),
    "restart": Faulty(restart, slow=1),
    "node lost": Faulty(lose),
    "clock ahead": Faulty(shift(lambda _: 7.3), slow=5),
    "clock set back": Faulty(shift(lambda t: -11.0 if t > 30 else 0.0)),
    "late journal": Faulty(shift(lambda t: 14.0 if t > 30 else 0.0)),
    "silent rank": Faulty(
        each_window(lambda t, body: {"points": {}} if body["rank"] == 7 and t > 25 else {})
    ),
    "thinned points": Faulty(
        each_window(lambda _, body: {"points": {"loss": body["points"]["loss"][body["rank"] % 2 :]}})
    ),
    "diverged": Faulty(
        each_window(
            lambda t, body: {"points": {"loss": [[body["step"], math.nan, 32.0]]}, "step_ms": [math.inf, 1.0]}
            if body["rank"] == 1 and 9 < t < 12 else {}
        ),
        slow=5,
        lockstep=True,
    ),
    "mute rank": Faulty(
        lambda told: [
            (t, place, body)
            for t, place, body in told
            if body["kind"] != "window" or body["rank"] != 7 or not 20 < t - START < 45
        ]
    ),
    "unknown": Faulty(
        each_window(
            lambda _, body: {"points": {"loss": [[body["step"], None, None]]}, "step_ms": None}
            if body["rank"] == 1 else {}
        )
    ),
    "batches first": Faulty(each_window(lambda t, _: {"batches": True} if t < 30 else {})),
    "epochs from 0": Faulty(
        each_window(
            lambda _, body: {"points": {"loss": [[body["step"] % 400, body["step"] / 7, 32.0]]}}
        )
    ),
    "damaged": Faulty(each_window(lambda t, body: {"rank": "two"} if body["rank"] == 2 and t > 50 else {})),
    "short of data": Faulty(
        each_window(lambda _, body: {"workers": [2, 99.0, 0.0], "data_ms": 30.0})
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_summary_is_that_of_the_whole_picture(tmp_path: Path, fault: str) -> None:
    journal, store = FAULTS[fault], RunStore(tmp_path)
    journal.write(store)
    with store.open(RunId(journal.run)) as run_file:
        seen = stored_timeline(run_file)
        summed = stored_timeline(run_file, UNSUMMED, sums=True)
        record = run_file.record()
        # Compared as text: NaN is not equal to itself.
        assert repr(summary_of(run_file)) == repr(summarise(record, seen))
    assert summed.findings == seen.findings
    points = {name: repr(series.points()) for name, series in seen.metrics.items()}
    assert {name: repr(series.points()) for name, series in summed.metrics.items()} == points
    assert seen.steps is not None


def test_hosts_are_found_whatever_they_are_called(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    journal = Journal()
    journal.write(store)
    names = ["", " ", "a", "A", "a'b", "z\x00", "é", "\U0001f600", "node10", "node2"]
    with store.open(RunId(journal.run)) as run_file:
        assert list(run_file._hosts()) == sorted(journal.names)
        writer = EntryWriter(run_file.path)
        writer.put(
            [StoredEntry(HostName(name), seq, 1.0, b"{}") for name in names for seq in (1, 2)]
        )
        writer.close()
        assert set(run_file._hosts()) == {*journal.names, *names}
        run_file._db.execute("DELETE FROM entries")
        assert run_file._hosts() == []
