"""Thousands of kept runs are listed without opening each; what the catalogue knows is only a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from distconsole.model import requests as ask
from distconsole.model.events import Narration, RunListed
from distconsole.operations.stored import history
from distconsole.runs.store.catalogue import NAME, stamps_in
from distconsole.runs.store.run_file import RunFile
from distconsole.runs.store.store import RunStore
from fakes.journals import Journal


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(tmp_path / "runs")
    for number in range(5):
        Journal(run=f"run-{number}", seconds=3, ended=number != 4).write(store)
    return store


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose files are opened from now on."""
    found: list[str] = []
    real = RunFile.__init__

    def noted(self: RunFile, path: Path) -> None:
        found.append(path.stem)
        real(self, path)

    monkeypatch.setattr(RunFile, "__init__", noted)
    return found


def listed(store: RunStore) -> dict[str, str]:
    return {run: summary.state for run, summary in history.list_summaries(store)}


ALL = {f"run-{number}": "succeeded" for number in range(4)} | {"run-4": "unknown"}


def test_what_was_listed_once_is_not_opened_again(store: RunStore, opened: list[str]) -> None:
    assert listed(store) == ALL
    assert set(opened) == set(ALL)
    opened.clear()
    assert listed(store) == ALL
    assert store.resolve("digits") in ALL
    assert store.resolve("last") in ALL
    assert opened == []


def test_a_run_that_changed_is_opened_again_and_one_that_is_gone_is_forgotten(
    store: RunStore, opened: list[str]
) -> None:
    listed(store)
    store.remove(history.RunId("run-0"))
    with store.open(history.RunId("run-4")) as run_file:
        run_file.write_end(
            b'{"event":"end","t":1.0,"run":"run-4","state":"failed","exit_code":3,"seconds":9.0}'
        )
    opened.clear()
    found = listed(store)
    assert set(opened) == {"run-4"}
    assert found["run-4"] == "failed"
    assert "run-0" not in found
    assert set(store.catalogue.read()) == set(found)


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all" * 400, b"SQLite format 3\0" + b"\xff" * 4000]
)
def test_a_catalogue_that_is_damaged_is_made_anew(store: RunStore, content: bytes) -> None:
    (store.folder / NAME).write_bytes(content)
    assert listed(store) == ALL
    assert listed(store) == ALL
    assert set(store.catalogue.read()) == set(ALL)


def test_what_there_is_no_time_to_look_into_is_listed_and_looked_into_later(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hurry:
        hurry.setattr(history, "BRIEF_SECONDS", -1.0)
        assert listed(store) == ALL
    steps = [summary.steps for _, summary in history.list_summaries(store)]
    assert steps == [60] * 5


def test_files_that_are_no_runs_are_said_and_the_rest_is_listed(store: RunStore) -> None:
    (store.folder / "run-9.db").write_bytes(b"half a file")
    events = list(history.runs(ask.Runs(), None, store))  # type: ignore[arg-type]
    assert sum(isinstance(event, RunListed) for event in events) == 5
    said = [event.text for event in events if isinstance(event, Narration)]
    assert any("run-9 cannot be read and is not listed" in text for text in said)


def test_a_folder_that_cannot_be_written_only_costs_time(store: RunStore) -> None:
    (store.folder / NAME).mkdir()
    assert listed(store) == ALL
    assert listed(store) == ALL


def test_a_run_that_is_being_written_has_another_stamp(store: RunStore) -> None:
    before = stamps_in(store.folder)
    with store.open(history.RunId("run-4")) as run_file:
        run_file.write_end(b"{}")
        assert stamps_in(store.folder)["run-4"] != before["run-4"]
    assert stamps_in(store.folder / "nowhere") == {}
