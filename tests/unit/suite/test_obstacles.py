"""Tests that cannot run are skipped by name, with a reason, and counted."""

from __future__ import annotations

import pytest

from suite.obstacles import by_reason, needs_module, obstacle


def test_the_largest_group_comes_first() -> None:
    skipped = [("a", "needs root"), ("b", "needs a GPU"), ("c", "needs root")]
    assert list(by_reason(skipped).items()) == [
        ("needs root", ["a", "c"]),
        ("needs a GPU", ["b"]),
    ]


def test_a_module_that_is_missing_is_named_with_the_way_to_it() -> None:
    assert needs_module("no_such_module", "make test") == "needs no_such_module (make test)"
    assert needs_module("json", "make test") == ""


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    obstacle.cache_clear()
    try:
        assert obstacle("mpi") == "needs mpirun (Debian: openmpi-bin)"
        assert obstacle("slurm").startswith("needs slurmctld, slurmd, srun, munged")
        assert obstacle("gpu") == "needs an NVIDIA GPU"
    finally:
        obstacle.cache_clear()


def test_an_unmarked_test_has_no_obstacle() -> None:
    assert obstacle("keeps") == ""
