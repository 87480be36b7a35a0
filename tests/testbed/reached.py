"""Hosts that stand together and are reached by OpenSSH's own client. It starts none of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from testbed.standing import Standing


class Named(Protocol):
    """A host, as far as its name goes."""

    name: str


class Reached(Standing):
    """A bed of hosts.

    Attributes:
        hosts: The hosts, in order.
        ssh_config: Knows them by their names.
    """

    hosts: Sequence[Named]
    ssh_config: Path

    @property
    def ssh_options(self) -> list[str]:
        """The words for an ``ssh`` or ``scp`` command line."""
        return ["-F", str(self.ssh_config)]

    def ssh(
        self, host: str, command: str, *, check: bool = True, timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host over real SSH."""
        return subprocess.run(
            ["ssh", *self.ssh_options, host, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout,
        )

    @property
    def host_names(self) -> list[str]:
        return [host.name for host in self.hosts]

    @property
    def names(self) -> str:
        """The hosts as ``--hosts`` takes them."""
        return ",".join(self.host_names)
