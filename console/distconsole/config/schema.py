"""What ``distconsole.toml`` may hold, and the values it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from distconsole.config.shortcuts import Alias, KeySetting
from distconsole.model.cluster import TransportName
from distconsole.model.expectation import (
    NOTHING_EXPECTED,
    CollectiveExpectation,
    Expectation,
    said_in,
)
from distconsole.model.options import Kind, Option, TrustNeed, keys_of, needs_trust, plain
from distconsole.model.verbs import VERBS

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Settings of a host; None for unset ones."""

    python: str | None = needs_trust(None, kind=Kind.TEXT)
    setup: str | None = needs_trust(None, kind=Kind.TEXT)
    container: str | None = needs_trust(None, kind=Kind.TEXT)
    address: str | None = plain(None, kind=Kind.TEXT)
    nic: str | None = plain(None, kind=Kind.TEXT)
    node_dir: str | None = needs_trust(None, kind=Kind.TEXT)
    slots: int | None = plain(None, kind=Kind.POSITIVE)
    user: str | None = plain(None, kind=Kind.USER)
    port: int | None = plain(None, kind=Kind.PORT)
    transport: str | None = plain(None, kind=TransportName)

    def over(self, other: HostSettings) -> HostSettings:
        said = said_in(self)
        return replace(other, **said) if said else other


HOST_KEYS = keys_of(HostSettings)
"""Of ``[hosts.NAME]``; the same without ``address`` for all hosts of a ``[clusters.NAME]``, or of all."""

SHARED_KEYS = {name: key for name, key in HOST_KEYS.items() if name != "address"}

CLUSTER_KEYS = {
    "hosts": Option(Kind.WORDS, TrustNeed.NONE),
    "hostfile": Option(Kind.FILE, TrustNeed.NONE),
    "ssh_config": Option(Kind.FILE, TrustNeed.CONTENT),
    **SHARED_KEYS,
}

TOP_KEYS = {
    "cluster": Option(Kind.TEXT, TrustNeed.NONE),
    "ssh_config": Option(Kind.FILE, TrustNeed.CONTENT),
    "theme": Option(Kind.TEXT, TrustNeed.NONE),
    "startup": Option(Kind.FLAG, TrustNeed.NONE),
    **SHARED_KEYS,
}


KEY_KEYS = dict.fromkeys(("line", "label"), Option(Kind.KEY_LINE, TrustNeed.KEY))
"""Of one key of ``[keys]``, if it is a table."""

EXPECT_KEYS = keys_of(Expectation)
"""Of ``[expect]``, ``[clusters.NAME.expect]`` and ``[hosts.NAME.expect]``, beside the two tables."""

PACKAGE_KEY = Option(Kind.VERSION, TrustNeed.NONE)

COLLECTIVE_KEYS = keys_of(CollectiveExpectation)
"""Of each of ``[[expect.collectives]]``."""


VERB_KEYS: dict[str, dict[str, Option]] = {}
"""A table a verb, a key a flag; dashes and underscores are the same."""
for _kind, _verb in VERBS.items():
    if _verb.name and (_keys := keys_of(_kind)):
        VERB_KEYS.setdefault(_verb.name.split()[0], {}).update(_keys)

TRUSTED_TABLES = ("keys", "aliases")
"""Tables of lines that are typed as if by the person who sits there, under names of their own."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A named set of hosts; ``shared`` is for each, where ``[hosts.NAME]`` says nothing."""

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
        """Return the expectations of ``host``: its own, then its cluster's, then the general ones."""
        shared = self.expect if cluster is None else cluster.expect.over(self.expect)
        return self.host_expect.get(host, NOTHING_EXPECTED).over(shared)

    def settings(self, host: str, cluster: ClusterSettings | None = None) -> HostSettings:
        """Return what holds for ``host``: its own, then its cluster's, then everybody's."""
        shared = self.shared if cluster is None else cluster.shared.over(self.shared)
        return self.hosts.get(host, HostSettings()).over(shared)

    def over(self, other: Config) -> Config:
        both = {name: _lay_over(getattr(self, name), getattr(other, name)) for name in _FIELDS}
        files, keys = (*self.files, *other.files), (*other.keys, *self.keys)
        return Config(**{**both, "files": files, "keys": keys})


_FIELDS = tuple(each.name for each in fields(Config))


def _lay_over(own: Any, other: Any) -> Any:
    if isinstance(own, HostSettings | Expectation):
        return own.over(other)
    if isinstance(own, Mapping):
        both = {name: _lay_over(own[name], other[name]) for name in own if name in other}
        return {**other, **own, **both}
    return other if own is None else own
