"""A node that is gone for good, under every launcher at once: the last row of the table of docs/guide/restarts.md."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from suite.obstacles import obstacle
from suite.place import Place
from suite.remains import gone
from suite.starters import STARTERS
from testbed import Testbed
from testbed.slurm import SLURM_ENVIRONMENT, Slurm

pytestmark = [pytest.mark.testbed, pytest.mark.torch_ranks, pytest.mark.timeout(400)]

LOST_SECONDS = 150.0
"""For a node that is silent: it is given up after some forty."""

SLURMS_WORDS = [
    (143, f"Slurm ended {job}: {node}")
    for job in ("job 1", "the job")
    for node in (
        *("node2 failed", "a node of it failed"),
        "it counted node1 as failed, though node1 answers",
    )
]
"""slurmstepd's, which name the job, may be lost with the step, srun may not have
named the node yet, and slurmctld may ask a node by way of the one that is gone."""


@pytest.fixture
def bed_to_lose(
    tmp_path_factory: pytest.TempPathFactory, lean: dict[str, str]
) -> Iterator[Testbed]:
    """Three hosts and a login host, with Slurm where there is one."""
    tmp_path_factory.getbasetemp()  # made before the hosts, so that they see it
    with ExitStack() as stack:
        if obstacle("slurm"):
            yield stack.enter_context(Testbed(4, environment=lean))
            return
        bed = stack.enter_context(Testbed(4, environment=SLURM_ENVIRONMENT | lean))
        stack.enter_context(Slurm(bed))
        yield bed


def test_a_node_without_power_or_network_ends_the_run_and_nothing_stays(
    bed_to_lose: Testbed, tmp_path: Path
) -> None:
    """All at once, because a silent node has its forty seconds with each; one of them trains, up to its fourth step."""
    without_power, without_network = bed_to_lose.hosts[1:3]
    torch = STARTERS["torch"]
    others = [s for s in STARTERS.values() if s is not torch and not any(map(obstacle, s.marks))]
    with ExitStack() as stack:
        consoles = []
        for number, starter in enumerate(
            [replace(torch, hosts="node1:2,node3:1").light(), torch, *(s.light() for s in others)]
        ):
            place, folder = Place(starter, bed_to_lose), tmp_path / str(number)
            folder.mkdir()
            console = stack.enter_context(place.run(folder, "hangs"))
            place.trains(console)
            consoles.append((without_power if number else without_network, starter, console))
        without_power.power_cut()
        without_network.link_down("mgmt")
        for lost, starter, console in consoles:
            code = console.wait(LOST_SECONDS)
            end = console.events[-1]
            assert (end["event"], end["state"], end["exit_code"]) == ("end", "failed", code), end
            told = code, end["first_failure"]["error"]
            # Slurm may notice it first.
            by_slurm = starter.name == "slurm" and told in SLURMS_WORDS
            assert by_slurm or told == (1, f"node {lost.name} lost"), starter.name
    assert not gone(bed_to_lose.hosts[0], without_network)
