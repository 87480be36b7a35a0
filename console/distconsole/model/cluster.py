"""The hosts that an operation is about."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from distconsole.model.names import HostName


class TransportName(StrEnum):
    """The implementation of the connection to a host."""

    AUTO = "auto"
    OPENSSH = "openssh"
    PARAMIKO = "paramiko"


EMBEDDED = "embedded"
"""The name of a demo's cluster."""


def path_word(path: str) -> str:
    """Return a path on a host as a word for its shell; a leading ``~/`` is the home there."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


@dataclass(frozen=True, slots=True)
class Host:
    """One host as the user named it.

    Attributes:
        name: The alias, name or address given; shown, and used in the JSON.
        user, port: Of SSH; None leaves them to ssh_config.
        slots: Ranks to place here; None leaves it to ``--nproc``.
        job_slots: Slots that a job of PBS, LSF or Grid Engine has here.
        python: The node's interpreter; None takes ``python3`` of the node's shell.
        setup: A shell command run before the interpreter, such as ``source venv/bin/activate``.
        container: Container of ranks and their checks, as ``podman:train``; ``python`` is then a path in there.
        address, nic: For training traffic; None lets the planner choose.
        node_dir: The local folder on the node; None takes ``/tmp/distconsole-<uid>``.
        transport: A ``TransportName``; None is ``auto``.
        local: True for this machine, reached without SSH.
    """

    name: HostName
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    job_slots: int | None = None
    python: str | None = None
    setup: str | None = None
    container: str | None = None
    address: str | None = None
    nic: str | None = None
    node_dir: str | None = None
    transport: str | None = None
    local: bool = False

    @property
    def agent_python(self) -> str | None:
        """The interpreter of the agent, which runs in no container; None as ``python``."""
        return None if self.container else self.python


@dataclass(frozen=True)
class Cluster:
    """The hosts in the order given, that of ranks, and how to reach them.

    ``origin``: the variable of a batch job that names them.
    """

    hosts: tuple[Host, ...]
    ssh_config: str | None = None
    name: str | None = None
    origin: str = ""

    @property
    def demo_folder(self) -> Path | None:
        """Where the nodes of a demo lie, which go with it; None of any other cluster."""
        demo = self.name == EMBEDDED and all(host.node_dir for host in self.hosts)
        return Path(self.ssh_config).parent if demo and self.ssh_config is not None else None

    def host(self, name: str) -> Host | None:
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Host]:
        return {host.name: host for host in reversed(self.hosts)}
