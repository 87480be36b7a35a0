"""Who a process is, from what its engine left in the environment."""

from __future__ import annotations

import pytest

from distconsole_training.identity import Identity, from_environment


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
        (
            {"HOROVOD_RANK": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_SIZE": "3"},
            Identity(2, 0, 3),
        ),
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
        (
            {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_LOCAL_RANK": "0"},
            Identity(1, 0, 0),
        ),
    ],
)
def test_identity_from_the_environment(environment: dict[str, str], identity: Identity) -> None:
    assert from_environment(environment) == identity
