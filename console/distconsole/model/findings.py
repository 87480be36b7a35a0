"""Conclusion of a check or a rule, as a value for people and programs."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad a finding is; compares by ``order``."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"

    @property
    def order(self) -> int:
        return list(Severity).index(self)


class HostCure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes on a host: variables, training interface, address; ``setup``: ``ulimit -n 65536``."""

    env: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    nic: str = ""
    address: str = ""
    setup: str = ""


class Cure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Remedy of a finding, as data: settings that a person would make, or a configuration holds.

    Attributes:
        env, unset: Variables to set and to remove on every host.
        mca: Parameters of Open MPI, as ``mpirun --mca NAME VALUE`` takes them.
        port: A rendezvous port, for jobs that fix theirs.
        by_run: The measure that ``run`` takes by itself, in a few words; empty for none.
    """

    env: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    mca: dict[str, str] = {}
    port: int | None = None
    hosts: dict[str, HostCure] = {}
    by_run: str = ""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest failing test, without the cure and with it.

    Attributes:
        ran: The command of the trial.
        after: Its result with the cure; empty if it did not fail without.
        seconds: Time of both.
    """

    ran: str
    before: str
    after: str
    cured: bool
    seconds: float


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One conclusion.

    Attributes:
        check: The stable dotted id, such as ``os.hostname_bindable``.
        hosts: Empty when it is about the whole cluster.
        summary: One line for a person that names the culprit.
        seen: The evidence: the command and its output.
        expected: The healthy state.
        hint: The command to type; may be pasted.
        rank, step: For findings of a run, and its training step.
        cure: The same as ``hint`` as data; None if it cannot be.
        proof: Result of trying the cure; None if it was not tried.
    """

    check: str
    severity: Severity
    summary: str
    hosts: tuple[str, ...] = msgspec.field(default=())
    seen: str = ""
    expected: str = ""
    hint: str = ""
    rank: int | None = None
    step: int | None = None
    cure: Cure | None = None
    proof: Proof | None = None
