"""Telemetry in a process of its own: what it loads and when, how much memory it takes, and that it
runs on the oldest Python of a node, also with pynvml inside an archive.
"""

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

import distconsole_agent
from fakes import nvml as fake_nvml
from suite.programs import run_to_end

pytestmark = pytest.mark.skipif(
    fake_nvml.compiler() is None, reason="no C compiler to build the stand-in NVML"
)

AGENTS = Path(distconsole_agent.__file__).parents[1]
MEMORY_TARGET_KIB = 30 * 1024

SAMPLE_TWICE = """
import json, os, sys
from distconsole_agent.telemetry.gpu import GpuSampler
from distconsole_agent.telemetry.mapping import RunningRank
from distconsole_agent.telemetry.sampling import HostSampler
loaded = [name for name in ("psutil", "pynvml") if name in sys.modules]
host, gpus = HostSampler(), GpuSampler(deadline_seconds=20.0)
ranks = [RunningRank(3, 0, os.getppid(), None)]
for _ in range(2):
    node, entries = host.sample(), gpus.sample(ranks)
with open("/proc/self/status") as status:
    rss_kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
gpus.close()
print(json.dumps({"loaded": loaded, "node": node, "gpus": entries, "rss_kib": rss_kib,
                  "pynvml": getattr(sys.modules.get("pynvml"), "__file__", None)}))
"""


def old_python() -> str | None:
    """Return the oldest interpreter of this machine that the agent promises to run on."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(one) for one in sorted(pyenv.glob("3.9.*/bin/python"))]
    # pyenv's own python3.9 on the PATH only runs where that version was chosen.
    return next(iter(found), None) or shutil.which("python3.9")


def sample_in(
    python: str, fake: fake_nvml.FakeNvml, search_path: str, *options: str
) -> dict[str, Any]:
    environment = {**os.environ, **fake.environment(), "PYTHONPATH": search_path}
    done = run_to_end([python, *options, "-c", SAMPLE_TWICE], env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    values: dict[str, Any] = json.loads(done.stdout)
    return values


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[fake_nvml.FakeNvml]:
    with fake_nvml.installed(tmp_path) as fake:
        yield fake


def archive_with_pynvml(folder: Path) -> Path:
    path = folder / "bundle.pyz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(str(pynvml.__file__), "pynvml.py")
    return path


def test_an_import_loads_no_library_and_sampling_stays_small(fake: fake_nvml.FakeNvml) -> None:
    fake.set_processes(0, [(os.getpid(), 1 << 20, 0, 0)])
    found = sample_in(sys.executable, fake, str(AGENTS))
    assert found["loaded"] == []
    assert len(found["gpus"]) == 8
    assert found["gpus"][0]["rank"] == 3
    assert found["node"]["mem_total"] > 0
    assert found["rss_kib"] < MEMORY_TARGET_KIB


def test_pynvml_of_an_archive_leaves_no_memory(fake: fake_nvml.FakeNvml, tmp_path: Path) -> None:
    archive = archive_with_pynvml(tmp_path)
    found = sample_in(sys.executable, fake, f"{archive}{os.pathsep}{AGENTS}")
    assert found["pynvml"].startswith(str(archive))
    assert len(found["gpus"]) == 8
    assert found["rss_kib"] < MEMORY_TARGET_KIB


def test_the_oldest_python_needs_no_psutil(fake: fake_nvml.FakeNvml, tmp_path: Path) -> None:
    python = old_python()
    if python is None:
        pytest.skip("no Python 3.9 on this machine")
    archive = archive_with_pynvml(tmp_path)
    # -S leaves the interpreter's own packages out, psutil among them.
    found = sample_in(python, fake, f"{archive}{os.pathsep}{AGENTS}", "-S")
    assert len(found["gpus"]) == 8
    assert found["node"]["cpus"] == os.cpu_count()
    assert found["node"]["mem_total"] is None


def test_without_pynvml_there_are_no_gpus_and_no_error(fake: fake_nvml.FakeNvml) -> None:
    found = sample_in(sys.executable, fake, str(AGENTS), "-S")
    assert found["gpus"] == []
    assert found["pynvml"] is None
