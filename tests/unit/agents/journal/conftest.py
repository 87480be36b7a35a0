"""Runs whose sources a test writes, and the folder of a journal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.drained_run import Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run")
    yield run
    run.close()


@pytest.fixture
def engine_run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run", engine_ranks=False)
    yield run
    run.close()


@pytest.fixture
def run_of_one_process(tmp_path: Path) -> Iterator[Run]:
    """A script that spawns its ranks: the plan has one number for it."""
    run = Run(tmp_path / "run", ranks=1, engine_ranks=False)
    yield run
    run.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.mkdir()
    return path
