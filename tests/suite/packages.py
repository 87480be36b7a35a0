"""Pythons that lack a package, wheels of packages that are here, and an archive as Horovod's source is."""

import io
import platform
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

COMPILES = """\
import os, subprocess, sys
from setuptools import setup
os.makedirs("horovod", exist_ok=True)
with open("horovod/x.cc", "w") as file:
    file.write(%r)
code = subprocess.call([os.environ["CXX"], "-std=c++14", "-c", "horovod/x.cc", "-o", "x.o"])
if code:
    print("[ 50%%] compiling another file to its end\\n" * 100, flush=True)
    sys.exit("error: command cmake failed")
setup(name="horovod", version="0.28.1", py_modules=[])
"""
"""A setup.py that compiles some C++, as Horovod's CMake does, and goes on for a while when that fails."""

WRONG = "int x;\nint y = missing;\nint z = nothing;\n"
FIRST_ERROR = "horovod/x.cc:2:9: error: 'missing' was not declared in this scope"


def pack_source(folder: Path, setup: str) -> Path:
    """Write the archive, with this setup.py, into ``folder``."""
    name = "horovod-0.28.1"
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in (("setup.py", setup), ("PKG-INFO", "Name: horovod\nVersion: 0.28.1\n")):
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def python_without(packages: Sequence[str], folder: Path) -> str:
    """Make an interpreter in ``folder`` that has what this one has, but for what begins like these."""
    made = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    here = Path(sysconfig.get_paths()["purelib"])
    rest = folder / "packages"
    rest.mkdir()
    for path in {Path(entry) for entry in sys.path if entry.endswith("site-packages")} | {here}:
        for entry in path.iterdir():
            if not entry.name.startswith(tuple(packages)) and entry.suffix != ".pth":
                rest.joinpath(entry.name).symlink_to(entry)
    (site,) = made.glob("lib/python*/site-packages")
    (site / "rest.pth").write_text(f"{rest}\n")
    return str(made / "bin" / "python")


def pack_wheel(name: str, folder: Path, *, tag: str = "") -> None:
    """Write a package of this Python into ``folder`` as the wheel that it was installed from."""
    package = distribution(name)
    abi = f"cp{sysconfig.get_config_var('SOABI').split('-')[1]}"
    tag = tag or f"{abi}-{abi}-linux_{platform.machine()}"
    left_out = {"INSTALLER", "REQUESTED", "direct_url.json"}
    with zipfile.ZipFile(folder / f"{name}-{package.version}-{tag}.whl", "w") as wheel:
        for file in package.files or ():
            if not {"..", "__pycache__", *left_out} & set(file.parts):
                path = Path(str(file.locate()))
                if path.suffix == ".so":  # of Horovod's 68 MB are 66 for a debugger
                    path = folder / path.name
                    subprocess.run(["strip", "-g", "-o", path, file.locate()], check=True)
                wheel.write(path, str(file))
                if path.parent == folder:
                    path.unlink()
