"""What is noted of an exception that nobody caught."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from distconsole_training import errors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("def f(:\n", "SyntaxError", "invalid syntax (train.py, line 1)"),
        ("if True:\npass\n", "IndentationError", "expected an indented block"),
        ("raise ValueError('bad: label')\n", "ValueError", "bad: label"),
        ("raise KeyError\n", "KeyError", "KeyError"),
    ],
)
def test_a_message_is_what_went_wrong_and_not_the_lines_around_it(
    text: str, kind: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(errors.ENV_ERRORS, str(tmp_path))
    monkeypatch.setattr(errors, "_noted_by", [])
    with pytest.raises(BaseException) as raised:  # noqa: PT011  (of any kind)
        exec(compile(text, "/shared/train.py", "exec"), {})  # noqa: S102
    errors.note(raised.value, 1)
    noted = json.loads((tmp_path / f"{os.getpid()}.json").read_text())
    assert noted["type"] == kind
    assert noted["message"].startswith(message)
    assert "\n" not in noted["message"]
