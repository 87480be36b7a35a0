"""Claims about adding to known_hosts: lines that are there stay, also one without an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from distconsole.errors import ConfigError
from distconsole.ssh.known_hosts import add_line


def test_a_line_is_added_behind_those_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("a ssh-ed25519 AAAA")
    add_line(str(file), "b ssh-ed25519 BBBB")
    add_line(str(file), "c ssh-ed25519 CCCC")
    assert file.read_text().splitlines() == [
        "a ssh-ed25519 AAAA",
        "b ssh-ed25519 BBBB",
        "c ssh-ed25519 CCCC",
    ]


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "known_hosts"
    add_line(str(file), "a ssh-ed25519 AAAA")
    assert file.read_text() == "a ssh-ed25519 AAAA\n"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        add_line(str(tmp_path), "a ssh-ed25519 AAAA")
