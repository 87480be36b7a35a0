"""What ``distconsole.toml`` may hold, and the values it becomes. It reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from distconsole.config.shortcuts import Alias, KeySetting
from distconsole.model.expectation import NOTHING_EXPECTED, Expectation
from distconsole.model.requests import (
    EmitKind,
    ExportFormat,
    ExportTable,
    LauncherName,
    Level,
    PassArgs,
    PrecisionName,
)

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Kind(StrEnum):
    """What a value may be; the name is used in messages."""

    TEXT = "a text"
    FILE = "a file name"
    FLAG = "true or false"
    COUNT = "a whole number from 0"
    POSITIVE = "a whole number from 1"
    PORT = "a port (1 to 65535)"
    SECONDS = "a number of seconds"
    WORDS = "a list of texts"
    NPROC = "a whole number from 1, or 'gpu'"
    NNODES = "a whole number from 1, or 'MIN:MAX'"
    RANKS = "a rank, or ranks such as '0-3,8'"
    PAIRS = "a table of texts"
    VERSION = "a version such as '>=2.4' or '==2.13.*'"
    SIZE = "a size such as '8GiB', or a number of bytes"
    LIMIT = "a number, a size such as '64GiB', or 'unlimited'"
    NUMBER = "a number above 0"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table.

    Attributes:
        parameter: The flag's parameter, where its name differs from the key.
        choices: What the text may be; anything where empty.
        secret: Whether no message may show the value.
    """

    kind: Kind
    parameter: str = ""
    choices: tuple[str, ...] = ()
    secret: bool = False


def _choice(words: type[StrEnum]) -> Key:
    return Key(Kind.TEXT, choices=tuple(word.value for word in words))


_JSON = {"json": Key(Kind.FLAG)}
_CONDITIONS = {"where": Key(Kind.TEXT, "only"), "fail_if": Key(Kind.TEXT)}
_NOTIFY = {"notify": Key(Kind.TEXT)}
_GRACE = {"grace": Key(Kind.SECONDS, "grace_seconds")}

HOST_KEYS: dict[str, Key] = {
    "python": Key(Kind.TEXT),
    "setup": Key(Kind.TEXT),
    "address": Key(Kind.TEXT),
    "nic": Key(Kind.TEXT),
    "node_dir": Key(Kind.TEXT),
    "slots": Key(Kind.POSITIVE),
    "user": Key(Kind.TEXT),
    "port": Key(Kind.PORT),
}
"""Of ``[hosts.NAME]``; the same without ``address`` for all hosts of a ``[clusters.NAME]``, or of all."""

SHARED_KEYS = {name: key for name, key in HOST_KEYS.items() if name != "address"}

CLUSTER_KEYS: dict[str, Key] = {
    "hosts": Key(Kind.WORDS),
    "hostfile": Key(Kind.FILE),
    "ssh_config": Key(Kind.FILE),
    **SHARED_KEYS,
}

TOP_KEYS: dict[str, Key] = {
    "cluster": Key(Kind.TEXT),
    "ssh_config": Key(Kind.FILE),
    "theme": Key(Kind.TEXT),
    "startup": Key(Kind.FLAG),
    **SHARED_KEYS,
}

VERB_KEYS: dict[str, dict[str, Key]] = {
    "check": {
        "level": _choice(Level),
        "only": Key(Kind.WORDS),
        "skip": Key(Kind.WORDS),
        "nproc": Key(Kind.POSITIVE),
        "budget": Key(Kind.SECONDS, "budget_seconds"),
        "strict": Key(Kind.FLAG),
        "junit": Key(Kind.FILE),
        "emit_hostfile": Key(Kind.FILE),
        "details": Key(Kind.FLAG),
        "prove": Key(Kind.FLAG),
        **_JSON,
    },
    "run": {
        "launcher": _choice(LauncherName),
        "nproc": Key(Kind.NPROC),
        "nnodes": Key(Kind.NNODES),
        "module": Key(Kind.FLAG),
        "env": Key(Kind.PAIRS),
        "env_file": Key(Kind.FILE),
        "workdir": Key(Kind.TEXT),
        "sync": Key(Kind.FLAG),
        "pass_args": _choice(PassArgs),
        "max_restarts": Key(Kind.COUNT),
        "nic": Key(Kind.TEXT),
        "verify_sync": Key(Kind.POSITIVE),
        "name": Key(Kind.TEXT),
        "watch": Key(Kind.FLAG),
        "detach": Key(Kind.FLAG),
        "dry_run": Key(Kind.FLAG),
        "slurm": Key(Kind.TEXT),
        "slurm_login": Key(Kind.TEXT),
        "emit": _choice(EmitKind),
        "output": Key(Kind.FILE),
        **_NOTIFY,
        **_GRACE,
        **_JSON,
    },
    "top": {
        "once": Key(Kind.FLAG),
        "interval": Key(Kind.SECONDS, "interval_seconds"),
        **_CONDITIONS,
        **_JSON,
    },
    "runs": {**_CONDITIONS, **_JSON},
    "show": {**_CONDITIONS, **_JSON},
    "compare": {**_JSON},
    "attach": {**_NOTIFY, **_JSON},
    "logs": {
        "rank": Key(Kind.RANKS, "ranks"),
        "host": Key(Kind.TEXT),
        "stream": Key(Kind.TEXT, choices=("out", "err")),
        "grep": Key(Kind.TEXT),
        "errors": Key(Kind.FLAG),
        "since": Key(Kind.TEXT),
        "fold": Key(Kind.FLAG),
        "follow": Key(Kind.FLAG),
        "tail": Key(Kind.COUNT),
    },
    "stop": {**_GRACE, "yes": Key(Kind.FLAG)},
    "rerun": {"exclude": Key(Kind.WORDS), "detach": Key(Kind.FLAG), **_NOTIFY, **_JSON},
    "export": {
        "format": _choice(ExportFormat),
        "output": Key(Kind.FILE),
        "table": _choice(ExportTable),
        "follow": Key(Kind.FLAG),
        "listen": Key(Kind.TEXT),
        "interval": Key(Kind.SECONDS, "interval_seconds"),
    },
    "report": {"output": Key(Kind.FILE)},
    "setup": {
        "source": Key(Kind.FILE),
        "yes": Key(Kind.FLAG),
        "dry_run": Key(Kind.FLAG),
        "rebuild": Key(Kind.FLAG),
    },
    "bench": {
        "only": Key(Kind.WORDS),
        "skip": Key(Kind.WORDS),
        "rounds": Key(Kind.POSITIVE),
        "images": Key(Kind.POSITIVE),
        "batch": Key(Kind.POSITIVE),
        "epochs": Key(Kind.POSITIVE),
        "width": Key(Kind.POSITIVE),
        "precision": _choice(PrecisionName),
        "launcher": Key(Kind.TEXT, choices=("torch", "horovod", "mpi")),
        "ops": Key(Kind.WORDS),
        "sizes": Key(Kind.WORDS),
        "budget": Key(Kind.SECONDS, "budget_seconds"),
        "nproc": Key(Kind.NPROC),
        **_JSON,
    },
    "demo": {"nodes": Key(Kind.POSITIVE), "headless": Key(Kind.FLAG), **_JSON},
}
"""A table a verb, a key a flag; dashes and underscores are the same."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What is configured for a host; None where nothing is."""

    python: str | None = None
    setup: str | None = None
    address: str | None = None
    nic: str | None = None
    node_dir: str | None = None
    slots: int | None = None
    user: str | None = None
    port: int | None = None

    def over(self, other: HostSettings) -> HostSettings:
        """Return these settings, with those of ``other`` where these are None."""
        return replace(
            other,
            **{
                each.name: value
                for each in fields(self)
                if (value := getattr(self, each.name)) is not None
            },
        )


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A named set of hosts.

    Attributes:
        hosts: As ``--hosts`` takes them.
        hostfile: A file as ``--hostfile`` takes it.
        shared: For each of its hosts, where ``[hosts.NAME]`` says nothing.
    """

    hosts: tuple[str, ...] = ()
    hostfile: Path | None = None
    ssh_config: Path | None = None
    shared: HostSettings = HostSettings()
    expect: Expectation = NOTHING_EXPECTED


@dataclass(frozen=True, slots=True)
class Config:
    """Everything configured, the project's file over the user's.

    Attributes:
        cluster: The default cluster's name.
        theme: The console's.
        hosts: By host name, ranges expanded.
        verbs: By verb and the flag's parameter, for click's ``default_map``.
        files: What was read, the most specific first.
        expect: Of every host; ``host_expect`` by host name.
        notify: As ``config.notify`` reads it; it may hold secrets.
        startup: Whether the start-up file is done; None leaves it open.
        keys: The least specific first.
        aliases: By name.
    """

    cluster: str | None = None
    ssh_config: Path | None = None
    theme: str | None = None
    shared: HostSettings = HostSettings()
    hosts: Mapping[str, HostSettings] = field(default_factory=lambda: NOTHING)
    clusters: Mapping[str, ClusterSettings] = field(default_factory=lambda: NOTHING)
    verbs: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    files: tuple[Path, ...] = ()
    expect: Expectation = NOTHING_EXPECTED
    host_expect: Mapping[str, Expectation] = field(default_factory=lambda: NOTHING)
    notify: Mapping[str, Any] = field(default_factory=lambda: NOTHING, repr=False)
    startup: bool | None = None
    keys: tuple[KeySetting, ...] = ()
    aliases: Mapping[str, Alias] = field(default_factory=lambda: NOTHING)

    def expected(self, host: str, cluster: ClusterSettings | None = None) -> Expectation:
        """Return what is expected of ``host``: its own, then its cluster's, then everybody's."""
        shared = self.expect if cluster is None else cluster.expect.over(self.expect)
        return self.host_expect.get(host, NOTHING_EXPECTED).over(shared)

    def settings(self, host: str, cluster: ClusterSettings | None = None) -> HostSettings:
        """Return what holds for ``host``: its own, then its cluster's, then everybody's."""
        shared = self.shared if cluster is None else cluster.shared.over(self.shared)
        return self.hosts.get(host, HostSettings()).over(shared)

    def over(self, other: Config) -> Config:
        """Return this configuration, with ``other`` where it says nothing."""
        names = set(self.hosts) | set(other.hosts)
        verbs = set(self.verbs) | set(other.verbs)
        return Config(
            cluster=self.cluster or other.cluster,
            ssh_config=self.ssh_config or other.ssh_config,
            theme=self.theme or other.theme,
            shared=self.shared.over(other.shared),
            hosts={
                name: self.hosts.get(name, HostSettings()).over(
                    other.hosts.get(name, HostSettings())
                )
                for name in names
            },
            clusters={**other.clusters, **self.clusters},
            verbs={
                verb: {**other.verbs.get(verb, NOTHING), **self.verbs.get(verb, NOTHING)}
                for verb in verbs
            },
            files=(*self.files, *other.files),
            startup=other.startup if self.startup is None else self.startup,
            keys=(*other.keys, *self.keys),
            aliases={**other.aliases, **self.aliases},
            expect=self.expect.over(other.expect),
            notify={**other.notify, **self.notify},
            host_expect={
                name: self.host_expect.get(name, NOTHING_EXPECTED).over(
                    other.host_expect.get(name, NOTHING_EXPECTED)
                )
                for name in {*self.host_expect, *other.host_expect}
            },
        )
