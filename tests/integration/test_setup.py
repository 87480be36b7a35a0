"""``setup`` on two nodes that share a Python without Horovod: built before, fetched, installed, proved."""

import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.config.schema import Config
from distconsole.errors import ConsoleError, UsageError
from distconsole.model.events import CheckEnded, Narration
from distconsole.model.requests import Prepare
from distconsole.operations import SessionSource
from distconsole.operations.setup.installation import look
from distconsole.session import Session
from distconsole.ssh.embedded import EmbeddedCluster
from suite.driving import Operator, answered
from suite.lean_torch import LEAN_SITE
from suite.packages import COMPILES, FIRST_ERROR, WRONG, pack_source, pack_wheel, python_without

pytestmark = [pytest.mark.horovod, pytest.mark.torch_ranks]


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter of its own that has what this one has, but for Horovod."""
    made = python_without(("horovod",), tmp_path)
    (site,) = Path(made).parents[1].glob("lib/python*/site-packages")
    (site / "sitecustomize.py").write_text(LEAN_SITE)
    return made


@pytest.fixture
def sessions(cluster: EmbeddedCluster, python: str) -> Iterator[SessionSource]:
    hosts = tuple(replace(host, python=python) for host in cluster.cluster.hosts)
    with Session(Config(), replace(cluster.cluster, hosts=hosts)) as session:
        yield lambda _where: nullcontext(session)


@pytest.mark.timeout(480)
def test_horovod_is_brought_to_hosts_that_lack_it(
    sessions: SessionSource, home: Path, python: str
) -> None:
    with (
        Operator(Prepare(), sessions) as refused,
        pytest.raises(UsageError, match="would change the Python") as asked,
    ):
        refused.finish()
    assert asked.value.hint == "setup --yes does it"
    with sessions(Prepare().where) as session:
        (build,) = look(session, [host.name for host in session.cluster.hosts]).builds
    assert (len(build.hosts), len(build.installs)) == (2, 1)  # they share the folder

    folder = home / ".cache" / "distconsole" / "wheels" / build.folder
    folder.mkdir(parents=True)
    pack_wheel("horovod", folder)
    done = answered(Prepare(yes=True), sessions, 400)
    (ended,) = done.of(CheckEnded)
    assert ended.report.ok
    told = [each.text for each in done.of(Narration)]
    assert f"{build.host}: it was built here before" in told
    assert any("Horovod 0.28.1 gloo" in text for text in told)
    with sessions(Prepare().where) as session:
        assert len(look(session, [host.name for host in session.cluster.hosts]).fine) == 2
    proof = "import horovod, sys; sys.exit(not horovod.__file__.startswith(sys.prefix))"
    subprocess.run([python, "-c", proof], check=True)


# What the program says that builds is in test_build_horovod, which compiles the same.
@pytest.mark.campaign
def test_a_build_that_fails_shows_the_compilers_first_error(
    sessions: SessionSource, home: Path, tmp_path: Path
) -> None:
    request = Prepare(yes=True, source=str(pack_source(tmp_path, COMPILES % WRONG)))
    with (
        Operator(request, sessions) as failed,
        pytest.raises(ConsoleError, match="Horovod could not be built") as caught,
    ):
        failed.finish(180)
    assert FIRST_ERROR in str(caught.value)
    (log,) = (home / ".cache" / "distconsole" / "wheels").glob("horovod*/build.log")
    assert f"all of it is in {log}" in str(caught.value)
