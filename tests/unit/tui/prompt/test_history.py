"""Claims about the history: each line once, no secrets, two consoles, hostile files."""

import stat
from pathlib import Path

import pytest

from distconsole.config.shortcuts import MAX_LINE_CHARS
from distconsole.grammar.secrets import MASK
from distconsole.tui.prompt.history import MAX_HISTORY, History
from distconsole.tui.terminal.sanitize import one_line


def test_a_history_open_to_others_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.touch(mode=0o644)
    History(path).add("check")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_consoles_keep_and_see_each_others_lines(tmp_path: Path) -> None:
    path = tmp_path / "history"
    one, other = History(path), History(path)
    one.add("check")
    other.add("runs")
    one.refresh()
    assert one.lines == other.lines == History(path).lines == ["check", "runs"]


def test_a_line_is_kept_once_where_it_was_typed_last(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    for line in ("check", "runs", "check"):
        history.add(line)
    assert history.lines == History(tmp_path / "history").lines == ["runs", "check"]


def test_a_history_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"show {number}\n" for number in range(3 * MAX_HISTORY)))
    assert len(History(path).lines) == MAX_HISTORY
    assert len(path.read_text().splitlines()) == MAX_HISTORY


def test_a_history_on_a_disk_that_refuses_costs_only_the_history(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    history = History(blocked / "history")
    history.add("check")
    history.add("runs")
    assert history.lines == ["check", "runs"]


@pytest.mark.parametrize("line", [" check", "\tcheck", "", "  ", "x" * (MAX_LINE_CHARS + 1)])
def test_what_is_not_kept(line: str, tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.add(line)
    assert history.lines == []
    assert not (tmp_path / "history").exists()


def test_a_secret_is_recalled_in_its_sitting_and_never_written(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history, line = History(path), "run --env HF_TOKEN=hunter2 t.py"
    history.add(line)
    History(path).add("check")  # so that the file is read again
    history.refresh()
    assert history.lines == [line, "check"]
    assert "hunter2" not in path.read_text()
    assert History(path).lines[0] == f"run --env HF_TOKEN={MASK} t.py"


def test_a_hostile_file_is_read_as_plain_lines(tmp_path: Path) -> None:
    path = tmp_path / "history"
    rubbish = [
        b"check\x1b[2J\x1b]0;x\x07",
        b"\xff\xfe\x00runs",
        "\u202eevil \u05e9\u05dc\u05d5\u05dd".encode(),
        "漢字 e\u0301".encode(),
        b"x" * 1_000_000,
        b"[bold]x[/red]",
    ]
    path.write_bytes(b"\n".join(rubbish))
    lines = History(path).lines
    assert lines == [
        "check",
        "\ufffd\ufffdruns",
        "evil \u05e9\u05dc\u05d5\u05dd",
        "漢字 e\u0301",
        "[bold]x[/red]",
    ]


def test_of_a_huge_file_the_newest_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b"show 1234567\n" * 500_000 + b"check\n")
    assert History(path).lines == ["show 1234567", "check"]
    assert path.stat().st_size < 100


def test_a_search_finds_all_its_words_newest_first() -> None:
    history = History(None)
    for line in ("run a.py", "check --Level full", "run b.py --lr 1", "runs"):
        history.add(line)
    assert history.search("run py") == ["run b.py --lr 1", "run a.py"]
    assert history.search("level") == ["check --Level full"]
    assert history.search("LEVEL") == []
    assert len(history.search("")) == 4


def test_one_line_is_made_of_what_a_terminal_would_obey() -> None:
    assert one_line("a\tb\nc\x1b\x07\x9b\u2028d\u202e") == "a b cd"
