"""A line that names no run: which one is meant, and what is said of it."""

from dataclasses import replace

import pytest

from distconsole.__main__ import run
from distconsole.config.paths import runs_dir
from distconsole.errors import UsageError
from distconsole.model import requests as ask
from distconsole.operations.stored.newest import name_run
from distconsole.runs.store.store import RunStore
from fakes.journals import Journal


@pytest.fixture(autouse=True)
def kept() -> None:
    """A run that is over, and one of which no end is known."""
    store = RunStore(runs_dir())
    Journal("digits-1121-a3f9").write(store)
    Journal("digits-1121-b7c1", ended=False).write(store)


def test_a_verb_that_looks_is_about_the_newest_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    request, told = name_run(ask.Show(run=""))
    assert request == ask.Show(run="digits-1121-b7c1")
    assert told.startswith("the newest run: digits-1121-b7c1")
    assert name_run(ask.Show(run="x")) == (ask.Show(run="x"), "")
    on_hosts = ask.Attach(run="", where=ask.Where(hosts="node7"))
    assert name_run(on_hosts) == (replace(on_hosts, run="last"), "")
    assert run(["logs"]) == 0
    assert capsys.readouterr().err.startswith("the newest run: digits-1121-b7c1")


@pytest.mark.parametrize(
    ("request_", "offered"),
    [
        (ask.Stop(run=""), ["distconsole stop digits-1121-b7c1"]),
        (
            ask.Rerun(run=""),
            ["distconsole rerun digits-1121-b7c1", "distconsole rerun digits-1121-a3f9"],
        ),
    ],
)
def test_a_verb_that_changes_something_lists_what_it_can_be_about(
    request_: ask.Request, offered: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        name_run(request_)
    assert [line.partition("  (")[0] for line in caught.value.hint.splitlines()] == offered
