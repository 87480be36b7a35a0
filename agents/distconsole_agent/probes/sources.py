"""Reads the scripts that probes start in other processes out of the package, or out of the zipapp."""

from __future__ import annotations

import base64
import json
import pkgutil
import zlib
from typing import TYPE_CHECKING

from distconsole_agent.probes.errors import failed

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKER = (
    "collectives.values",
    "collectives.tensors",
    "collectives.by_torch",
    "collectives.by_horovod",
    "collectives.by_mpi",
    "collectives.worker",
)
"""The modules of a rank of a collective job, none before those that it imports."""

LOAD = ("standalone.cuda_copies", "standalone.load_gpus")
"""Those of the program that loads GPUs."""

_LOADER = """\
import base64,json,sys,types,zlib
_P="distconsole_agent.probes"
for name in("distconsole_agent",_P,_P+".collectives",_P+".standalone"):
 sys.modules[name]=types.ModuleType(name);sys.modules[name].__path__=[]
for name,text in json.loads(zlib.decompress(base64.b64decode("{packed}"))):
 made=sys.modules[name]=types.ModuleType(name)
 if name.endswith(".{main}"):made.__name__="__main__"
 exec(compile(text,name,"exec"),made.__dict__)
"""
"""Modules whose text is in it: the interpreter that runs it may have no package of ours."""


LEAN = "lean_json"
_IMPORT = f"\nfrom distconsole_agent.probes.standalone.{LEAN} import as_json\n".encode()


def script_source(name: str) -> bytes:
    """Return the source of the module ``name`` of ``standalone``; the one it may import is in it.

    Raises:
        ProbeError: if the package was built without it.
    """
    source = _source(f"standalone.{name}")
    return (
        source.replace(_IMPORT, b"\n" + _source(f"standalone.{LEAN}"))
        if _IMPORT in source
        else source
    )


def _source(name: str) -> bytes:
    path = name.replace(".", "/")
    source = pkgutil.get_data("distconsole_agent.probes", f"{path}.py")
    if source is None:
        raise failed(f"{path}.py is missing from the agent")
    return source


def worker_script() -> str:
    """Return the script that is a rank of a collective job: a few KiB, for ``python -c`` too."""
    return packed_script(WORKER)


def packed_script(names: Sequence[str]) -> str:
    """Return modules of this package as one script; the last one is its main module.

    Args:
        names: None before those that it imports.
    """
    modules = [
        (f"distconsole_agent.probes.{name}", _source(name).decode("utf-8")) for name in names
    ]
    packed = base64.b64encode(zlib.compress(json.dumps(modules).encode(), 9)).decode("ascii")
    return _LOADER.format(packed=packed, main=names[-1])
