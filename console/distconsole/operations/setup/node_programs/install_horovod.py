"""Installs a wheel of Horovod that is beside it, and prints its features. Usage: install_horovod.py WHEEL."""

from __future__ import annotations

import subprocess
import sys
from importlib import util
from pathlib import Path

NEEDS = {
    **{name: name for name in ("cloudpickle", "psutil", "packaging")},
    "yaml": "pyyaml",
    "distutils": "setuptools",
}
"""What Horovod imports when it runs, and what brings it (distutils: from Python 3.12 on)."""

PROOF = """\
import horovod.torch as hvd
print("Horovod", __import__("horovod").__version__, "gloo" if hvd.gloo_built() else "", "mpi" if hvd.mpi_built()
      else "", "nccl" if hvd.nccl_built() else "")
"""


def pip(*words: str) -> int:
    quiet = ["-q", "--disable-pip-version-check"]
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", *quiet, *words],
        stdin=subprocess.DEVNULL,
        check=False,
    ).returncode


def main(wheel: str) -> int:
    missing = [package for module, package in NEEDS.items() if util.find_spec(module) is None]
    if missing and pip(*missing):
        sys.stderr.write(f"pip cannot bring {', '.join(missing)}, which Horovod imports\n")
        return 1
    path = Path(__file__).resolve().with_name(wheel)
    if pip("--no-deps", "--force-reinstall", str(path)):
        sys.stderr.write(f"pip cannot install {wheel}\n")
        return 1
    return subprocess.run([sys.executable, "-c", PROOF], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
