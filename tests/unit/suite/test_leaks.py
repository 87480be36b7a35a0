"""The leak check finds what a test leaves, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace

from suite.leaks import Held, leaked_since


def test_nothing_is_held_where_nothing_was_taken() -> None:
    assert leaked_since(Held.now(), seconds=0) == []


def test_a_thread_that_runs_on_is_found() -> None:
    before, ended = Held.now(), threading.Event()
    thread = threading.Thread(target=ended.wait, name="left-running")
    thread.start()
    assert leaked_since(before, seconds=0) == ["thread 'left-running'"]
    ended.set()
    thread.join()
    assert leaked_since(before, seconds=0) == []


def test_a_child_that_nobody_waited_for_is_found() -> None:
    before = Held.now()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = leaked_since(before, seconds=0)
    child.communicate()
    assert any(line.startswith(f"process {child.pid}: ") for line in found)
    assert any(line.startswith("descriptor ") and "pipe" in line for line in found)
    assert leaked_since(before, seconds=0) == []


def test_a_descriptor_that_stays_open_is_found() -> None:
    before = Held.now()
    reading, writing = os.pipe()
    assert len(leaked_since(before, seconds=0)) == 2
    os.close(reading)
    os.close(writing)
    assert leaked_since(before, seconds=0) == []


def test_what_ends_by_itself_in_time_is_no_leak() -> None:
    before = Held.now()
    timer = threading.Timer(0.05, lambda: None)
    timer.start()
    assert leaked_since(before, seconds=5) == []


def test_a_child_that_the_kernel_did_not_list_before_is_no_leak() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held = Held.now()
    before = replace(held, children=frozenset(), ticks=held.ticks + 1)
    found = leaked_since(before, seconds=0)
    child.communicate()
    assert found == []


def test_a_child_that_had_no_words_yet_is_known_by_its_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held = Held.now()
    without_words = frozenset((pid, "") for pid, _ in held.children)
    before = replace(held, children=without_words, ticks=0)
    found = leaked_since(before, seconds=0)
    child.communicate()
    assert (child.pid, "") in without_words
    assert found == []
