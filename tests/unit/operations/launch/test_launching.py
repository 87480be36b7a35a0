"""Runs that are launched again, by what is kept of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from distconsole.config.paths import runs_dir
from distconsole.errors import RunNotFoundError
from distconsole.model import requests as ask
from distconsole.model.names import RunId
from distconsole.operations import perform
from distconsole.runs.store.store import RunStore
from distconsole.session import open_session
from fakes.journals import Journal


def test_what_a_demo_ran_cannot_run_again_and_what_to_do_is_said(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text("import torch")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))

    store, journal = RunStore(runs_dir()), Journal(seconds=3)
    journal.write(store)
    where = ask.Where(cluster="embedded", ssh_config=str(tmp_path / "gone"))
    request = msgspec.json.encode(ask.Run("t.py", where=where))
    with store.open(RunId(journal.run)) as run_file:
        run_file.write_record(replace(run_file.record(), where=where, request=request))
    with pytest.raises(RunNotFoundError, match="nodes of a demo, which have ended") as caught:
        list(perform(ask.Rerun("last"), open_session))
    assert "distconsole demo" in caught.value.hint
