"""``check`` on embedded nodes, which are all this machine: several names of one network."""

import os
import signal
from pathlib import Path

import pytest

from distconsole.checks.engine.run import run_check
from distconsole.checks.gather.short_run import short_run
from distconsole.config.schema import Config
from distconsole.model.cluster import Cluster, Host
from distconsole.model.expectation import Expectation
from distconsole.model.findings import Severity
from distconsole.model.names import HostName
from distconsole.model.reports import CheckReport
from distconsole.model.requests import Check, Level, Where
from distconsole.operations import SessionSource
from distconsole.session import Session
from distconsole.ssh.embedded import EmbeddedCluster
from suite.known_agent import leave_agent

FOREIGN_MPIRUN = """\
#!/bin/bash
# The starter of another MPI: its ranks find nothing of Open MPI's.
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit; fi
while [ $# -gt 0 ]; do
    case $1 in
        -np) np=$2; shift 2 ;;
        --host|--map-by|--bind-to) shift 2 ;;
        --leave-session-attached) shift ;;
        *) break ;;
    esac
done
for rank in $(seq 0 $((np - 1))); do
    OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$np OMPI_COMM_WORLD_LOCAL_RANK=$rank \
        OMPI_COMM_WORLD_LOCAL_SIZE=$np "$@" &
done
wait
"""


@pytest.fixture(autouse=True)
def agent_here(home: Path) -> None:
    """This machine itself has the agent's file, too."""
    leave_agent(home / ".cache")


def check(session: Session, **asked: object) -> CheckReport:
    request = Check(**asked)  # type: ignore[arg-type]
    ended = list(run_check(request, session, start=short_run))[-1]
    return ended.report


def failures(report: CheckReport) -> list[str]:
    return [each.summary for each in report.findings if each.severity is Severity.FAIL]


def test_what_the_configuration_expects_is_held_against_each_host(
    standing_nodes: EmbeddedCluster, home: Path
) -> None:
    first, second = standing_nodes.hosts
    config = Config(
        expect=Expectation(python=">=3.9", torch=">=2.1", cpus=1, disk_free=1.0),
        host_expect={second: Expectation(packages={"torch": "<1"}, gpus=8)},
    )
    with Session(config, standing_nodes.cluster) as session:
        report = check(session, level=Level.QUICK, only=("expect",))
    found = [(each.check, each.hosts) for each in report.findings]
    assert found == [("expect.python", (second,)), ("expect.gpu", (second,))]
    assert report.cells[first] == {
        **dict.fromkeys(("expect.python", "expect.torch", "expect.host"), "pass"),
        "expect.gpu": "skipped",
    }
    assert "expected 8" in report.findings[1].summary


def test_names_of_one_machine_are_checked_over_loopback(standing_sessions: SessionSource) -> None:
    with standing_sessions(Where()) as session:
        report = check(session, level=Level.QUICK)
    assert failures(report) == []
    assert [finding.check for finding in report.findings if finding.check == "ssh.one_machine"]
    assert all(pair.reachable for pair in report.network.pairs)
    assert len(report.network.pairs) == 2


def test_this_machine_alone_is_checked_without_peers(tmp_path: Path) -> None:
    host = Host(HostName("here"), local=True, node_dir=str(tmp_path / "n"))
    with Session(Config(), Cluster((host,))) as session:
        report = check(session, level=Level.QUICK, only=("os", "python", "net"))
        os.kill(session.link(host.name).hello.agent_pid, signal.SIGTERM)
    assert failures(report) == []
    assert report.cells["here"]["net.reach_tcp"] == "skipped"
    assert report.why["here"]["net.reach_tcp"] == "one host"


@pytest.mark.mpi
def test_an_mpirun_of_another_mpi_than_the_library_is_named(tmp_path: Path) -> None:
    mpirun = tmp_path / "bin/mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(FOREIGN_MPIRUN)
    mpirun.chmod(0o755)
    node_dir = tmp_path / "n"
    host = Host(
        HostName("here"),
        local=True,
        slots=2,
        node_dir=str(node_dir),
        setup=f"export PATH={mpirun.parent}:$PATH",
    )
    with Session(Config(), Cluster((host,))) as session:
        report = check(session, only=("mpi.launch", "mpi.rank_size", "mpi.correct"))
        os.kill(session.link(host.name).hello.agent_pid, signal.SIGTERM)
    (found,) = report.findings
    assert (found.check, found.hosts) == ("mpi.rank_size", ("here",))
    assert "every rank says size 1: 2 were started" in found.summary
    assert f"mpirun: {mpirun}" in found.seen
    assert report.cells["here"]["mpi.correct"] == "could_not_run"
    assert list((node_dir / "runs").iterdir()) == []


def test_what_was_not_known_in_time_is_not_taken_for_absent(tmp_path: Path) -> None:
    node_dir = tmp_path / "n"
    setup = f"if ls {node_dir}/agent-*.sock; then sleep 60; fi >/dev/null 2>&1"
    host = Host(HostName("here"), local=True, node_dir=str(node_dir), setup=setup)
    with Session(Config(), Cluster((host,))) as session:
        report = check(session, only=("coll.", "horovod.init"), budget_seconds=4.0)
        os.kill(session.link(host.name).hello.agent_pid, signal.SIGTERM)
    assert set(report.cells["here"].values()) <= {"timed_out", "could_not_run"}, report.why
    assert report.outcome == "incomplete"
