"""What is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from distconsole.cli.main import perform_headless
from distconsole.errors import PlanError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Run
from distconsole.operations.launching import refuse_missing

HERE = Cluster((Host(HostName("localhost"), local=True),))


def test_a_script_that_is_not_on_this_machine_is_refused_in_one_line(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert perform_headless(Run(str(tmp_path / "missing.py"))) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[0] == f"error: the script {tmp_path}/missing.py does not exist"
    assert not list(home.rglob("*.db"))


def test_what_python_can_run_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with pytest.raises(PlanError, match="is a folder"):
        refuse_missing(Run("job", workdir=str(tmp_path)), HERE)
    (tmp_path / "job" / "__main__.py").write_text("")
    (tmp_path / "job.py").write_text("")
    refuse_missing(Run("job", workdir=str(tmp_path)), HERE)
    refuse_missing(Run("job.py", workdir=str(tmp_path)), HERE)
    refuse_missing(Run("not.here", module=True), HERE)


def test_what_other_hosts_have_is_theirs_to_say() -> None:
    refuse_missing(Run("/data/job.py"), Cluster((*HERE.hosts, Host(HostName("a")))))
