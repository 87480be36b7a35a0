"""Reads the scripts that probes start in other processes out of the package, or out of the zipapp."""

from __future__ import annotations

import base64
import json
import pkgutil
import zlib

from distconsole_agent.probes.errors import failed

WORKER = (
    "collective_values",
    "collective_tensors",
    "collective_torch",
    "collective_horovod",
    "collective_mpi",
    "collective_worker",
)
"""The modules of a rank of a collective job, none before those that it imports."""

_LOADER = """\
import base64,json,sys,types,zlib
for name in("distconsole_agent","distconsole_agent.probes"):
 sys.modules[name]=types.ModuleType(name);sys.modules[name].__path__=[]
for name,text in json.loads(zlib.decompress(base64.b64decode("{packed}"))):
 made=sys.modules[name]=types.ModuleType(name)
 if name.endswith(".collective_worker"):made.__name__="__main__"
 exec(compile(text,name,"exec"),made.__dict__)
"""
"""Modules whose text is in it: a rank's interpreter has no package of ours."""


def script_source(name: str) -> bytes:
    """Return the source of the module ``name`` of this package.

    Raises:
        ProbeError: if the package was built without it.
    """
    source = pkgutil.get_data("distconsole_agent.probes", f"{name}.py")
    if source is None:
        raise failed(f"{name}.py is missing from the agent")
    return source


def worker_script() -> str:
    """Return the script that is a rank of a collective job: a few KiB, for ``python -c`` too."""
    modules = [
        (f"distconsole_agent.probes.{name}", script_source(name).decode("utf-8"))
        for name in WORKER
    ]
    packed = base64.b64encode(zlib.compress(json.dumps(modules).encode(), 9)).decode("ascii")
    return _LOADER.format(packed=packed)
