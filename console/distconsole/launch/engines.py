"""Horovod and MPI as installed on the hosts; refuses jobs that they cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from distconsole.errors import PlanError
from distconsole.model.addresses import gloo_connects
from distconsole.model.decoding import threadsafe
from distconsole.model.names import HostName

T = TypeVar("T")

GLOO, MPI = "gloo", "mpi"
OPEN_MPI, INTEL_MPI = "Open MPI", "Intel MPI"
HYDRA_FAMILIES = ("MPICH", INTEL_MPI)

INSTALL_MPI = (
    "install it (Debian: apt install openmpi-bin; RHEL: dnf install openmpi), or give --setup what "
    "brings it into PATH (module load openmpi); see: distconsole check --only mpi"
)
INSTALL_HOROVOD = (
    "distconsole setup builds it against the torch that is there and installs it; or name another "
    "Python with --python; see: distconsole check --only horovod"
)


Text = Annotated[str, msgspec.Meta(max_length=200)]


class HorovodBuild(msgspec.Struct, frozen=True):
    """Horovod in one host's Python; unknown fields are empty.

    Attributes:
        torch: The installed torch.
        against: The torch that it was built for.
        library: Built with torch support.
        controllers: Some of ``gloo`` and ``mpi``; None if unknown.
    """

    version: Text = ""
    torch: Text = ""
    against: Text = ""
    library: bool = True
    controllers: tuple[str, ...] | None = None


class MpiBuild(msgspec.Struct, frozen=True):
    """The mpirun on one host's PATH: its family by ``mpirun --version``, empty if unknown."""

    family: Text = ""
    version: Text = ""
    daemon: bool = True

    @property
    def release(self) -> str:
        """The part of the version in which daemons and mpirun must agree."""
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True, slots=True)
class Engines:
    """One host's engines, for the names in ``asked``.

    Attributes:
        own_addresses: Addresses that the host's own name resolves to.
        own_name_error: The reason why it resolves to none; empty if it does, or is not known.
    """

    asked: tuple[str, ...] = ()
    horovod: HorovodBuild | None = None
    mpi: MpiBuild | None = None
    own_addresses: tuple[str, ...] = ()
    own_name_error: str = ""


def engines_of(answer: Mapping[str, Any], asked: Sequence[str]) -> Engines:
    """Convert a node's answer to the probe ``engines``; invalid parts are left empty."""
    own = answer.get("own_addresses")
    return Engines(
        asked=tuple(asked),
        horovod=_build(answer.get("horovod"), HorovodBuild),
        mpi=_build(answer.get("mpi"), MpiBuild),
        own_addresses=tuple(map(str, own)) if isinstance(own, list) else (),
        own_name_error=str(answer.get("own_name_error") or "")[:200],
    )


def _build(fields: object, kind: type[T]) -> T | None:
    if not isinstance(fields, dict) or fields.get("present") is not True:
        return None
    known = {name: value for name, value in fields.items() if value is not None}
    known["daemon"] = bool(known.get("daemon"))  # its path
    try:
        return msgspec.convert(known, threadsafe(kind))
    except msgspec.ValidationError:
        return None


def has_gloo(engines: Mapping[HostName, Engines]) -> bool:
    """Return True unless some host's Horovod is known to need MPI."""
    builds = [each.horovod for each in engines.values() if each.horovod is not None]
    return all(build.controllers is None or GLOO in build.controllers for build in builds)


def refuse_horovod(engines: Mapping[HostName, Engines], controller: str) -> None:
    """Raise PlanError, with hosts, lacks and what to type, if their Horovod cannot run the job together."""
    builds = {host: each.horovod for host, each in engines.items() if "horovod" in each.asked}
    known = _require(builds, "Horovod is missing", INSTALL_HOROVOD)
    lacking = [host for host, build in known.items() if not build.library]
    _refuse(lacking, "Horovod was built without PyTorch", INSTALL_HOROVOD)
    lacking = [
        host
        for host, build in known.items()
        if build.controllers is not None and controller not in build.controllers
    ]
    name, option = "Gloo" if controller == GLOO else "MPI", controller.upper()
    hint = f"build it again with HOROVOD_WITH_{option}=1; see: distconsole check --only horovod"
    _refuse(lacking, f"Horovod was built without {name}", hint)
    _refuse_differing("Horovod", {host: build.version for host, build in known.items()}, "horovod")


def refuse_mpi(engines: Mapping[HostName, Engines]) -> None:
    """Raise PlanError, with hosts, lacks and what to type, if their MPI cannot run the job together."""
    builds = {host: each.mpi for host, each in engines.items() if "mpi" in each.asked}
    known = _require(builds, "mpirun is missing", INSTALL_MPI)
    lacking = [host for host, build in known.items() if not build.daemon]
    _refuse(lacking, "mpirun's daemon (orted, prted or hydra_pmi_proxy) is missing", INSTALL_MPI)
    families = {host: f"{each.family} {each.release}".strip() for host, each in known.items()}
    _refuse_differing("MPI", families, "mpi")
    families_known = ("", OPEN_MPI, *HYDRA_FAMILIES)
    strange = [host for host, build in known.items() if build.family not in families_known]
    _refuse(strange, "mpirun is of no family that is known", "Open MPI and MPICH are")


def refuse_own_name(
    engines: Mapping[HostName, Engines], addresses: Mapping[HostName, frozenset[str]]
) -> None:
    """Refuse hosts whose own name has no address or resolves elsewhere: Horovod 0.28 listens there.

    It binds the sockets of its process sets to ``gethostbyname(gethostname())`` whatever
    ``HOROVOD_GLOO_IFACE`` says (gloo_context.cc), and fails in ``hvd.init()`` if another host has to
    connect to one. A single host reaches it, and hosts with lower addresses do not connect to it.
    For a name without an address, Gloo reads uninitialised memory (device.cc).

    ``addresses`` are each host's own, without loopback; none for hosts that meet there.

    Raises PlanError, naming the host and the line to write into /etc/hosts.
    """
    for host, each in engines.items():
        if "horovod" in each.asked and each.own_name_error:
            address = min(addresses.get(host, ()), default="127.0.1.1")
            raise PlanError(
                f"{host}: its own name has no address ({each.own_name_error}), and Horovod's Gloo "
                "crashes there",
                f"give that name the address {address} in /etc/hosts on {host}; or, where Horovod "
                "has MPI: --env HOROVOD_CONTROLLER=mpi",
            )
    if len(engines) < 2:
        return
    for host, each in engines.items():
        own = addresses.get(host, frozenset())
        if "horovod" in each.asked and own and not own.intersection(each.own_addresses[:1]):
            means = each.own_addresses[0] if each.own_addresses else "nothing"
            others = [other.own_addresses for name, other in engines.items() if name != host]
            connects = any(not own or gloo_connects(own[0], means) for own in others)
            if means.startswith("127.") and not connects:
                continue
            if min(own).count(":"):
                raise PlanError(
                    f"{host} has no IPv4 address, and Horovod's Gloo listens at no other",
                    f"give {host} an IPv4 address that the others reach, and its name that one in /etc/hosts",
                )
            raise PlanError(
                f"{host}: its own name means {means} to it, and there Horovod would wait for the "
                "other hosts",
                f"give that name the address {min(own)} in /etc/hosts on {host}, in place of any "
                "127.0.1.1 line; or, where Horovod has MPI: --env HOROVOD_CONTROLLER=mpi",
            )


def _require(builds: Mapping[HostName, T | None], missing: str, hint: str) -> dict[HostName, T]:
    _refuse([host for host, build in builds.items() if build is None], missing, hint)
    return {host: build for host, build in builds.items() if build is not None}


def _refuse(hosts: Sequence[HostName], lacking: str, hint: str) -> None:
    if hosts:
        raise PlanError(f"{lacking} on {', '.join(hosts)}", hint)


def _refuse_differing(what: str, versions: Mapping[HostName, str], group: str) -> None:
    known = {host: version for host, version in versions.items() if version}
    if len(set(known.values())) < 2:
        return
    by_version: dict[str, list[str]] = {}
    for host, version in known.items():
        by_version.setdefault(version, []).append(host)
    listed = "; ".join(f"{version} on {', '.join(on)}" for version, on in by_version.items())
    raise PlanError(
        f"{what} differs among the hosts: {listed}",
        f"install the same version everywhere; see: distconsole check --only {group}",
    )
