"""A record with times that no clock shows: every verb that reads it, and what it writes."""

import math
from pathlib import Path

import pytest

from distconsole.config.paths import runs_dir
from distconsole.model import requests as ask
from distconsole.model.names import RunId
from distconsole.model.requests import ExportFormat
from distconsole.operations import perform
from distconsole.runs.store.store import RunStore
from fakes.journals import START, Journal
from fakes.sessions import no_session
from suite.printing import print_events

RUN = "digits-1121-a3f9"
SERVICES = {ExportFormat.WANDB, ExportFormat.MLFLOW, ExportFormat.OTLP}
SOUND = Journal(run="sound-1121-b000", seconds=20)


@pytest.fixture(params=[1e300, -1e300, math.inf, float(2**63)])
def odd(request: pytest.FixtureRequest, home: Path) -> float:
    """Two runs are kept, of one of which the times are absurd."""
    store = RunStore(runs_dir())
    SOUND.write(store)
    t: float = request.param
    Journal(RUN, seconds=20, fails=1, odd_t=t).write(store)
    return t


def test_every_verb_prints_a_record_of_absurd_times(odd: float) -> None:
    wanted = {
        ask.Runs(): "train.py",
        ask.Show(RUN): "failed (exit code 1)",
        ask.Show(RUN, only="step_ms > 1"): "51.3 ms",
        ask.Logs(RUN, since="10s"): "loss.backward()",
        ask.Compare((RUN, SOUND.run)): "failed",
    }
    for request, word in wanted.items():
        assert word in "".join(print_events(request, *perform(request, no_session)))


def test_a_runs_start_is_its_first_entrys_where_its_record_knows_none(odd: float) -> None:
    with RunStore(runs_dir()).open(RunId(RUN)) as run_file:
        assert run_file.record().started == START
        times = [entry.t for entry in run_file.entries()]
        assert START <= min(times) <= max(times) < START + 60
        assert run_file.last_seen(run_file.record().hosts) == max(times)


def test_a_record_of_absurd_times_is_written_down(odd: float, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    list(perform(ask.ReportPage(RUN, str(page)), no_session))
    text = page.read_text()
    assert "began 2025-11-21" in text
    assert "e+300" not in text
    for form in set(ExportFormat) - SERVICES:
        place = str(tmp_path / form.value)
        assert list(perform(ask.Export(RUN, form, place), no_session))
