"""Requests about hosts: to judge them, look at their load, bring what they lack. They do nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from distconsole.model.requests.launches import Run
from distconsole.model.requests.where import Where


class Level(StrEnum):
    """How deep a check goes."""

    QUICK = "quick"
    STANDARD = "standard"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Target:
    """A launch to check.

    Attributes:
        run: The same launch as ``run`` would be asked for.
        command: The words that were given, a script or a command that starts one.
        starter: The program that starts the ranks in that command; empty where it is ``run``.
        python: The interpreter that the command names; None leaves it to the hosts.
        ranks: On all hosts together; None leaves it to ``run.nproc``.
        address: Where the command has the ranks meet, and at which ``port``.
        notes: What a person should know about how the command was read.
    """

    run: Run
    command: tuple[str, ...]
    starter: str = ""
    python: str | None = None
    ranks: int | None = None
    address: str = ""
    port: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """Judge the hosts.

    Attributes:
        target: The launch that is checked; None checks the hosts for any.
        prove: Whether cures are tried; None leaves it to the level.
        details: Whether a person wants to read all that was seen.
        write_profile: A file for the cures that were proven; empty for the project's own.
    """

    where: Where = Where()
    level: Level = Level.STANDARD
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    nproc: int | None = None
    budget_seconds: float | None = None
    strict: bool = False
    json: bool = False
    junit: str | None = None
    emit_hostfile: str | None = None
    target: Target | None = None
    prove: bool | None = None
    details: bool = False
    write_profile: str | None = None

    @property
    def proves(self) -> bool:
        """Whether cures are tried: as asked, else from level standard on."""
        by_level = self.level is not Level.QUICK or self.write_profile is not None
        return by_level if self.prove is None else self.prove


@dataclass(frozen=True, slots=True)
class Explain:
    """Say what one check does (``check --explain ID``)."""

    check: str


@dataclass(frozen=True, slots=True)
class Top:
    """Show load and GPUs of the hosts, live; with ``once`` also by conditions, as ``Show`` has them."""

    where: Where = Where()
    once: bool = False
    json: bool = False
    interval_seconds: float = 1.0
    only: str | None = None
    fail_if: str | None = None
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Prepare:
    """Bring what the hosts lack (``setup``).

    Attributes:
        yes: Ask nothing.
        dry_run: Say what would be done and do nothing.
        source: An archive of Horovod's source, where no package index can be reached.
        rebuild: Also where the Horovod that is there fits.
    """

    where: Where = Where()
    source: str | None = None
    yes: bool = False
    dry_run: bool = False
    rebuild: bool = False
