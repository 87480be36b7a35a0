"""Which of a script's arguments are paths, and which of them it writes to."""

from __future__ import annotations

import shlex

import pytest

from distconsole.launch.paths import argument_paths

HERE = {"/w/data/train", "/w/conf.yaml", "/w/cifar", "/w/gpt2"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--data /mnt/x --epochs 3", [("/mnt/x", "--data", False)]),
        ("--data=/mnt/x/", [("/mnt/x", "--data", False)]),
        (
            "--output-dir ./out --save /s",
            [("/w/out", "--output-dir", True), ("/s", "--save", True)],
        ),
        ("--resume-checkpoint /c/1.pt", [("/c/1.pt", "--resume-checkpoint", False)]),
        ("--checkpoint_dir /c", [("/c", "--checkpoint_dir", True)]),
        ("--log-dir ../logs", [("/logs", "--log-dir", True)]),
        ("data/train conf.yaml", [("/w/data/train", "", False), ("/w/conf.yaml", "", False)]),
        ("--dataset cifar --dataset other", [("/w/cifar", "--dataset", False)]),
        ("--model gpt2", []),
        ("--model meta/llama --lr 1e-3 --data s3://b/x --name a", []),
        ("--size 3x3 --date 1/2 -v --", []),
        ("--data ~/x --glob '/d/*.tar'", []),
        ("--data /", []),
        ("/d /d /d", [("/d", "", False)]),
    ],
)
def test_paths_among_arguments(line: str, found: list[tuple[str, str, bool]]) -> None:
    assert list(argument_paths(shlex.split(line), "/w", HERE.__contains__)) == found
