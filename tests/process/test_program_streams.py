"""The program under streams that are closed or cannot say everything. It runs no training."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distconsole.__main__ import mend_streams

SECONDS = 60


def distconsole(home: Path, redirect: str, *words: str) -> str:
    """Return what a shell's ``distconsole WORDS`` prints, then its exit code."""
    command = f'"$0" -m distconsole "$@" {redirect}; echo code $? >&2'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, *words],
        env={**os.environ, "HOME": str(home), "XDG_DATA_HOME": str(home)},
        capture_output=True,
        check=True,
        timeout=SECONDS,
    )
    return (done.stdout + done.stderr).decode("ascii", "replace")


@pytest.mark.parametrize("redirect", [">&-", "<&- >&-"])
def test_a_closed_stream_is_no_traceback(tmp_path: Path, redirect: str) -> None:
    said = distconsole(tmp_path, redirect, "show", "nosuch")
    assert "Traceback" not in said
    assert "code 2" in said


@pytest.mark.parametrize(
    ("name", "value", "redirect"),
    [("COLUMNS", "40", "| head -c 9"), ("PYTHONIOENCODING", "ascii", ""), ("TERM", "dumb", "")],
)
def test_help_is_read_in_any_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, redirect: str
) -> None:
    monkeypatch.setenv(name, value)
    said = distconsole(tmp_path, redirect, "run", "--help")
    assert said.startswith("Usage: di")
    assert "Traceback" not in said
    assert said.endswith("code 0\n")


def test_what_the_locale_cannot_say_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    mend_streams()
    print("loss \u2603", flush=True)
    assert written.getvalue() == b"loss \\u2603\n"
