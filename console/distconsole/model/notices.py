"""Events that send a notice to a person who is not looking, as values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class NoticeKind(StrEnum):
    """Reason for a notice."""

    FINISH = "finish"
    """The run ended well, or was stopped."""
    FAILURE = "failure"
    STALL = "stall"
    FINDING = "finding"
    """A finding of severity fail that is none of the others."""
    TEST = "test"


class Way(StrEnum):
    """Way of a notice."""

    BELL = "bell"
    DESKTOP = "desktop"
    COMMAND = "command"
    WEBHOOK = "webhook"
    SERVICES = "services"
    """Those of apprise."""
    NODE = "node"
    """The webhook, by the run's first node in place of the console."""


LOCAL_WAYS = frozenset((Way.BELL, Way.DESKTOP))
"""Those of the terminal that shows the run."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice: a few words, more ``text`` without escapes, ``t`` (UNIX seconds), ``state`` of an end."""

    kind: NoticeKind
    title: str
    text: str
    t: float
    run: str = ""
    name: str = ""
    state: str = ""
    exit_code: int | None = None
    rank: int | None = None
    host: str = ""

    @property
    def fields(self) -> dict[str, object]:
        """The notice for JSON, without unknown values."""
        known = {name: value for name, value in asdict(self).items() if value not in ("", None)}
        return {"event": "notice", **known}
