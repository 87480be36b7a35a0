"""``compare`` on stored runs: text and JSON, what was configured otherwise, and what cannot be compared."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from distconsole.config.paths import runs_dir
from distconsole.errors import RunNotFoundError, UsageError
from distconsole.formats.settings import arguments_of, settings_of_run
from distconsole.model import requests as ask
from distconsole.model.comparison import Comparison
from distconsole.model.events import RunsCompared
from distconsole.model.names import RunId
from distconsole.operations import perform
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.text.compare import comparison_lines
from fakes.journals import Journal
from fakes.sessions import no_session


def found(*runs: str) -> Comparison:
    events = list(perform(ask.Compare(runs), no_session))
    (made,) = (event for event in events if isinstance(event, RunsCompared))
    return made.comparison


@pytest.fixture
def store(home: Path) -> RunStore:
    store = RunStore(runs_dir())
    Journal(run="one-1", env={"NCCL_DEBUG": "INFO", "API_TOKEN": "one"}).write(store)
    Journal(
        run="two-1", slow=1, fails=2, seconds=90, env={"NCCL_DEBUG": "WARN", "API_TOKEN": "two"}
    ).write(store)
    for run, version, rate in (("one-1", "2.1.0", "0.1"), ("two-1", "2.3.0", "0.2")):
        with store.open(RunId(run)) as run_file:
            record = run_file.record()
            asked = ask.Run(
                "train.py",
                ("--lr", rate, "--token=abc123", "data"),
                launcher=ask.LauncherName.TORCH,
            )
            facts = {"node1": {"torch.version": version}, "node2": {"torch.version": version}}
            run_file.write_record(
                RunRecord(
                    record.run, record.name, record.started, record.hosts,
                    msgspec.json.encode(asked), facts=msgspec.json.encode(facts),
                )
            )  # fmt: skip
    return store


@pytest.mark.usefixtures("store")
def test_two_stored_runs_are_told_apart() -> None:
    made = found("one-1", "two-1")
    text = "\n".join(comparison_lines(made))
    assert "A succeeded, B failed" in text
    assert re.search(r"B takes 1[23] % longer per step \(.*\): data wait 2 → 5", text)
    differs = {each.name: each.values for each in made.differs}
    assert differs == {
        "env NCCL_DEBUG": ("INFO", "WARN"),
        "arg --lr": ("0.1", "0.2"),
        "torch.version": ("2.1.0", "2.3.0"),
    }
    assert {"launcher", "hosts", "arg --token", "env API_TOKEN"} <= set(made.same)
    assert "abc123" not in msgspec.json.encode(made).decode()


@pytest.mark.usefixtures("store")
def test_more_than_two_are_compared_with_the_first(store: RunStore) -> None:
    Journal(run="big-1", hosts=4).write(store)
    made = found("one-1", "two-1", "big-1")
    assert [run.letter for run in made.runs] == ["A", "B", "C"]
    assert any(words.startswith("C does 2.00 x the samples/s of A") for words in made.words)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("runs", "error"),
    [
        (("one-1",), UsageError),
        (("one-1", "one-1"), UsageError),
        (("one-1",) * 9, UsageError),
        (("one-1", "nowhere"), RunNotFoundError),
    ],
)
def test_what_cannot_be_compared_is_said(runs: tuple[str, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        found(*runs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lr", "0.1", "--bf16", "--seed=7"), {"--lr": "0.1", "--bf16": "given", "--seed": "7"}),
        (
            ("--shift", "-3", "data", "out"),
            {"--shift": "-3", "argument 1": "data", "argument 2": "out"},
        ),
        (("-x", "1", "-x", "2"), {"-x": "1 2"}),
        ((), {}),
    ],
)
def test_arguments_have_names(words: tuple[str, ...], said: dict[str, str]) -> None:
    assert arguments_of(words) == said


def test_a_run_that_was_attached_to_has_its_command() -> None:
    plan = Journal().plan()
    said = settings_of_run(replace(plan, name="x"), None, {}, ["NVIDIA H100"])
    assert said["command"] == "/opt/venv/bin/python train.py --epochs 3"
    assert said["GPU"] == "NVIDIA H100"
    assert "env MASTER_ADDR" not in said
