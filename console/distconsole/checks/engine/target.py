"""The launch that is checked, as planned: what each host would start, in what, with which variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distconsole.model.job import ScriptTraits
from distconsole.model.reports import TargetHost, TargetReport


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """Processes that one host would start by its ``python``: ``env`` is set after ``unset``, ranks listen at ``address``."""

    ranks: tuple[int, ...]
    python: str
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    address: str = ""
    interface: str | None = None
    setup: str | None = None
    container: str | None = None
    workdir: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchPath:
    """A path among the script's arguments, its option, and whether it is an output."""

    path: str
    option: str = ""
    output: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as planned.

    Attributes:
        command: As it was given.
        path: The script on the hosts, or a module's name.
        root: Where its imports begin.
        auto: Whether the launcher was chosen automatically.
        traits: Traits of the script, as far as it can be read here.
        port: The rendezvous port that is fixed; None where ``run`` finds one that is free.
        fixed_by: What fixes it.
        address: The meeting point in the user's words, if one is given.
        env: Variables that the user sets in every rank, and ``nic`` the interface that was asked for.
        own: Modules of the script's project that are not beside it, by name: the folder that has one, and how it is found.
        brought: What ``--sync`` would bring; with it the code is ``sources`` and on no host yet.
        refused: Why ``run`` would not start it.
        hosts: Of those that were reached.
        missing: Hosts that it needs, and that were not reached.
    """

    command: tuple[str, ...]
    path: str
    module: bool
    root: str
    workdir: str
    arguments: tuple[str, ...] = ()
    launcher: str = ""
    why: str = ""
    auto: bool = True
    traits: ScriptTraits = field(default_factory=ScriptTraits)
    hosts: Mapping[str, HostLaunch] = field(default_factory=dict)
    port: int | None = None
    fixed_by: str = ""
    address: str = ""
    nic: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[LaunchPath, ...] = ()
    own: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    brought: str = ""
    sources: Mapping[str, str] | None = None
    refused: str = ""
    refused_hint: str = ""
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def written_folders(self) -> list[str]:
        """Output folders: the working folder, unless ``--sync`` makes it, and the script's outputs."""
        work = [] if self.brought else [self.workdir]
        return list(dict.fromkeys([*work, *(each.path for each in self.paths if each.output)]))

    @property
    def world_size(self) -> int:
        return sum(len(host.ranks) for host in self.hosts.values())

    @property
    def name(self) -> str:
        return self.path if self.module else self.path.rpartition("/")[2]

    def irrelevant(self, check: str, group: str) -> str:
        """Return why a check (its id, as Horovod and MPI have some in ``coll``) is not about this launch; or ""."""
        engine = check.partition(".")[0]
        return "" if self.refused else self.unused(engine, by_mpi="mpi" in check, group=group)

    def unused(self, engine: str, by_mpi: bool = False, group: str = "") -> str:
        """Return why the launch does not use ``horovod``, ``mpi`` or torch's process group (``coll``); or ""."""
        if not self.launcher:
            return ""
        # A script that cannot be read may use any of them.
        horovod = self.launcher == "horovod" or self.traits.horovod
        horovod |= self.launcher == "mpi" and not self.traits.readable
        if engine == "horovod" and not horovod:
            return "the launch uses no Horovod"
        if engine == "horovod" and group == "coll" and self.launcher == "mpi" and not by_mpi:
            return "the launch uses Horovod by mpirun"
        if engine == "mpi" and self.launcher != "mpi":
            return "the launch uses no MPI"
        if (
            engine == "coll"
            and self.launcher in ("horovod", "mpi")
            and self.traits.readable
            and not self.traits.distributed
        ):
            return f"the launch uses {self.launcher}, not torch's process group"
        return ""

    def report(self) -> TargetReport:
        """Return the launch for the report, without values of variables."""
        shared = {
            name: getattr(self, name)
            for name in TargetReport.__struct_fields__
            if name not in ("script", "hosts")
        }
        hosts = (
            TargetHost(
                host=name,
                ranks=host.ranks,
                python=host.python,
                address=host.address,
                interface=host.interface,
                env=tuple(sorted(host.env)),
            )
            for name, host in self.hosts.items()
        )
        return TargetReport(script=self.path, hosts=tuple(hosts), **shared)
