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
        """0 for ok up to 3 for fail."""
        return list(Severity).index(self)


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One conclusion.

    Attributes:
        check: The stable dotted id, such as ``os.hostname_bindable``.
        severity: How bad it is.
        hosts: The hosts it is about; empty when it is about the whole cluster.
        summary: One line for a person that names the culprit.
        seen: The evidence: what was run and what came back.
        expected: What would have been healthy.
        hint: What to type; may be pasted.
        rank: The rank it is about, for findings of a run.
        step: The training step at which it was seen, for findings of a run.
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
