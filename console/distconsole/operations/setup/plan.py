"""The plan of ``setup``: hosts with a working Horovod, hosts that build one, and for which."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from distconsole.checks.facts.node import MpiFacts
from distconsole.launch.engines import HorovodBuild
from distconsole.model.names import HostName

HOROVOD_VERSION = "0.28.1"
"""The newest release."""

BUILD_CPU_MINUTES = 5
"""That a build takes of one processor, about."""


class InstalledTorch(msgspec.Struct, frozen=True, kw_only=True):
    """The torch of a host's Python, as its version file says."""

    version: str = ""
    cuda: str | None = None
    hip: str | None = None


class BuildFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the probe ``build`` about a host.

    Attributes:
        tag: The ABI of its Python, as in the names of compiled modules.
        site: Where that Python has its packages; ``writable`` by us; ``site_id`` is the same on
            hosts that share the folder.
        managed: Whether the system forbids pip to change it (PEP 668).
        tools: Compilers and the like, by name; null for a missing one.
        nccl: Whether there is a header of NCCL, in torch's own wheels or in the system.
        missing: Python packages that a build imports and that are not there.
        libstdcxx: The C++ library that its Python loads, such as ``libstdc++.so.6.0.33``; empty
            where it finds none, and from older agents.
    """

    tag: str
    platform: str = ""
    libc: str = ""
    executable: str = ""
    site: str = ""
    site_id: str = ""
    writable: bool = True
    managed: bool = False
    pip: bool = True
    torch: InstalledTorch | None = None
    tools: dict[str, str | None] = {}
    cpus: int = 1
    mpi: MpiFacts = MpiFacts(present=False)
    nccl: bool = False
    missing: tuple[str, ...] = ()
    libstdcxx: str = ""

    @property
    def python(self) -> str:
        """Its version for pip, such as ``3.11``; empty for another ABI."""
        digits = self.tag.removeprefix("cpython-").partition("-")[0].rstrip("t")
        return f"{digits[0]}.{digits[1:]}" if digits.isdigit() and len(digits) > 1 else ""

    @property
    def kind(self) -> tuple[str, ...]:
        """Hosts that are equal in this can have the same wheel."""
        torch = self.torch or InstalledTorch()
        mpi = f"{self.mpi.family} {self.mpi.version.partition('.')[0]}" if self.mpi.present else ""
        gpu = torch.cuda or torch.hip or ""
        return (self.tag, self.platform, self.libc, self.libstdcxx, torch.version, mpi, gpu)

    @property
    def wheel_folder(self) -> str:
        """Name of the folder for a wheel built here, also if hosts of other kinds share the home."""
        able = (*self.kind, *_able(self)[:2])
        return f"horovod{HOROVOD_VERSION}-{hashlib.sha256(repr(able).encode()).hexdigest()[:16]}"

    @property
    def compiler(self) -> bool:
        return any(self.tools.get(name) for name in ("g++", "c++"))


@dataclass(frozen=True, slots=True)
class Build:
    """One wheel: the host that builds it, its folder there, and the hosts that get it.

    Attributes:
        hosts: That lack it.
        installs: Those of them that install it: one of those that share a folder.
        facts: Of the host that builds it.
        without: Features that it is built without, and their requirements; empty if none is lacking.
    """

    host: HostName
    folder: str
    minutes: int
    torch: str
    hosts: tuple[HostName, ...]
    installs: tuple[HostName, ...]
    facts: BuildFacts
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SetupPlan:
    """Builds and installations; ``cannot`` has by host the reason against any, and the remedy."""

    fine: tuple[HostName, ...]
    builds: tuple[Build, ...]
    cannot: Mapping[HostName, tuple[str, str]]


def works(horovod: HorovodBuild | None, torch: str) -> bool:
    return horovod is not None and horovod.library and horovod.against in ("", torch)


def plan_setup(
    facts: Mapping[HostName, BuildFacts], horovod: Mapping[HostName, HorovodBuild | None]
) -> SetupPlan:
    fine, cannot = [], {}
    lacking: dict[tuple[str, ...], list[HostName]] = {}
    for host, each in facts.items():
        reason = _obstacle(each)
        if each.torch is not None and works(horovod.get(host), each.torch.version):
            fine.append(host)
        elif reason is not None:
            cannot[host] = reason
        else:
            lacking.setdefault(each.kind, []).append(host)
    builds = []
    for kind, hosts in lacking.items():
        builder = _builder([host for host, each in facts.items() if each.kind == kind], facts)
        if builder is None:
            why = ("no C++ compiler, on any host of its kind", "install g++ (apt install g++)")
            cannot.update(dict.fromkeys(hosts, why))
            continue
        own = facts[builder]
        folder = own.wheel_folder
        minutes = math.ceil(BUILD_CPU_MINUTES / own.cpus)
        torch = own.torch.version if own.torch is not None else ""
        places = {facts[host].site_id or host: host for host in reversed(hosts)}
        installs = tuple(host for host in hosts if host in places.values())
        build = Build(builder, folder, minutes, torch, tuple(hosts), installs, own, _without(own))
        builds.append(build)
    return SetupPlan(tuple(fine), tuple(builds), cannot)


def _obstacle(facts: BuildFacts) -> tuple[str, str] | None:
    """Return why Horovod cannot be installed there, and what to do; None if it can."""
    other = "give --python a virtual environment's interpreter"
    if facts.torch is None:
        return f"{facts.executable} has no torch", f"pip install torch there, or {other}"
    if not facts.pip:
        return f"{facts.executable} has no pip", f"python -m ensurepip there, or {other}"
    if facts.managed:
        return f"{facts.executable} belongs to the system (PEP 668)", other
    if not facts.writable:
        return f"{facts.site} is not writable for us", other
    return None


def _without(facts: BuildFacts) -> tuple[str, ...]:
    """Return what the best host of a kind lacks for the fastest collectives."""
    lacking = []
    if facts.torch is not None and facts.torch.cuda:
        slow = f"without NCCL, so that gradients go through the host's memory: torch is for CUDA {facts.torch.cuda}"
        if not facts.tools.get("nvcc"):
            how = "install the CUDA toolkit, or bring it by --setup 'module load cuda'"
            lacking.append(f"{slow}, and there is no nvcc ({how})")
        elif not facts.nccl:
            lacking.append(f"{slow}, and there is no nccl.h (install libnccl-dev)")
    if facts.mpi.present and not facts.tools.get("mpicxx"):
        how = f"{facts.mpi.family or 'MPI'}'s development package"
        lacking.append(f"without MPI: there is an mpirun and no mpicxx (install {how})")
    return tuple(lacking)


def _builder(hosts: Sequence[HostName], facts: Mapping[HostName, BuildFacts]) -> HostName | None:
    able = (host for host in hosts if facts[host].compiler)
    return max(able, key=lambda host: _able(facts[host]), default=None)


def _able(facts: BuildFacts) -> tuple[bool, bool, int]:
    tools = facts.tools
    return bool(tools.get("mpicxx")), bool(tools.get("nvcc")) and facts.nccl, facts.cpus
