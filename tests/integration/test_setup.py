"""``setup`` on two nodes that share a Python without Horovod: built before, fetched, installed, proved."""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import distribution
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
from suite.driving import Operator
from suite.horovod_source import COMPILES, FIRST_ERROR, WRONG, pack_source

pytestmark = [pytest.mark.horovod, pytest.mark.torch_ranks]


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter of its own that has what this one has, but for Horovod."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    here = Path(sysconfig.get_paths()["purelib"])
    rest = tmp_path / "packages"
    rest.mkdir()
    for path in {Path(entry) for entry in sys.path if entry.endswith("site-packages")} | {here}:
        for entry in path.iterdir():
            if not entry.name.startswith("horovod") and entry.suffix != ".pth":
                rest.joinpath(entry.name).symlink_to(entry)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "rest.pth").write_text(f"{rest}\n")
    return str(folder / "bin" / "python")


@pytest.fixture
def sessions(cluster: EmbeddedCluster, python: str) -> Iterator[SessionSource]:
    hosts = tuple(replace(host, python=python) for host in cluster.cluster.hosts)
    with Session(Config(), replace(cluster.cluster, hosts=hosts)) as session:
        yield lambda _where: nullcontext(session)


def pack(folder: Path) -> None:
    """Write the tests' own Horovod into ``folder`` as the wheel that it was installed from."""
    horovod = distribution("horovod")
    tag = sysconfig.get_config_var("SOABI").split("-")[1]
    name = f"horovod-{horovod.version}-cp{tag}-cp{tag}-linux_{platform.machine()}.whl"
    left_out = {"INSTALLER", "REQUESTED", "direct_url.json"}
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for file in horovod.files or ():
            if not {"..", "__pycache__", *left_out} & set(file.parts):
                wheel.write(file.locate(), str(file))


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
    pack(folder)
    with Operator(Prepare(yes=True), sessions) as done:
        done.finish(180)
    (ended,) = done.of(CheckEnded)
    assert ended.report.ok
    told = [each.text for each in done.of(Narration)]
    assert f"{build.host}: it was built here before" in told
    assert any("Horovod 0.28.1 gloo" in text for text in told)
    with sessions(Prepare().where) as session:
        assert len(look(session, [host.name for host in session.cluster.hosts]).fine) == 2
    proof = "import horovod, sys; sys.exit(not horovod.__file__.startswith(sys.prefix))"
    subprocess.run([python, "-c", proof], check=True)


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
