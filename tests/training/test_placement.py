"""Who a process is, from what launchers say: their variables, as they set them."""

from pathlib import Path

import pytest

from distconsole_training.api.placement import (
    Launcher,
    Placement,
    SetupError,
    find_placement,
    first_host,
)

ENV = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "gpu[03-04,9],x1",
    "SLURM_JOB_ID": "1234",
}
MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
BATCH_STEP = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, Placement(Launcher.NONE, 0, 1, 0)),
        (ENV, Placement(Launcher.ENV, 3, 4, 1, "env://")),
        (HOROVOD, Placement(Launcher.HOROVOD, 1, 2, 0)),
        ({**ENV, **HOROVOD}, Placement(Launcher.HOROVOD, 1, 2, 0)),
        ({**OPEN_MPI, **ENV}, Placement(Launcher.ENV, 3, 4, 1, "env://")),
        ({**OPEN_MPI, **MEETING}, Placement(Launcher.OPEN_MPI, 2, 4, 0, "tcp://10.0.0.1:29500")),
        (
            {**MPICH, "MASTER_ADDR": "fd00::2", "MASTER_PORT": "1"},
            Placement(Launcher.MPICH, 1, 2, 1, "tcp://[fd00::2]:1"),
        ),
        (SLURM, Placement(Launcher.SLURM, 5, 8, 1, f"tcp://gpu03:{12000 + 1234 * 31 % 20000}")),
        (
            {**SLURM, "SLURM_STEP_NUM_TASKS": "6", **MEETING},
            Placement(Launcher.SLURM, 5, 6, 1, "tcp://10.0.0.1:29500"),
        ),
        ({**SLURM, **OPEN_MPI, **MEETING, "SLURM_PROCID": "0"}, None),
        (BATCH_STEP, Placement(Launcher.NONE, 0, 1, 0)),
        ({"NODE_RANK": "1", "NNODES": "2", **MEETING}, Placement(Launcher.NONE, 0, 1, 0)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Placement(Launcher.ENV, 0, 1, None)),
    ],
)
def test_launchers_name_their_ranks(environment: dict[str, str], wanted: Placement | None) -> None:
    if wanted is None:  # mpirun in a Slurm job: its ranks are MPI's
        wanted = Placement(Launcher.OPEN_MPI, 2, 4, 0, "tcp://10.0.0.1:29500")
    assert find_placement(environment) == wanted


def test_arguments_come_before_every_variable_unless_they_are_negative() -> None:
    given = {"rank": 0, "world_size": 2, "local_rank": 0}
    found = find_placement({**ENV, **SLURM}, init_method="tcp://h:1", **given)
    assert found == Placement(Launcher.ARGUMENTS, 0, 2, 0, "tcp://h:1")
    assert find_placement(ENV, **dict.fromkeys(given, -1)) == find_placement(ENV)
    assert find_placement(SLURM, init_method="file:///s/x").init_method == "file:///s/x"


def test_mpi_ranks_of_one_host_meet_in_the_folder_of_their_job(tmp_path: Path) -> None:
    alone = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    session = {"OMPI_MCA_orte_jobfam_session_dir": str(tmp_path)}
    found = find_placement({**alone, **session})
    assert found.init_method == f"file://{tmp_path}/distconsole-store"
    with pytest.raises(SetupError, match="MASTER_ADDR"):
        find_placement({**OPEN_MPI, **session})


def test_nobody_has_to_meet_where_horovod_brings_ranks_together() -> None:
    assert find_placement(OPEN_MPI, needs_meeting=False).init_method == ""


@pytest.mark.parametrize(
    ("environment", "arguments", "named"),
    [
        ({"RANK": "0"}, {}, "WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, {}, "RANK is not"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, {}, "RANK='one'"),
        ({"RANK": "2", "WORLD_SIZE": "2", **MEETING}, {}, "rank 2 does not fit a world of 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, "MASTER_ADDR is not set"),
        ({**ENV, "MASTER_PORT": ""}, {}, "MASTER_PORT is not set"),
        ({**ENV, "MASTER_PORT": "x"}, {}, "MASTER_PORT='x'"),
        (HOROVOD | {"HOROVOD_SIZE": ""}, {}, "HOROVOD_SIZE"),
        (OPEN_MPI, {}, "mpirun -x MASTER_ADDR"),
        (MPICH, {}, "mpiexec -genv MASTER_ADDR"),
        ({**MPICH, "MASTER_ADDR": "h"}, {}, "MASTER_PORT is not set"),
        ({**SLURM, "SLURM_STEP_NODELIST": ""}, {}, "SLURM_STEP_NODELIST is not set"),
        ({**SLURM, "SLURM_JOB_ID": ""}, {}, "SLURM_JOB_ID is not set"),
        ({}, {"rank": 0}, "world_size= was not given"),
        ({}, {"world_size": 2}, "rank= was not given"),
        ({}, {"rank": 0, "world_size": 2}, "MASTER_ADDR is not set"),
        ({}, {"init_method": "tcp://h:1"}, "give rank= and world_size="),
        (ENV, {"init_method": "http://h:1"}, "begins with tcp://"),
        (ENV, {"init_method": "file://x"}, "absolute path"),
    ],
)
def test_what_is_lacking_is_named(
    environment: dict[str, str], arguments: dict[str, object], named: str
) -> None:
    with pytest.raises(SetupError, match=named):
        find_placement(environment, **arguments)  # type: ignore[arg-type]


def test_the_first_of_slurms_nodes() -> None:
    for nodes, first in (
        ("node7", "node7"),
        ("a,b", "a"),
        ("gpu[01-08,12]", "gpu01"),
        ("r1n[5]-ib,x", "r1n5-ib"),
        ("gpu[3,7]", "gpu3"),
    ):
        assert first_host(nodes) == first
    with pytest.raises(SetupError, match="SLURM_STEP_NODELIST"):
        first_host("[]")
