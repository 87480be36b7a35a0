"""The prompt, when the project's file is changed while the console is open."""

from pathlib import Path

import pytest

from distconsole.config.load import trust_as_it_is
from distconsole.errors import UntrustedError, UsageError
from distconsole.model import requests as ask
from distconsole.tui.session import ConsoleSession


def test_a_changed_file_is_asked_about_before_anything_is_done(cwd: Path) -> None:
    file = cwd / "distconsole.toml"
    file.write_text("setup = 'module load cuda'\n")
    trust_as_it_is(file)
    session = ConsoleSession(ask.Where())
    try:
        assert isinstance(session.request("check"), ask.Check)
        file.write_text("setup = 'touch /tmp/x'\n")
        for line in ("check", "run t.py", "no-verb"):
            with pytest.raises(UntrustedError, match="was changed since it was trusted"):
                session.request(line)
        assert session.request("trust") == ask.Trust()
        with pytest.raises(UsageError, match="cannot split"):
            session.request("trust '")
    finally:
        session.end()
