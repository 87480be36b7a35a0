"""Beds that several files of tests share."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from distconsole.config.schema import Config
from distconsole.operations import SessionSource
from distconsole.session import Session
from distconsole.ssh.embedded import EmbeddedCluster
from suite.known_agent import nodes_with_agent
from suite.lean_torch import lean_torch
from testbed import Testbed
from testbed.slurm import SLURM_ENVIRONMENT, Slurm


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[EmbeddedCluster]:
    """Two embedded nodes: real SSH on loopback, real agents."""
    with nodes_with_agent(tmp_path_factory.mktemp("e")) as embedded:
        yield embedded


@pytest.fixture
def sessions(cluster: EmbeddedCluster) -> Iterator[SessionSource]:
    """The session of an operator of those nodes, whatever hosts are asked for."""
    with Session(Config(), cluster.cluster) as session:
        yield lambda _where: nullcontext(session)


@pytest.fixture(scope="module")
def standing_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Two embedded nodes that stay up through all tests of a file which do them no harm."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        with nodes_with_agent(tmp_path_factory.mktemp("e")) as nodes:
            yield nodes


@pytest.fixture
def standing_sessions(standing_nodes: EmbeddedCluster, home: Path) -> Iterator[SessionSource]:
    """A session of the test's own on those nodes; the runs of the tests before are known there."""
    with Session(Config(), standing_nodes.cluster) as session:
        yield lambda _where: nullcontext(session)


@pytest.fixture(scope="session")
def session_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm that lives as long as the session; tests take ``slurm``."""
    tmp_path_factory.getbasetemp()  # made before the hosts, so that they see it
    with Testbed(3, environment=SLURM_ENVIRONMENT, node_ssh=True) as bed, Slurm(bed, gpus=2) as up:
        yield up


@pytest.fixture
def slurm(session_slurm: Slurm, nothing_left: None) -> Iterator[Slurm]:
    """Two nodes with two GPUs each as Slurm believes, and a login host; all reach each other by ssh.

    The queue is empty, whatever became of the test before.
    """
    yield session_slurm
    if session_slurm.queue():
        session_slurm.cancel_all()


@pytest.fixture(scope="session")
def lean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which Python imports a lean torch, also in ranks whose program is no test's."""
    return lean_torch(tmp_path_factory.mktemp("lean"))


@pytest.fixture(scope="module")
def lean_here(lean: dict[str, str]) -> Iterator[None]:
    """What this process starts from now on, embedded nodes included, imports the lean torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", lean["PYTHONPATH"])
        yield


@pytest.fixture
def lean_bed(healed_bed: Testbed, lean: dict[str, str]) -> Testbed:
    """The two hosts of ``healed_bed``, with these variables until they are switched off."""
    for host in healed_bed.hosts:
        if lean.items() - host.environment().items():
            host.set_environment(lean)
            host.forget_environment()
    return healed_bed
