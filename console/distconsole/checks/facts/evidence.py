"""All that is known about the hosts at one moment, and why something is missing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar, cast

from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.node import Facts, SshFacts
from distconsole.model.cluster import Host
from distconsole.model.expectation import NOTHING_EXPECTED, Expectation
from distconsole.model.names import HostName

F = TypeVar("F", bound=Facts)
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Outcome(StrEnum):
    """How one check ended on one host."""

    PASS = "pass"  # noqa: S105 - an outcome, no password
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"
    COULD_NOT_RUN = "could_not_run"
    TIMED_OUT = "timed_out"


UNREACHED = "the host was not reached"
ALONE = "no other host could be reached"
NO_GROUP = "no rank joined the group"
BROKEN = "(see net.*)"
LOST = "(see ssh.lost)"
CANCELLED = "the check was cancelled"
"""Reasons for an empty cell; all but the last a finding of another check explains."""

ELSEWHERE = "the rendezvous is on the first host, or the launch fixes no port"
"""Reason for not asking the other hosts, where one host can answer for all."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a group of facts, or a verdict, is not there."""

    outcome: Outcome
    why: str


@dataclass(slots=True)
class HostEvidence:
    """One host: typed facts, the raw answers for the report, and reasons for missing facts."""

    host: Host
    known: dict[type[Facts], Facts] = field(default_factory=dict)
    missing: dict[type[Facts], Missing] = field(default_factory=dict)
    raw: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def name(self) -> HostName:
        return self.host.name

    @property
    def reached(self) -> bool:
        ssh = self.find(SshFacts)
        return ssh is not None and not ssh.error_kind

    def find(self, kind: type[F]) -> F | None:
        return cast("F | None", self.known.get(kind))

    def add_facts(self, facts: Facts, raw: Mapping[str, object] | None = None) -> None:
        """Add a group of facts; ``raw`` is shown in the report as the node gave it."""
        self.known[type(facts)] = facts
        self.missing.pop(type(facts), None)
        if raw is not None:
            self.raw[facts.group] = dict(raw)

    def mark_missing(self, kind: type[Facts], outcome: Outcome, why: str) -> None:
        """Note why a group of facts is not there; the first reason stands."""
        if kind not in self.known:
            self.missing.setdefault(kind, Missing(outcome, why))

    def mark_unknown(self) -> None:
        """Count nothing as skipped ("no torch there") if its presence is unknown."""
        for kind, skipped in list(self.missing.items()):
            for other in kind.leans_on if skipped.outcome is Outcome.SKIPPED else ():
                missing = self.missing.get(other)
                if missing is not None and missing.outcome is not Outcome.SKIPPED:
                    self.missing[kind] = missing

    def why_not(self, kinds: Iterable[type[Facts]]) -> Missing | None:
        """Return why one of ``kinds`` is missing; None if all are known."""
        for kind in kinds:
            if kind not in self.known:
                return self.missing.get(
                    kind, Missing(Outcome.COULD_NOT_RUN, f"{kind.group} was not looked at")
                )
        return None


@dataclass(frozen=True, slots=True)
class View:
    """What one check may look at: the hosts that have every group of facts that it needs.

    Attributes:
        hosts: Those hosts, in the order given.
        everyone: The names of all hosts asked about, also those that could not be reached.
        ranks_per_host: As asked for with ``--nproc``; None leaves it to the GPUs.
        launch: The launch that is checked; None where none was given.
        expected: By host what the configuration expects, where it expects something.
    """

    hosts: tuple[HostEvidence, ...]
    everyone: tuple[str, ...]
    ranks_per_host: int | None = None
    launch: Launch | None = None
    expected: Mapping[str, Expectation] = field(default_factory=dict)
    _made: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def expectation(self, name: str) -> Expectation:
        return self.expected.get(name, NOTHING_EXPECTED)

    def of(self, kind: type[F]) -> Mapping[str, F]:
        if kind not in self._made:
            self._made[kind] = {h.name: h.known[kind] for h in self.hosts if kind in h.known}
        return cast("Mapping[str, F]", self._made[kind])

    def on(self, hosts: Sequence[HostEvidence]) -> View:
        """Return the view of some of these hosts, in the same order: the same one whoever asks."""
        if len(hosts) == len(self.hosts):
            return self
        key = tuple(host.name for host in hosts)
        if key not in self._made:
            self._made[key] = replace(self, hosts=tuple(hosts))
        return cast("View", self._made[key])


def once_a_view(make: Callable[[View], T]) -> Callable[[View], T]:
    """Make a function of a view that works out its value for the first who asks; they leave it as it is."""

    @wraps(make)
    def made(view: View) -> T:
        if make not in view._made:
            view._made[make] = make(view)
        return cast("T", view._made[make])

    return made


def by_key(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
