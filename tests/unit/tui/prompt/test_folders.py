"""Claims about listings of folders, and about what of a list is on the screen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.tui.prompt.folders import MAX_READING, Folders
from distconsole.tui.widgets.offer_list import Offer, page_of


def test_a_folder_that_answers_is_listed_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    folders = Folders(lambda: None)
    assert list(folders.list(tmp_path)) == [("a", False)]
    assert not folders.waiting


def test_a_folder_that_hangs_is_waited_for_by_nobody_and_comes_later(tmp_path: Path) -> None:
    answer, came = threading.Event(), threading.Event()

    def read(_: Path) -> Iterator[tuple[str, bool]]:
        answer.wait(10)
        yield "late", True

    folders = Folders(came.set, read)
    assert list(folders.list(tmp_path)) == []
    assert folders.waiting == str(tmp_path)
    answer.set()
    assert came.wait(10)
    assert list(folders.glance(tmp_path)) == [("late", True)]


def test_hung_folders_take_a_few_threads_only(tmp_path: Path) -> None:
    answer = threading.Event()
    asked = []

    def read(folder: Path) -> Iterator[tuple[str, bool]]:
        asked.append(folder)
        answer.wait(10)
        yield from ()

    before = threading.active_count()
    folders = Folders(lambda: None, read)
    for number in range(3 * MAX_READING):
        folders.glance(tmp_path / str(number))
        folders.glance(tmp_path / str(number))
    assert threading.active_count() - before <= MAX_READING
    answer.set()
    for thread in threading.enumerate():
        if thread.name == "folder":
            thread.join(10)
    assert len(asked) == MAX_READING


@pytest.mark.parametrize(
    ("count", "at", "width", "first", "shown", "columns"),
    [
        (3, None, 80, 0, 3, 13),
        (100, None, 80, 0, 65, 13),
        (100, 99, 80, 39, 61, 13),
        (100, 70, 80, 13, 65, 13),
        (100, 70, 3, 66, 5, 1),
        (0, None, 80, 0, 0, 26),
    ],
)
def test_the_one_chosen_is_on_the_page(
    count: int, at: int | None, width: int, first: int, shown: int, columns: int
) -> None:
    page = page_of([Offer(f"{number:04}") for number in range(count)], at, width, 5)
    assert (page.first, page.count, page.columns) == (first, shown, columns)
    assert at is None or page.first <= at < page.first + page.count


def test_what_has_a_meaning_stands_alone_on_its_line() -> None:
    assert page_of([Offer("a", "b"), Offer("c")], None, 80, 5).columns == 1
    assert page_of([Offer("漢字漢字")], None, 20, 5).width == 10
