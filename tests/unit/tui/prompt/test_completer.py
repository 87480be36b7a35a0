"""Claims about listings of folders, and about what of a list is on the screen."""

import threading
from collections.abc import Iterator
from pathlib import Path

from distconsole.tui.prompt.completer import MAX_READING, Folders


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

    folders = Folders(lambda: None, read)
    for number in range(3 * MAX_READING):
        folders.glance(tmp_path / str(number))
        folders.glance(tmp_path / str(number))
    reading = [thread for thread in threading.enumerate() if thread.name == "folder"]
    assert len(reading) == MAX_READING
    answer.set()
    for thread in reading:
        thread.join(10)
    assert len(asked) == MAX_READING
