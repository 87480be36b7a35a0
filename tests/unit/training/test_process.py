"""Who makes the ring of a process, and when; and what is noted of an exception that nobody caught."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_training import identity
from distconsole_training import process as home
from distconsole_training.process import ENV_RINGS, Process
from distconsole_training.recorder import Recorder


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_RINGS, str(tmp_path))
    return tmp_path


@pytest.fixture
def process(rings: Path) -> Iterator[Process]:
    made = Process()
    yield made
    if made.made is not None:
        made.made.close()


def test_of_two_threads_the_second_waits_for_the_ring_that_the_first_makes(
    process: Process, rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_asks = threading.Event()
    original = identity.from_environment

    def slow(environment: Any) -> identity.Identity:
        assert second_asks.wait(10)
        return original(environment)

    monkeypatch.setattr(identity, "from_environment", slow)
    found: list[Recorder | None] = []
    first = threading.Thread(target=lambda: found.append(process.recorder()))
    first.start()

    def ask() -> None:
        second_asks.set()
        found.append(process.recorder())

    second = threading.Thread(target=ask)
    second.start()
    first.join()
    second.join()
    assert found[0] is not None
    assert found == [process.made] * 2
    assert len(list(rings.iterdir())) == 1


def test_who_asks_while_making_it_gets_none_and_does_not_wait(
    process: Process, rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Recorder | None] = []
    original = identity.from_environment

    def interrupted(environment: Any) -> identity.Identity:
        asked.append(process.recorder())
        return original(environment)

    monkeypatch.setattr(identity, "from_environment", interrupted)
    assert process.recorder() is not None
    assert asked == [None]
    assert len(list(rings.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("def f(:\n", "SyntaxError", "invalid syntax (train.py, line 1)"),
        ("if True:\npass\n", "IndentationError", "expected an indented block"),
        ("raise ValueError('bad: label')\n", "ValueError", "bad: label"),
        ("raise KeyError\n", "KeyError", ""),
    ],
)
def test_a_message_is_what_went_wrong_and_not_the_lines_around_it(
    text: str, kind: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(home.ENV_ERRORS, str(tmp_path))
    monkeypatch.setattr(home, "_noted_by", [])
    with pytest.raises(BaseException) as raised:  # noqa: PT011  (of any kind)
        exec(compile(text, "/shared/train.py", "exec"), {})  # noqa: S102
    home.note(raised.value, 1)
    noted = json.loads((tmp_path / f"{os.getpid()}.json").read_text())
    assert noted["type"] == kind
    assert noted["message"][: len(message) or None] == message
    assert "\n" not in noted["message"]
