"""An archive as Horovod's source is, whose build compiles one file with the compiler that it is given."""

from __future__ import annotations

import io
import tarfile
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
