"""Following: items of bounded size, log text as it was printed, an end when it is given up."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract import limits
from distconsole_agent.contract.protocol import MAX_ENTRIES_PER_ITEM, MAX_LINE_BYTES
from distconsole_agent.journal.journal import Journal
from distconsole_agent.server.answers import follow
from fakes.askers import Asker


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    for name in ("journal", "logs"):
        (tmp_path / name).mkdir()
    journal = Journal(str(tmp_path / "journal"))
    assert journal.open_writer()
    yield journal
    journal.close()


def items_of(journal: Journal, tmp_path: Path, after: int = 0) -> list[list[dict[str, Any]]]:
    items: list[list[bytes]] = []
    follow(journal, str(tmp_path), after, Asker(lambda item, _writer: items.append(item)))
    for item in items:
        assert len(item) <= MAX_ENTRIES_PER_ITEM
        assert sum(map(len, item)) < MAX_LINE_BYTES / 2
    return [[json.loads(entry) for entry in item] for item in items]


def note(number: int) -> dict[str, Any]:
    return {"t": 1.0, "kind": "note", "summary": str(number)}


def log(offset: int, length: int, name: str = "rank-0.out") -> dict[str, Any]:
    return {"t": 1.0, "kind": "log", "rank": 0, "stream": "out", "offset": offset, "length": length, "file": name}  # fmt: skip


END = {"t": 1.0, "kind": "end", "state": "succeeded", "exit_code": 0, "seconds": 1.0}


def test_items_hold_a_bounded_number_of_entries(journal: Journal, tmp_path: Path) -> None:
    journal.append([*map(note, range(2000)), END], {})
    items = items_of(journal, tmp_path)
    assert [entry["seq"] for item in items for entry in item] == list(range(1, 2002))
    assert len(items) == 4


def test_items_are_of_bounded_size_whatever_was_printed(journal: Journal, tmp_path: Path) -> None:
    # A control character is the worst: six bytes of JSON for each.
    text = b"\x01" * (100 * limits.LOG_SLICE_BYTES)
    (tmp_path / "logs" / "rank-0.out").write_bytes(text)
    size = limits.LOG_SLICE_BYTES
    journal.append([*(log(n * size, size) for n in range(100)), END], {})
    items = items_of(journal, tmp_path)
    assert (
        "".join(e["text"] for item in items for e in item[:] if e["kind"] == "log")
        == text.decode()
    )


def test_log_text_replaces_its_reference_or_is_empty(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "logs" / "rank-0.out").write_bytes(b"one\n\xff\xe2\x82\xac\n")
    (tmp_path / "spec.json").write_text("secret")
    gone = [log(0, 4, name) for name in ("rank-1.out", "../spec.json")]
    journal.append([log(0, 4), log(4, 5), *gone, END], {})
    ((*told, _),) = items_of(journal, tmp_path)
    assert [entry["text"] for entry in told] == ["one\n", "\ufffd€\n", "", ""]
    assert set(told[0]) == {"seq", "t", "kind", "rank", "stream", "offset", "text"}


def test_a_text_that_looks_like_a_log_entry_is_none(journal: Journal, tmp_path: Path) -> None:
    tricky = {"t": 1.0, "kind": "note", "summary": '"kind":"log"'}
    journal.append([tricky, {"t": 1.0, "kind": "note", "summary": '"kind":"end"'}, END], {})
    ((first, _, _),) = items_of(journal, tmp_path)
    assert first["summary"] == '"kind":"log"'


def test_news_wake_a_follower_and_giving_up_ends_it(journal: Journal, tmp_path: Path) -> None:
    got = threading.Event()
    seen: list[bytes] = []

    def send(item: list[bytes], _writer: str) -> None:
        seen.extend(item)
        got.set()

    asker = Asker(send)
    thread = threading.Thread(target=follow, args=(journal, str(tmp_path), 0, asker))
    thread.start()
    journal.append([note(1)], {})
    assert got.wait(10)
    asker.cancelled.set()
    journal.wake()
    thread.join(10)
    assert not thread.is_alive()
    assert len(seen) == 1


def test_a_follower_of_a_journal_that_closes_ends(journal: Journal, tmp_path: Path) -> None:
    thread = threading.Thread(target=follow, args=(journal, str(tmp_path), 0, Asker()))
    thread.start()
    journal.close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("late", [0.0, 60.0])
def test_on_a_slow_link_a_flood_is_left_out(journal: Journal, tmp_path: Path, late: float) -> None:
    line = b"0123456789 and some words to fill it, as a flood does to no end\n"
    size, slices = limits.LOG_SLICE_BYTES, 64
    (tmp_path / "logs" / "rank-0.out").write_bytes(line * (slices * size // len(line)))
    journal.append([log(0, size), note(2)], {})
    entries: list[dict[str, Any]] = []

    def send(item: list[bytes], _writer: str) -> None:
        # What was there when it was asked for is told whole; all else comes meanwhile.
        if not entries:
            journal.append([log(n * size, size) for n in range(1, slices)], {})
        entries.extend(map(json.loads, item))
        if entries[-1]["seq"] == slices + 1:
            journal.append([END], {})

    follow(journal, str(tmp_path), 0, Asker(send), wall=lambda: 1.0 + late)
    texts = [entry["text"] for entry in entries if entry["kind"] == "log"]
    assert [entry["seq"] for entry in entries] == list(range(1, slices + 3))
    assert len(texts[0]) == size
    told = limits.LAST_UNCUT_BYTES // size + 1 if late else slices - 1
    assert [bool(text) for text in texts[1:]] == [False] * (slices - 1 - told) + [True] * told
    mark = (
        f"[distconsole: {(slices - 1 - told) * size // len(line):,} lines are not shown here: the way to this console is "
        f"too slow for them; they are in {tmp_path}/logs/rank-0.out, bytes {size} to {(slices - told) * size}]\n"
    )
    assert sum(map(len, texts)) == (told + 1) * size + (len(mark) if late else 0)
    assert not late or mark in texts[slices - told]
