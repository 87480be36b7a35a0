"""Beds that several files of tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed import Testbed
from testbed.slurm import SLURM_ENVIRONMENT, Slurm


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes with two GPUs each as Slurm believes, and a login host; all reach each other by ssh."""
    tmp_path_factory.getbasetemp()  # made before the hosts, so that they see it
    with (
        Testbed(3, environment=SLURM_ENVIRONMENT, node_ssh=True) as bed,
        Slurm(bed, gpus=2) as up,
    ):
        yield up


@pytest.fixture(scope="module")
def standing_bed(session_bed: Testbed) -> Iterator[Testbed]:
    """Two hosts that stay up through all tests of a file, each of which leaves them clean."""
    yield session_bed
    session_bed.reset()
