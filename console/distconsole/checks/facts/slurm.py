"""What Slurm and munge say of a host."""

from __future__ import annotations

import msgspec

from distconsole.checks.facts.node import Facts


class Controller(Facts, frozen=True, kw_only=True):
    """One slurmctld, as the host sees it."""

    role: str
    host: str
    up: bool = False


class SlurmFacts(Facts, frozen=True, kw_only=True):
    """Group ``slurm``; ``why`` says why there is none.

    ``node`` is what the controller has of the host, by the names of ``scontrol show node``, None where
    it knows none; ``hardware`` likewise by ``slurmd -C``. With ``overrides`` slurmd believes the
    configuration whatever the hardware is.
    """

    present: bool
    why: str = ""
    version: str = ""
    controllers: tuple[Controller, ...] = ()
    controller_error: str = ""
    node: dict[str, str] | None = None
    hardware: dict[str, str] | None = None
    overrides: bool = False
    munge_error: str = ""


class Decoded(Facts, frozen=True, kw_only=True):
    """A credential of the host ``source`` as this one decoded it; times are UNIX seconds."""

    source: str
    status: str = ""
    encoded: int | None = None
    decoded: int | None = None
    error: str = ""


class MungeFacts(Facts, frozen=True, kw_only=True):
    """What a host made of the others' credentials."""

    decoded: tuple[Decoded, ...] = ()


class StepFacts(Facts, frozen=True, kw_only=True):
    """Soft limits inside a step of the allocation ``job`` on the host, None for none."""

    job: str
    limits: dict[str, int | None] = msgspec.field(default_factory=dict)
    error: str = ""
