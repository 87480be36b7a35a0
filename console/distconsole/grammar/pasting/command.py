"""What a pasted command says, as a value. It reads none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from distconsole.errors import UsageError
from distconsole.model.requests import LauncherName, PassArgs


@dataclass(frozen=True, slots=True)
class Pasted:
    """What a command says; what it does not is empty.

    Attributes:
        script: A path, or a module's name.
        starter: The program that starts the ranks, as it was typed.
        python: The interpreter, as it was typed.
        per_host: Ranks on each host, or ``gpu``; ``ranks`` are those of all hosts.
        hosts: As ``--hosts`` takes them; ``hostfile`` as ``--hostfile`` does.
        env: What is set in every rank; of the names in ``exported`` the value is that of the shell.
        address: Where the ranks are told to meet, and at which ``port``.
        ours: The words behind ``distconsole``, where it is a command of ours.
        notes: What a person should know about how it was read.
    """

    script: str = ""
    arguments: tuple[str, ...] = ()
    starter: str = ""
    module: bool = False
    launcher: LauncherName = LauncherName.AUTO
    python: str = ""
    per_host: str = ""
    ranks: int | None = None
    nnodes: str = ""
    hosts: str = ""
    hostfile: str = ""
    env: tuple[tuple[str, str], ...] = ()
    exported: tuple[str, ...] = ()
    workdir: str = ""
    nic: str = ""
    address: str = ""
    port: int | None = None
    pass_args: PassArgs | None = None
    max_restarts: int | None = None
    ours: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def noting(self, note: str) -> Pasted:
        """Return it with one more note."""
        return replace(self, notes=(*self.notes, note))

    def setting(self, name: str, value: str) -> Pasted:
        """Return it with one more variable; the rendezvous is read from some of them."""
        with_it = replace(self, env=(*self.env, (name, value)))
        if name == "MASTER_ADDR":
            return replace(with_it, address=value)
        if name == "MASTER_PORT":
            return replace(with_it, port=port_number(name, value))
        return with_it


def port_number(option: str, value: str) -> int | None:
    """Return the port; None for 0, which means any.

    Raises:
        UsageError: if it is none.
    """
    if not re.fullmatch(r"\d{1,5}", value) or int(value) > 65535:
        raise UsageError(f"{option} {value} is not a port", "a number from 1 to 65535")
    return int(value) or None
