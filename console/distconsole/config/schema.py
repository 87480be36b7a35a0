"""What ``distconsole.toml`` may hold, and the values it becomes. It reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
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

    It is made by ``plain``, ``trusted`` or ``trusted_file``, so that nobody adds a key without a decision.

    Attributes:
        trust: What it needs in a project's file.
        parameter: The flag's parameter, where its name differs from the key.
        choices: What the text may be; anything where empty.
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


def trusted(kind: Kind, parameter: str = "", *, secret: bool = False) -> Key:
    """Return a key that can have something executed, written over, or opened to others."""
    return Key(kind, Trust.KEY, parameter, secret=secret)


def trusted_file() -> Key:
    """Return a key that names a file that can have something executed."""
    return Key(Kind.FILE, Trust.CONTENT)


def _choice(words: type[StrEnum]) -> Key:
    return plain(Kind.TEXT, choices=tuple(word.value for word in words))


_JSON = {"json": plain(Kind.FLAG)}
_CONDITIONS = {"where": plain(Kind.TEXT, "only"), "fail_if": plain(Kind.TEXT)}
_NOTIFY = {"notify": plain(Kind.TEXT)}
_GRACE = {"grace": plain(Kind.SECONDS, "grace_seconds")}

HOST_KEYS: dict[str, Key] = {
    "python": trusted(Kind.TEXT),
    "setup": trusted(Kind.TEXT),
    "address": plain(Kind.TEXT),
    "nic": plain(Kind.TEXT),
    "node_dir": trusted(Kind.TEXT),
    "slots": plain(Kind.POSITIVE),
    "user": plain(Kind.USER),
    "port": plain(Kind.PORT),
}
"""Of ``[hosts.NAME]``; the same without ``address`` for all hosts of a ``[clusters.NAME]``, or of all."""

SHARED_KEYS = {name: key for name, key in HOST_KEYS.items() if name != "address"}

CLUSTER_KEYS: dict[str, Key] = {
    "hosts": plain(Kind.WORDS),
    "hostfile": plain(Kind.FILE),
    "ssh_config": trusted_file(),
    **SHARED_KEYS,
}

TOP_KEYS: dict[str, Key] = {
    "cluster": plain(Kind.TEXT),
    "ssh_config": trusted_file(),
    "theme": plain(Kind.TEXT),
    "startup": plain(Kind.FLAG),
    **SHARED_KEYS,
}

VERB_KEYS: dict[str, dict[str, Key]] = {
    "check": {
        "level": _choice(Level),
        "only": plain(Kind.WORDS),
        "skip": plain(Kind.WORDS),
        "nproc": plain(Kind.POSITIVE),
        "budget": plain(Kind.SECONDS, "budget_seconds"),
        "strict": plain(Kind.FLAG),
        "junit": trusted(Kind.FILE),
        "emit_hostfile": trusted(Kind.FILE),
        "details": plain(Kind.FLAG),
        "prove": plain(Kind.FLAG),
        **_JSON,
    },
    "run": {
        "launcher": _choice(LauncherName),
        "nproc": plain(Kind.NPROC),
        "nnodes": plain(Kind.NNODES),
        "module": plain(Kind.FLAG),
        "env": trusted(Kind.PAIRS),
        "env_file": trusted_file(),
        "workdir": trusted(Kind.TEXT),
        "sync": plain(Kind.FLAG),
        "pass_args": _choice(PassArgs),
        "max_restarts": plain(Kind.COUNT),
        "nic": plain(Kind.TEXT),
        "verify_sync": plain(Kind.POSITIVE),
        "log_limit": plain(Kind.SIZE),
        "store_limit": plain(Kind.SIZE),
        "name": plain(Kind.TEXT),
        "watch": plain(Kind.FLAG),
        "detach": plain(Kind.FLAG),
        "dry_run": plain(Kind.FLAG),
        "slurm": trusted(Kind.TEXT),
        "slurm_login": plain(Kind.TEXT),
        "emit": _choice(EmitKind),
        "output": trusted(Kind.FILE),
        **_NOTIFY,
        "lost_after": plain(Kind.SECONDS, "lost_after_seconds"),
        **_GRACE,
        **_JSON,
    },
    "top": {
        "once": plain(Kind.FLAG),
        "interval": plain(Kind.SECONDS, "interval_seconds"),
        **_CONDITIONS,
        **_JSON,
    },
    "runs": {**_CONDITIONS, **_JSON},
    "show": {**_CONDITIONS, **_JSON},
    "compare": {**_JSON},
    "attach": {**_NOTIFY, **_JSON},
    "logs": {
        "rank": plain(Kind.RANKS, "ranks"),
        "host": plain(Kind.TEXT),
        "stream": plain(Kind.TEXT, choices=("out", "err")),
        "grep": plain(Kind.TEXT),
        "errors": plain(Kind.FLAG),
        "since": plain(Kind.TEXT),
        "fold": plain(Kind.FLAG),
        "follow": plain(Kind.FLAG),
        "tail": plain(Kind.COUNT),
    },
    "stop": {**_GRACE, "yes": trusted(Kind.FLAG)},
    "rerun": {"exclude": plain(Kind.WORDS), "detach": plain(Kind.FLAG), **_NOTIFY, **_JSON},
    "export": {
        "format": _choice(ExportFormat),
        "output": trusted(Kind.FILE),
        "table": _choice(ExportTable),
        "follow": plain(Kind.FLAG),
        "listen": trusted(Kind.TEXT),
        "interval": plain(Kind.SECONDS, "interval_seconds"),
    },
    "report": {"output": trusted(Kind.FILE)},
    "setup": {
        "source": trusted_file(),
        "yes": trusted(Kind.FLAG),
        "dry_run": plain(Kind.FLAG),
        "rebuild": plain(Kind.FLAG),
    },
    "bench": {
        "only": plain(Kind.WORDS),
        "skip": plain(Kind.WORDS),
        "rounds": plain(Kind.POSITIVE),
        "images": plain(Kind.POSITIVE),
        "batch": plain(Kind.POSITIVE),
        "epochs": plain(Kind.POSITIVE),
        "width": plain(Kind.POSITIVE),
        "precision": _choice(PrecisionName),
        "launcher": plain(Kind.TEXT, choices=("torch", "horovod", "mpi")),
        "ops": plain(Kind.WORDS),
        "sizes": plain(Kind.WORDS),
        "budget": plain(Kind.SECONDS, "budget_seconds"),
        "nproc": plain(Kind.NPROC),
        **_JSON,
    },
    "demo": {"nodes": plain(Kind.POSITIVE), "headless": plain(Kind.FLAG), **_JSON},
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
