"""What cannot be read, or holds another word, is no number and no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from distconsole_agent.system.kernel_files import entries_of, first_line_of, number_of, text_of
from distconsole_agent.system.procfs import user_name


@pytest.mark.parametrize(
    ("said", "number"),
    [("7\n", 7), ("-1\n", -1), ("max\n", None), ("", None), ("-\n", None), ("--1", None), ("²", None)],
)  # fmt: skip
def test_a_number_is_a_whole_one_or_none(said: str, number: int | None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(said)
    assert number_of(tmp_path / "file") == number


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert (text_of(gone), first_line_of(gone), number_of(gone)) == ("", None, None)
    assert entries_of(str(gone)) == []
    assert first_line_of(tmp_path) is None


def test_a_user_without_a_name_has_its_number() -> None:
    assert user_name(0) == "root"
    assert user_name(4_000_000_000) == "4000000000"
