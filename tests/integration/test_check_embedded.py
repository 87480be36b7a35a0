"""``check`` on embedded nodes, which are all this machine: several names of one network."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from distconsole.checks import run_check
from distconsole.config.schema import Config
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import CheckEnded, CheckReport
from distconsole.model.findings import Severity
from distconsole.model.names import HostName
from distconsole.model.requests import Check, Level
from distconsole.remote.embedded import EmbeddedCluster
from distconsole.session import Session


def check(session: Session, **asked: object) -> CheckReport:
    ended = list(run_check(Check(**asked), session))[-1]  # type: ignore[arg-type]
    assert isinstance(ended, CheckEnded)
    return ended.report


def failures(report: CheckReport) -> list[str]:
    return [each.summary for each in report.findings if each.severity is Severity.FAIL]


def test_names_of_one_machine_are_checked_over_loopback(
    tmp_path_factory: pytest.TempPathFactory, home: Path
) -> None:
    with (
        EmbeddedCluster(2, folder=tmp_path_factory.mktemp("e")) as embedded,
        Session(Config(), embedded.cluster) as session,
    ):
        report = check(session, level=Level.QUICK)
    assert failures(report) == []
    assert [finding.check for finding in report.findings if finding.check == "ssh.one_machine"]
    assert all(pair.reachable for pair in report.network.pairs)
    assert len(report.network.pairs) == 2


def test_this_machine_alone_is_checked_without_peers(tmp_path: Path) -> None:
    host = Host(HostName("here"), local=True, node_dir=str(tmp_path / "n"))
    with Session(Config(), Cluster((host,))) as session:
        report = check(session, level=Level.QUICK, only=("os", "python", "net"))
        os.kill(session.links[host.name].hello.agent_pid, signal.SIGTERM)
    assert failures(report) == []
    assert report.cells["here"]["net.reach_tcp"] == "skipped"
    assert report.why["here"]["net.reach_tcp"] == "one host"
