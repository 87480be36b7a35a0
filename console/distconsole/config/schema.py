"""What ``distconsole.toml`` may hold, and the values it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

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

Value = TypeVar("Value")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Kind(StrEnum):
    """What a value may be; the name is used in messages."""

    TEXT = "a text"
    FILE = "a file name"
    FLAG = "true or false"
    COUNT = "a whole number from 0"
    POSITIVE = "a whole number from 1"
    USER = "a user name"
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


class Trust(Enum):
    """What a key needs in a project's file (``config.trust``)."""

    NONE = "none"
    KEY = "key"
    CONTENT = "content"
    """The content of the file that it names counts, too."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table.

    It is made by ``plain``, ``needs_trust`` or ``needs_trusted_file``, so that nobody adds a key without a decision.

    Attributes:
        secret: Whether no message may show the value.
    """

    kind: Kind
    trust: Trust
    parameter: str = ""
    choices: tuple[str, ...] = ()
    secret: bool = False


def plain(kind: Kind, parameter: str = "", choices: tuple[str, ...] = ()) -> Key:
    """Return a key that may stand in a project's file that nobody trusted yet: it executes nothing."""
    return Key(kind, Trust.NONE, parameter, choices)


def needs_trust(kind: Kind, parameter: str = "", *, secret: bool = False) -> Key:
    """Return a key that can have something executed, written over, or opened to others."""
    return Key(kind, Trust.KEY, parameter, secret=secret)


def needs_trusted_file() -> Key:
    """Return a key that names a file that can have something executed."""
    return Key(Kind.FILE, Trust.CONTENT)


def _choice(words: type[StrEnum]) -> Key:
    return plain(Kind.TEXT, choices=tuple(word.value for word in words))


def _all(kind: Kind, *names: str) -> dict[str, Key]:
    """Return plain keys of one kind."""
    return dict.fromkeys(names, plain(kind))


_CONDITIONS = {"where": plain(Kind.TEXT, "only"), "fail_if": plain(Kind.TEXT)}
_GRACE = {"grace": plain(Kind.SECONDS, "grace_seconds")}
_BUDGET = {"budget": plain(Kind.SECONDS, "budget_seconds")}
_INTERVAL = {"interval": plain(Kind.SECONDS, "interval_seconds")}

HOST_KEYS: dict[str, Key] = {
    "python": needs_trust(Kind.TEXT),
    "setup": needs_trust(Kind.TEXT),
    "address": plain(Kind.TEXT),
    "nic": plain(Kind.TEXT),
    "node_dir": needs_trust(Kind.TEXT),
    "slots": plain(Kind.POSITIVE),
    "user": plain(Kind.USER),
    "port": plain(Kind.PORT),
}
"""Of ``[hosts.NAME]``; the same without ``address`` for all hosts of a ``[clusters.NAME]``, or of all."""

SHARED_KEYS = {name: key for name, key in HOST_KEYS.items() if name != "address"}

CLUSTER_KEYS: dict[str, Key] = {
    "hosts": plain(Kind.WORDS),
    "hostfile": plain(Kind.FILE),
    "ssh_config": needs_trusted_file(),
    **SHARED_KEYS,
}

TOP_KEYS: dict[str, Key] = {
    "cluster": plain(Kind.TEXT),
    "ssh_config": needs_trusted_file(),
    "theme": plain(Kind.TEXT),
    "startup": plain(Kind.FLAG),
    **SHARED_KEYS,
}

VERB_KEYS: dict[str, dict[str, Key]] = {
    "check": {
        "level": _choice(Level),
        "nproc": plain(Kind.POSITIVE),
        "junit": needs_trust(Kind.FILE),
        "emit_hostfile": needs_trust(Kind.FILE),
        **_all(Kind.WORDS, "only", "skip"),
        **_all(Kind.FLAG, "strict", "details", "prove", "json"),
        **_BUDGET,
    },
    "run": {
        "launcher": _choice(LauncherName),
        "nproc": plain(Kind.NPROC),
        "nnodes": plain(Kind.NNODES),
        "env": needs_trust(Kind.PAIRS),
        "env_file": needs_trusted_file(),
        "workdir": needs_trust(Kind.TEXT),
        "pass_args": _choice(PassArgs),
        "max_restarts": plain(Kind.COUNT),
        "verify_sync": plain(Kind.POSITIVE),
        "slurm": needs_trust(Kind.TEXT),
        "emit": _choice(EmitKind),
        "output": needs_trust(Kind.FILE),
        "lost_after": plain(Kind.SECONDS, "lost_after_seconds"),
        **_all(Kind.FLAG, "module", "sync", "watch", "detach", "dry_run", "json"),
        **_all(Kind.TEXT, "nic", "name", "slurm_login", "notify"),
        **_all(Kind.SIZE, "log_limit", "store_limit"),
        **_GRACE,
    },
    "top": {**_all(Kind.FLAG, "once", "json"), **_INTERVAL, **_CONDITIONS},
    "runs": {**_CONDITIONS, **_all(Kind.FLAG, "json")},
    "show": {**_CONDITIONS, **_all(Kind.FLAG, "json")},
    "compare": _all(Kind.FLAG, "json"),
    "attach": {**_all(Kind.TEXT, "notify"), **_all(Kind.FLAG, "json")},
    "logs": {
        "rank": plain(Kind.RANKS, "ranks"),
        "stream": plain(Kind.TEXT, choices=("out", "err")),
        "tail": plain(Kind.COUNT),
        **_all(Kind.TEXT, "host", "grep", "since"),
        **_all(Kind.FLAG, "errors", "fold", "follow"),
    },
    "stop": {**_GRACE, "yes": needs_trust(Kind.FLAG)},
    "rerun": {
        "exclude": plain(Kind.WORDS),
        "notify": plain(Kind.TEXT),
        **_all(Kind.FLAG, "detach", "json"),
    },
    "export": {
        "format": _choice(ExportFormat),
        "output": needs_trust(Kind.FILE),
        "table": _choice(ExportTable),
        "follow": plain(Kind.FLAG),
        "listen": needs_trust(Kind.TEXT),
        **_INTERVAL,
    },
    "report": {"output": needs_trust(Kind.FILE)},
    "setup": {
        "source": needs_trusted_file(),
        "yes": needs_trust(Kind.FLAG),
        **_all(Kind.FLAG, "dry_run", "rebuild"),
    },
    "bench": {
        "nproc": plain(Kind.NPROC),
        "precision": _choice(PrecisionName),
        "launcher": plain(Kind.TEXT, choices=("torch", "horovod", "mpi")),
        "json": plain(Kind.FLAG),
        **_all(Kind.WORDS, "only", "skip", "ops", "sizes"),
        **_all(Kind.POSITIVE, "rounds", "images", "batch", "epochs", "width"),
        **_BUDGET,
    },
    "demo": {"nodes": plain(Kind.POSITIVE), **_all(Kind.FLAG, "headless", "json")},
}
"""A table a verb, a key a flag; dashes and underscores are the same."""

TRUSTED_TABLES = ("keys", "aliases")
"""Tables of lines that are typed as if by the person who sits there, under names of their own."""


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
        hosts: By host name, ranges expanded.
        notify: As ``config.notify`` reads it; it may hold secrets.
        keys: The least specific first.
        passed: Project's files that were passed by, each with why and what to do.
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
    passed: tuple[str, ...] = ()

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
        return Config(
            cluster=self.cluster or other.cluster,
            ssh_config=self.ssh_config or other.ssh_config,
            theme=self.theme or other.theme,
            shared=self.shared.over(other.shared),
            hosts=_merged(self.hosts, other.hosts, lambda own, rest: own.over(rest)),
            clusters={**other.clusters, **self.clusters},
            verbs=_merged(self.verbs, other.verbs, lambda own, rest: {**rest, **own}),
            files=(*self.files, *other.files),
            startup=other.startup if self.startup is None else self.startup,
            keys=(*other.keys, *self.keys),
            aliases={**other.aliases, **self.aliases},
            expect=self.expect.over(other.expect),
            notify={**other.notify, **self.notify},
            host_expect=_merged(
                self.host_expect, other.host_expect, lambda own, rest: own.over(rest)
            ),
        )


def _merged(
    own: Mapping[str, Value], other: Mapping[str, Value], over: Callable[[Value, Value], Value]
) -> dict[str, Value]:
    """Return both; what both have is that of ``own`` over that of ``other``."""
    both = {name: over(own[name], other[name]) for name in own if name in other}
    return {**other, **own, **both}
