"""What is known of the hosts of a run when it starts, kept with it: versions, drivers, GPUs. It probes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from distconsole.checks.engine.baseline import Passports
from distconsole.config.paths import passports_dir
from distconsole.rpc.link import NodeLink

TOLD = re.compile(
    r"torch\.(version|cuda|hip|nccl)|horovod\.version|mpi\.(family|version)|python\.version"
    r"|os\.(kernel|distribution|libc)|gpu\.(driver|cuda_driver|count)|gpu\.gpus\.\S*\.name"
)
"""Of what a host looked like at its last check, what may make a run another one."""


def facts_of_hosts(links: Iterable[NodeLink]) -> bytes:
    """Return host -> fact -> value as JSON: what the agents say, and what the last check found."""
    passports = Passports(passports_dir())
    facts: dict[str, dict[str, str]] = {}
    for link in links:
        known = passports.read(link.host.name)
        told = {
            name: v for name, v in (known.marks if known else {}).items() if TOLD.fullmatch(name)
        }
        hello = link.hello
        told |= {"python.version": hello.python_version, "gpu.count": str(hello.gpus)}
        if hello.cpus is not None:
            told["cpus"] = str(hello.cpus)
        facts[link.host.name] = told
    return msgspec.json.encode(facts)
