"""Which files are the script's own, by the module that a file is, wherever it lies."""

from __future__ import annotations

import pytest

from distconsole.runs.diagnosis.stacks import is_library


@pytest.mark.parametrize(
    "file",
    [
        "/tmp/distconsole-0/runs/r-1/code/train.py",
        "/home/me/distconsole/examples/train.py",
        "/home/me/distconsole_training/2026/may/train.py",
    ],
)
def test_a_script_is_its_own_in_a_folder_with_our_name(file: str) -> None:
    assert not is_library(file)


@pytest.mark.parametrize(
    "file",
    [
        "/tmp/distconsole-0/hook-0af3/distconsole_training/process.py",
        "/tmp/distconsole-0/hook-0af3/distconsole_training/torch_hook/torch_steps.py",
        "/venv/lib/python3.11/site-packages/distconsole_training/recipes/digits.py",
    ],
)
def test_the_hook_is_a_library(file: str) -> None:
    assert is_library(file)
