"""Runs without an end whose hosts do not answer: what is stored is told, and what is missing is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.config.paths import runs_dir
from distconsole.model import requests as ask
from distconsole.model.events import Event, Narration, RankListed
from distconsole.model.findings import Severity
from distconsole.model.names import RunId
from distconsole.model.run_events import LinkChanged, LogLine
from distconsole.operations import perform
from distconsole.operations.control import Control
from distconsole.runs.store.store import RunStore
from distconsole.session import open_session
from fakes.journals import Journal
from suite.programs import free_port


@pytest.fixture
def away(tmp_path: Path) -> Journal:
    """A stored run that nobody ended, on two hosts at which nothing listens any more."""
    store, journal = RunStore(runs_dir()), Journal(ended=False, seconds=3)
    journal.write(store)
    ssh_config = tmp_path / "ssh_config"
    ssh_config.write_text(f"Host node*\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    where = ask.Where(hosts=",".join(journal.names), ssh_config=str(ssh_config))
    with store.open(RunId(journal.run)) as run_file:
        run_file.write_record(replace(run_file.record(), where=where))
    return journal


def warnings(events: list[Event]) -> list[str]:
    return [
        event.text
        for event in events
        if isinstance(event, Narration) and event.severity is Severity.WARN
    ]


def test_lines_that_are_stored_are_told_though_no_host_answers(away: Journal) -> None:
    events = list(perform(ask.Logs("last", tail=2), open_session))
    assert sum(isinstance(event, LogLine) for event in events) == 2
    said = warnings(events)
    assert [text.partition(":")[0] for text in said] == list(away.names)
    assert all(
        "nothing answers" in text and "only what is stored here is shown" in text for text in said
    )


def test_ranks_are_listed_though_no_host_answers(away: Journal) -> None:
    request = ask.Show("last", only="rank>=0")
    events = list(perform(request, open_session))
    assert sum(isinstance(event, RankListed) for event in events) == away.world
    assert len(warnings(events)) == len(away.names)


def test_lines_are_followed_from_what_is_stored_on(away: Journal) -> None:
    control = Control()
    told: list[Event] = []
    for event in perform(ask.Logs("last", tail=2, follow=True), open_session, control):
        told.append(event)
        if sum(isinstance(each, LogLine) for each in told) == 2:
            control.leave()
    assert not any(isinstance(event, LinkChanged) for event in told)
    assert len(warnings(told)) == len(away.names)
