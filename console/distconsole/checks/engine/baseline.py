"""What hosts looked like when they last passed, so that a failure can say what has changed since.

One small JSON file a host, with what changes only when somebody changes it: versions, drivers,
limits, interfaces, variables.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self
from urllib.parse import quote

import msgspec

from distconsole.config.paths import baselines_dir, replace_file
from distconsole.model.cluster import Cluster
from distconsole.model.decoding import threadsafe
from distconsole.model.reports import ChangeReport, CheckReport

MAX_BYTES = 1024 * 1024
MAX_CHANGES = 64
"""Fields of one host; one that was set up from scratch differs in everything."""

MAX_VALUE_CHARS = 200
MAX_NAME_CHARS = 180
"""Characters of a file's name; a longer one ends in a digest, so that two launches never share a file."""

LASTING: Mapping[str, tuple[str, ...]] = {
    "ssh": ("user", "agent_python"),
    "os": (
        *("hostname", "resolution.addresses", "machine_id", "kernel", "architecture"),
        *("distribution", "libc", "uid", "home", "cpus", "limits", "memory.total"),
        *("fqdn", "temporary", "cpu_clocks", "network_mounts"),
        *("memory.swap_total", "cgroup", "infiniband", "containerised", "sysctl.clocksource"),
    ),
    "python": ("version", "executable", "prefix", "packages"),
    "torch": ("present", "version", "cuda", "hip", "git", "nccl", "plugins"),
    "horovod": ("present", "version", "against", "built"),
    "mpi": ("present", "mpirun", "family", "version"),
    "env": ("variables", "files", "parameters"),
    "script": ("code.files", "modules", "python"),
    "gpu": ("present", "driver", "kernel_module", "cuda_driver", "count", "gpus"),
    "net": ("addresses", "interfaces"),
}
"""By group of facts the fields that are kept."""

PASSING = {
    ("script", "code.files", "modified"),
    ("script", "code.files", "size"),
    ("script", "modules", "needed"),
    ("os", "network_mounts", "error"),
    ("os", "cgroup", "memory_used"),
    ("os", "cgroup", "pids_used"),
    ("gpu", "gpus", "mem_used"),
    ("gpu", "gpus", "processes"),
    ("net", "interfaces", "state"),
    ("os", "resolution.addresses", "bindable"),
    *(("net", "addresses", name) for name in ("address", "family", "loopback")),
}
"""Group, field and innermost name of values that change by themselves, or repeat others."""

PASSING_NET = re.compile(
    r"(veth|br-|docker|cali|cni|flannel|vir|vnet|tap|tun|lxc|fe80:|169\.254\.)"
)
"""Interfaces that containers and machines bring and take, and addresses of one link."""

NAMED_BY = ("uuid", "address", "iface", "point")
"""Keys that identify the items of a list, where they are objects."""

FactGroups = Mapping[str, Mapping[str, object]]
"""A host's facts, group by group, as in ``check --json``."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """One host at its last green check, at ``t`` in UNIX seconds.

    Attributes:
        fields: What was looked at, such as ``env.variables``: there a mark that is new was not there
            before, while elsewhere nobody had looked. Without any, those that the marks tell of.
    """

    t: float
    marks: dict[str, str]
    fields: tuple[str, ...] = ()


def fields_of(facts: FactGroups) -> tuple[str, ...]:
    """Return the fields that are kept of these facts: a level that asks less looked at fewer."""
    return tuple(
        f"{group}.{path}"
        for group, told in facts.items()
        for path in LASTING.get(group, ())
        if path.partition(".")[0] in told
    )


def marks_of(facts: FactGroups) -> dict[str, str]:
    """Return what lasts of a host's ``facts``: ``torch.version`` -> ``2.13.0``."""
    found: dict[str, str] = {}
    for group, paths in LASTING.items():
        for path in paths:
            value: object = facts.get(group)
            for name in path.split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
            _add_marks((group, path), (), value, found)
    return found


def _add_marks(
    at: tuple[str, str], inside: tuple[str, ...], value: object, found: dict[str, str]
) -> None:
    iface = value.get("iface") if isinstance(value, Mapping) else None
    if (*at, inside[-1] if inside else "") in PASSING or (
        at[0] == "net" and any(PASSING_NET.match(str(name)) for name in (*inside[:1], iface))
    ):
        return
    if isinstance(value, Mapping):
        for name, each in value.items():
            _add_marks(at, (*inside, str(name)), each, found)
    elif isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) for each in value):
        for index, each in enumerate(value):
            named = each if isinstance(each, Mapping) else {}
            name = next((str(named[key]) for key in NAMED_BY if named.get(key)), str(index))
            _add_marks(at, (*inside, name), each, found)
    elif value not in (None, "", [], ()):
        found[".".join((*at, *inside))] = str(value)[:MAX_VALUE_CHARS]


def differences(host: str, baseline: Baseline, facts: FactGroups) -> tuple[ChangeReport, ...]:
    """Return the differences among fields that both looked at; ``was`` or ``now`` is empty for a new or removed value."""
    was, now, looked = baseline.marks, marks_of(facts), set(baseline.fields)
    both = [
        field
        for field in fields_of(facts)
        if field in looked or (not looked and any(_within(field, mark) for mark in was))
    ]
    return tuple(
        ChangeReport(host=host, what=mark, was=was.get(mark, ""), now=now.get(mark, ""))
        for mark in sorted(was.keys() | now.keys())
        if was.get(mark) != now.get(mark) and any(_within(field, mark) for field in both)
    )[:MAX_CHANGES]


def _within(field: str, mark: str) -> bool:
    return mark == field or mark.startswith(f"{field}.")


@dataclass(frozen=True, slots=True)
class Baselines:
    """The baselines in ``folder``, if it exists: of hosts for a ``launch``, empty for hosts by themselves."""

    folder: Path
    launch: str = ""

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        """Return those of ``cluster``'s hosts; a demo's, which may be called as others are, go with it."""
        return cls(
            baselines_dir() if cluster.demo_folder is None else cluster.demo_folder / "baselines"
        )

    def read(self, host: str) -> Baseline | None:
        """Return a host's baseline; None without a readable one."""
        try:
            with self._path(host).open("rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=threadsafe(Baseline))
        except (OSError, msgspec.DecodeError):
            return None

    def keep(self, host: str, facts: FactGroups, t: float) -> None:
        """Keep that ``host`` passed at ``t``; what was not looked at this time is kept as it was.

        A disk that is full costs the next comparison and nothing else.
        """
        known = self.read(host) or Baseline(t=t, marks={})
        seen = fields_of(facts)
        rest = {
            mark: told
            for mark, told in known.marks.items()
            if not any(_within(field, mark) for field in seen)
        }
        fields = [field for field in known.fields if field not in seen]
        baseline = Baseline(t=t, marks={**rest, **marks_of(facts)}, fields=(*fields, *seen))
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path(host), msgspec.json.encode(baseline), sync=False)

    def since(
        self, facts: Mapping[str, FactGroups], first: Iterable[str] = ()
    ) -> tuple[float | None, tuple[ChangeReport, ...]]:
        """Return when the hosts last passed, None where they never did, and what has changed since.

        Args:
            facts: By host its groups of facts.
            first: The hosts whose changes come first: those that failed.
        """
        known = {host: found for host in facts if (found := self.read(host)) is not None}
        ahead = set(first)
        changes = [
            change
            for host in sorted(known, key=lambda host: host not in ahead)
            for change in differences(host, known[host], facts[host])
        ]
        return min((found.t for found in known.values()), default=None), tuple(changes)

    def _path(self, host: str) -> Path:
        name = quote(f"{host} {self.launch}" if self.launch else host, safe="")
        if len(name) > MAX_NAME_CHARS:
            name = f"{name[:MAX_NAME_CHARS]}-{sha256(name.encode()).hexdigest()[:16]}"
        return self.folder / f"{name}.json"


def add_changes(report: CheckReport, baselines: Baselines) -> CheckReport:
    facts = {name: host.facts for name, host in report.hosts.items() if host.reachable}
    if report.target is not None:
        baselines = Baselines(baselines.folder, f"{report.target.launcher} {report.target.script}")
        if report.target.refused:  # nothing is known of the variables that it would set
            facts = {name: {**each, "env": {}} for name, each in facts.items()}
    if report.ok:
        for name in facts:
            baselines.keep(name, facts[name], time.time())
        return report
    failed = [host for finding in report.findings for host in finding.hosts]
    last_passed, changes = baselines.since(facts, failed)
    return msgspec.structs.replace(report, changes=changes, last_passed=last_passed)
