"""Who a process is, from what its engine left in the environment."""

from typing import Any

import pytest

from distconsole_training.identity import Identity, from_environment, from_request


@pytest.mark.parametrize(
    ("environment", "identity"),
    [
        ({}, Identity()),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, Identity(3, 1, 4)),
        ({"RANK": "0"}, Identity(0, -1, 0)),
        ({"RANK": "x"}, Identity()),
        ({"RANK": "-1"}, Identity()),
        ({"RANK": "99999999999"}, Identity()),
        ({"RANK": "²"}, Identity()),
        ({"HOROVOD_RANK": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_SIZE": "3"}, Identity(2, 0, 3)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "8",
            },
            Identity(5, 1, 8),
        ),
        ({"PMI_RANK": "1", "MPI_LOCALRANKID": "1", "PMI_SIZE": "2"}, Identity(1, 1, 2)),
        ({"SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, Identity(4, 0, 8)),
        ({"SLURM_PROCID": "0", "RANK": "7", "LOCAL_RANK": "3"}, Identity(7, 3, 0)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_LOCAL_RANK": "0"}, Identity(1, 0, 0)),
    ],
)
def test_identity_from_the_environment(environment: dict[str, str], identity: Identity) -> None:
    assert from_environment(environment) == identity


@pytest.mark.parametrize(
    ("arguments", "keywords", "asked"),
    [
        ((), {}, Identity(1, -1, 2)),
        (("gloo",), {"world_size": 4, "rank": 3}, Identity(3, -1, 4)),
        (("gloo", None, None, 4, 3), {}, Identity(3, -1, 4)),
        (("gloo",), {"world_size": -1, "rank": None}, Identity(1, -1, 2)),
        ((), {"init_method": "tcp://h:1?rank=3&world_size=4"}, Identity(3, -1, 4)),
        ((), {"init_method": "tcp://h:1?rank=x&"}, Identity(-1, -1, 2)),
        (("mpi",), {}, Identity()),
        ((), {"init_method": object(), "rank": "no"}, Identity(1, -1, 2)),
    ],
)
def test_the_place_that_a_call_asks_for(
    arguments: tuple[Any, ...], keywords: dict[str, Any], asked: Identity
) -> None:
    assert from_request(arguments, keywords, {"RANK": "1", "WORLD_SIZE": "2"}) == asked
