"""Runs below a real Slurm on hosts of the testbed, by the command line, while things break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed import Testbed
from testbed.slurm import SLURM_ENVIRONMENT, Slurm, daemons

pytestmark = [pytest.mark.testbed, pytest.mark.slurm]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes with two GPUs each as Slurm believes, and a login host."""
    tmp_path_factory.getbasetemp()  # made before the hosts, so that they see it
    with Testbed(3, environment=SLURM_ENVIRONMENT) as bed, Slurm(bed, gpus=2) as up:
        yield up


def test_slurm_runs_a_step_on_every_node_and_leaves_no_daemon_behind() -> None:
    with Testbed(3, environment=SLURM_ENVIRONMENT) as bed:
        with Slurm(bed) as slurm:
            told = slurm.login.exec("srun -N2 hostname").stdout
            assert sorted(told.split()) == [node.name for node in slurm.nodes]
        assert [daemons(host) for host in bed.hosts] == [[], [], []]
