"""Hosts with the system's Open MPI and an MPICH: which of them mpirun is, and whose library its ranks load."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from distconsole.checks.engine.run import run_check
from distconsole.checks.gather.engine_jobs import EngineAnswer, EngineJob
from distconsole.checks.gather.short_run import short_run
from distconsole.model.events import CheckEnded
from distconsole.model.findings import Severity
from distconsole.model.reports import CheckReport
from distconsole.model.requests import Check, LauncherName, Run, Where
from distconsole.model.run_events import EndState, LogLine
from distconsole.session import Session, open_session
from suite.driving import Operator
from suite.obstacles import MPICH
from suite.remains import gone
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.mpi, pytest.mark.mpich]

OPEN_MPIS = "/usr/lib/x86_64-linux-gnu/openmpi/lib"
MPICHS = f"{MPICH}/lib"


def export(**variables: str) -> str:
    """Return a setup command."""
    return "export " + " ".join(f"{name}={value}" for name, value in variables.items())


def check(bed: Testbed, setup: str, *only: str) -> tuple[CheckReport, list[dict[str, Any]]]:
    """Return the report, and what each rank by mpirun found itself to be."""
    answers: list[EngineAnswer] = []

    def start(session: Session, job: EngineJob) -> EngineAnswer:
        answers.append(short_run(session, job))
        return answers[-1]

    where = Where(hosts=bed.names, ssh_config=str(bed.ssh_config), setup=setup)
    with open_session(where) as session:
        *_, ended = run_check(Check(where=where, only=only or ("mpi",)), session, start=start)
    assert isinstance(ended, CheckEnded)
    ranks = [rank for answer in answers for each in answer.ranks.values() for rank in each]
    return ended.report, [said["group"] for rank in ranks for said in rank.said if "group" in said]


# Those where the other's library is first, or in the way.
@pytest.mark.parametrize(
    ("first", "libraries"),
    [
        ("Open MPI", MPICHS),
        ("MPICH", f"{OPEN_MPIS}:{MPICHS}"),
        *(
            pytest.param(*row, marks=pytest.mark.campaign)
            for row in (
                *(("Open MPI", ""), ("Open MPI", f"{OPEN_MPIS}:{MPICHS}")),
                *(("MPICH", ""), ("MPICH", MPICHS)),
            )
        ),
    ],
)
def test_the_library_is_that_of_the_mpirun_in_any_order(
    standing_bed: Testbed, first: str, libraries: str
) -> None:
    path = f"{MPICH}/bin:$PATH" if first == "MPICH" else f"$PATH:{MPICH}/bin"
    variables = {"PATH": path, **({"LD_LIBRARY_PATH": libraries} if libraries else {})}
    report, found = check(standing_bed, export(**variables))
    assert [each.summary for each in report.findings] == []
    assert sorted((each["rank"], each["world_size"]) for each in found) == [(0, 2), (1, 2)]
    assert all(each["own"] and first in each["version"] for each in found), found
    if first == "MPICH":
        assert {each["library"] for each in found} == {f"{MPICHS}/libmpi_abi.so.1"}
        assert {each["mpirun"] for each in found} == {f"{MPICH}/bin/mpirun"}


def test_a_library_that_really_is_another_ones_is_named_with_the_mpirun(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    """An mpirun without its library: the linker gives its ranks Open MPI's."""
    folder = copy_programs(tmp_path)
    report, _ = check(standing_bed, export(PATH=f"{folder}:$PATH"), "mpi.launch", "mpi.rank_size")
    (found,) = report.findings
    assert (found.check, found.severity) == ("mpi.rank_size", Severity.FAIL)
    assert "every rank says size 1: 2 were started" in found.summary
    assert f"mpirun: {folder}/mpirun" in found.seen
    assert "/libmpi.so.40" in found.seen
    assert "put one MPI first by --setup" in found.hint


def test_a_library_of_mpiruns_that_cannot_be_loaded_says_why(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    folder, library = copy_programs(tmp_path), tmp_path / "lib/libmpi.so.12"
    library.parent.mkdir()
    library.touch()
    report, _ = check(standing_bed, export(PATH=f"{folder}:$PATH"), "mpi.launch")
    (found,) = report.findings
    assert f"OSError: {library}: file too short" in found.summary


def copy_programs(prefix: Path) -> Path:
    """Return the folder of an MPICH that is nothing but its starters."""
    folder = prefix / "bin"
    folder.mkdir()
    for name in ("mpirun", "mpiexec.hydra", "hydra_pmi_proxy"):
        shutil.copy(MPICH / "bin" / name, folder)
    return folder


RANKS = """
import os
print(*(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")))
"""


def test_mpichs_ranks_are_placed_and_named(standing_bed: Testbed, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    where = Where(
        ssh_config=str(standing_bed.ssh_config),
        hosts="node1:2,node2:1",
        setup=export(PATH=f"{MPICH}/bin:$PATH"),
    )
    asked = Run(str(script), where=where, launcher=LauncherName.MPI)
    with Operator(asked, open_session) as run:
        end = run.ended()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0), run.lines()
    assert {(e.host, e.line) for e in run.of(LogLine) if e.stream == "out"} == {
        ("node1", "0 0 3 2"),
        ("node1", "1 1 3 2"),
        ("node2", "2 0 3 1"),
    }
    assert not gone(*standing_bed.hosts)


WITHOUT_SLOTS = """\
#!/bin/sh
if [ "$1" = --host ]; then shift 2; set -- --host 127.0.0.1:1 "$@"; fi
exec {mpirun} "$@"
"""
NO_SLOTS = "There are not enough slots available in the system to satisfy the"


@pytest.fixture
def refusing(tmp_path: Path) -> str:
    """A setup command for which Open MPI's mpirun finds one slot only."""
    mpirun = tmp_path / "bin/mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(WITHOUT_SLOTS.format(mpirun=shlex.quote(str(shutil.which("mpirun")))))
    mpirun.chmod(0o755)
    return export(PATH=f"{mpirun.parent}:$PATH")


def test_a_check_gives_the_reason_of_an_mpirun_that_refuses(
    standing_bed: Testbed, refusing: str
) -> None:
    report, _ = check(standing_bed, refusing, "mpi.launch")
    (found,) = report.findings
    reason = f"{NO_SLOTS} 2 slots that were requested by the application"
    assert found.summary == (
        f"none of the 2 ranks could join the group: mpirun exited with code 1: {reason}"
    )


def test_a_run_gives_the_reason_of_an_mpirun_that_refuses(
    standing_bed: Testbed, refusing: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    where = Where(ssh_config=str(standing_bed.ssh_config), hosts="node1:2,node2:1", setup=refusing)
    with Operator(Run(str(script), where=where, launcher=LauncherName.MPI), open_session) as run:
        end = run.ended()
    assert end.state is EndState.FAILED
    assert end.first_failure.error == (
        f"mpirun exited with code 1: {NO_SLOTS} 3 slots that were requested by the application"
    )
    assert not gone(*standing_bed.hosts)
