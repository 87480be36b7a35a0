"""Listeners on hosts, behind a secret of this check alone, which the hosts are then asked to connect to.

They are the agents', and close by themselves whatever becomes of the check.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from distconsole.checks.facts.node import Facts, convert
from distconsole.checks.gather.addresses import HostEndpoint
from distconsole.checks.gather.context import CheckContext, fixed_port
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host

LISTEN_SECONDS = 3.0


class OpenPort(Facts, frozen=True, kw_only=True):
    """A port that a node listens on, None if it cannot; ``asked`` is 0 for an ephemeral one."""

    asked: int = 0
    port: int | None = None


class Opened(Facts, frozen=True, kw_only=True):
    token: str = ""
    ports: tuple[OpenPort, ...] = ()


@dataclass(frozen=True, slots=True)
class Listening:
    """A host's listeners for this check; ``ports`` are all, the fixed one first if it has it."""

    endpoint: HostEndpoint
    token: str
    fixed: int | None
    ports: tuple[int, ...]


@dataclass(slots=True)
class Listeners:
    """Those of one round, open while it is entered; on ``ephemeral`` ports; by host where, or why not."""

    context: CheckContext
    chosen: Mapping[str, HostEndpoint]
    ephemeral: int
    ttl_seconds: float
    listening: dict[str, Listening] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    _secret: str = field(default_factory=lambda: secrets.token_hex(32))

    def __enter__(self) -> Listeners:
        hosts = [host for host in self.context.reached() if host.name in self.chosen]
        # Two names of one address would take the fixed port from each other.
        first_of: dict[str, str] = {}
        for host in hosts:
            first_of.setdefault(self.chosen[host.name].address, host.name)

        def listen(host: Host) -> dict[str, Any]:
            address = self.chosen[host.name].address
            return {
                "address": address,
                "ports": [fixed_port(self.context)] if first_of[address] == host.name else [],
                "ephemeral": self.ephemeral,
                "ttl_seconds": self.ttl_seconds,
            }

        for outcome in self.ask(hosts, "net.listen", LISTEN_SECONDS, listen):
            if isinstance(outcome, fan.Failed):
                self.errors[outcome.host] = outcome.error.message
                continue
            try:
                opened = convert(Opened, outcome.value)
            except ValueError as error:
                self.errors[outcome.host] = f"the node's answer is not as agreed: {error}"
                continue
            fixed = [each.port for each in opened.ports if each.asked and each.port]
            others = [each.port for each in opened.ports if not each.asked and each.port]
            if not (fixed or others):
                self.errors[outcome.host] = "it listens on no port"
                continue
            self.listening[outcome.host] = Listening(
                self.chosen[outcome.host],
                opened.token,
                fixed[0] if fixed else None,
                (*fixed[:1], *others),
            )
        return self

    def __exit__(self, *_exception: object) -> None:
        """Close the remaining listeners; those of a lost host close by themselves."""
        hosts = [host for host in self.context.reached() if host.name in self.listening]
        tokens = {name: there.token for name, there in self.listening.items()}
        list(self.ask(hosts, "net.close", LISTEN_SECONDS, lambda h: {"token": tokens[h.name]}))

    def ask(
        self,
        hosts: Iterable[Host],
        group: str,
        seconds: float,
        args: Callable[[Host], Mapping[str, Any]],
    ) -> Iterator[fan.Outcome[dict[str, Any]]]:
        """Run a probe that knows the secret on ``hosts`` and yield each outcome as it comes."""
        return self.context.ask_all(
            hosts, group, seconds, lambda host: {**args(host), "secret": self._secret}
        )
