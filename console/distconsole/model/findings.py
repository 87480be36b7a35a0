"""What a check or a rule concluded, as a value that a person and a program can both read."""

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
    """What to change on a host: variables, training interface, address; ``setup``: ``ulimit -n 65536``."""

    env: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    nic: str = ""
    address: str = ""
    setup: str = ""


class Cure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What mends a finding, as data: what a person would set by hand, or a configuration holds.

    Attributes:
        env, unset: Variables to set and to remove on every host.
        mca: Parameters of Open MPI, as ``mpirun --mca NAME VALUE`` takes them.
        port: A rendezvous port, for jobs that fix theirs.
        by_run: What ``run`` does about it by itself, in a few words; empty where it does nothing.
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
        ran: What was run.
        after: What came of it with the cure; empty where it did not fail without.
        seconds: What both took.
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
        seen: The evidence: what was run and what came back.
        expected: What would have been healthy.
        hint: What to type; may be pasted.
        rank, step: For findings of a run, and the training step at which it was seen.
        cure: The same as ``hint`` as data; None where it cannot be.
        proof: What came of trying the cure; None where it was not tried.
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
