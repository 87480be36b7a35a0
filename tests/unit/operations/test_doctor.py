"""Claims about ``doctor``: one page, without secrets, that says what is broken and what to do."""

import json
from pathlib import Path

import pytest

from distconsole.__main__ import run
from distconsole.config.paths import runs_dir
from distconsole.runs.store.store import RunStore
from fakes.journals import Journal
from fakes.sshd import make_key


@pytest.fixture(autouse=True)
def project(cwd: Path) -> Path:
    return cwd


def test_the_page_says_what_there_is_and_not_who_somebody_is(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/bin/bash")
    (home / ".ssh").mkdir()
    make_key(home / ".ssh" / "id_ed25519")
    Journal().write(RunStore(runs_dir()))
    assert run(["doctor"]) == 0
    page = capsys.readouterr().out
    assert str(home) not in page
    assert "PRIVATE" not in page
    assert "~/.ssh/id_ed25519: ssh-ed25519" in page
    assert "hint: distconsole completion\n" in page
    assert " runs         1, " in page
    line = 'eval "$(_DISTCONSOLE_COMPLETE=bash_source distconsole)"\n'
    (home / ".bashrc").write_text(line)
    assert run(["doctor"]) == 0
    assert "completion   installed for bash" in capsys.readouterr().out


def test_a_broken_run_and_configuration_are_named_with_what_to_do(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "distconsole.toml").write_text("colour = 1\n")
    runs_dir().mkdir(parents=True)
    (runs_dir() / "digits-1121-a3f9.db").write_text("no database")
    assert run(["doctor", "--json"]) == 1
    told = capsys.readouterr()
    page = json.loads(told.out)
    assert page["ok"] is False
    broken = {
        line["name"]: line["hint"]
        for name, lines in page.items()
        for line in (lines if name != "ok" else ())
        if line["state"] == "fail"
    }
    assert broken["broken"] == "distconsole show digits-1121-a3f9 says why"
    assert "did you mean" in broken["error"]
    assert "error: broken: error, broken" in told.err


def test_hosts_are_asked_only_where_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    assert "\nhosts\n" not in capsys.readouterr().out
    assert run(["doctor", "--hosts", "nowhere.invalid"]) == 1
    assert "FAIL nowhere.invalid" in capsys.readouterr().out
