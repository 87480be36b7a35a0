"""``check --only slurm`` on real slurmctld, slurmd and munged."""

from collections.abc import Iterator
from typing import Any

import pytest

from distconsole.checks.engine.run import run_check
from distconsole.model.findings import Severity
from distconsole.model.reports import CheckReport
from distconsole.model.requests import Check, Where
from distconsole.session import open_session
from testbed import Testbed
from testbed.keeper import wait_for
from testbed.slurm import OWN_KEY, SLURM_ENVIRONMENT, Slurm, slurm_version

pytestmark = [pytest.mark.testbed, pytest.mark.slurm]


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """A Slurm of its own, because the test leaves it broken: two nodes and a login host."""
    with Testbed(3, environment=SLURM_ENVIRONMENT, node_ssh=True) as bed, Slurm(bed, gpus=2) as up:
        yield up


def check(slurm: Slurm, *only: str, **asked: Any) -> CheckReport:
    where = Where(hosts=slurm.bed.names, ssh_config=str(slurm.bed.ssh_config))
    with open_session(where) as session:
        ended = list(run_check(Check(where=where, only=only or ("slurm",), **asked), session))[-1]
    return ended.report


def trouble(report: CheckReport) -> dict[str, list[str]]:
    return {
        f"{found.severity.value} {found.check}": [*found.hosts, found.summary]
        for found in report.findings
        if found.severity in (Severity.WARN, Severity.FAIL)
    }


def test_a_cluster_is_proved_and_each_fault_named_with_its_host(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = slurm.nodes
    held = first.exec(["sbatch", "--parsable", "-N2", "--wrap", "sleep 300"]).stdout.strip()
    assert wait_for(lambda: slurm.show(held).get("JobState") == "RUNNING", 30.0)
    monkeypatch.setenv("SLURM_JOB_ID", held)
    monkeypatch.setenv("SLURM_JOB_NODELIST", slurm.show(held)["NodeList"])
    report = check(slurm)
    # The bed declares GPUs that are none.
    assert set(trouble(report)) == {"fail slurm.resources"}, report.findings
    for node in (first.name, second.name):
        cells = report.cells[node]
        assert cells["slurm.limits"] == cells["slurm.munge"] == cells["slurm.node_state"] == "pass"
        step = report.hosts[node].facts["slurm_step"]
        assert step["limits"]["nofile"] > 0, step
    assert report.why[slurm.login.name]["slurm.node_state"] == "no node of Slurm's: a login host"
    decoded = report.hosts[second.name].facts["munge"]["decoded"]
    assert {each["source"]: each["status"] for each in decoded} == {
        first.name: "Success",
        slurm.login.name: "Success",
    }
    assert "MUNGE:" not in str(report.hosts)

    slurm.cancel_all()
    slurm.login.exec(
        ["scontrol", "update", f"nodename={second.name}", "state=drain", "reason=Kill task failed"]
    )
    with_another_key(slurm, first)
    found = trouble(check(slurm, "slurm.node_state", "slurm.munge"))
    closed = found["warn slurm.node_state"]
    assert closed[0] == second.name
    assert "(idle+drain): Kill task failed" in closed[1]
    assert found["fail slurm.munge"][-1].count("Invalid credential") == 1
    assert first.name in found["fail slurm.munge"]


def test_commands_that_fetch_their_configuration_are_a_cluster() -> None:
    settings = {"SlurmctldParameters": "enable_configless"}
    with (
        Testbed(2, environment={"SLURM_CONF_SERVER": "node2"}) as bed,
        Slurm(bed, settings=settings) as slurm,
    ):
        report = check(slurm, "slurm.controller", "slurm.node_state")
    assert trouble(report) == {}
    assert {cells["slurm.controller"] for cells in report.cells.values()} == {"pass"}
    assert report.cells["node1"]["slurm.node_state"] == "pass"


def test_a_cluster_without_munge_is_not_asked_for_it() -> None:
    if slurm_version() < (23, 11):
        pytest.skip("needs Slurm 23.11 or newer (auth/slurm)")
    with Testbed(3, environment=SLURM_ENVIRONMENT) as bed, Slurm(bed, settings=OWN_KEY) as slurm:
        for host in bed.hosts:
            host.exec(["kill", host.path("/run/slurm/munged.pid").read_text().strip()])
        report = check(slurm)
    assert trouble(report) == {}
    assert {cells["slurm.controller"] for cells in report.cells.values()} == {"pass"}
    assert report.why["node1"]["slurm.munge"] == "Slurm authenticates by auth/slurm, not by munge"


def with_another_key(slurm: Slurm, host: Any) -> None:
    """Start munged of ``host`` anew with a key that no other host has."""
    pid = host.path("/run/slurm/munged.pid").read_text().strip()
    host.exec(["kill", pid])
    host.path("/run/munge/key").write_bytes(b"k" * 128)
    argv = ["munged", "--force", "--key-file=/run/munge/key", "--seed-file=/run/munge/seed"]
    argv += ["--socket=/run/munge/munge.socket.2", "--pid-file=/run/slurm/munged.pid"]
    host.exec([*argv, "--log-file=/run/slurm/munged.log"], cwd="/")
