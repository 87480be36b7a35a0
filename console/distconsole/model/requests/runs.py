"""Requests about runs that go on or are over: list, show, follow, write down. They do nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from distconsole.model.ranks import RankSpans
from distconsole.model.requests.where import Where


@dataclass(frozen=True, slots=True)
class Runs:
    """List past and present runs; by conditions as ``Show`` has them.

    Attributes:
        as_found: Each as soon as it is read, in no order, and without conditions; one may come again
            with what its hosts say.
    """

    where: Where = Where()
    json: bool = False
    only: str | None = None
    fail_if: str | None = None
    as_found: bool = False


@dataclass(frozen=True, slots=True)
class Show:
    """One run's summary, or those of its ranks that conditions are about.

    Attributes:
        only: Only what matches this condition (``--where``).
        fail_if: What matches this one, too, is bad: it decides the exit code.
    """

    run: str
    where: Where = Where()
    json: bool = False
    only: str | None = None
    fail_if: str | None = None


@dataclass(frozen=True, slots=True)
class Attach:
    """Follow a run that is going on, from its beginning."""

    run: str
    where: Where = Where()
    json: bool = False
    notify: str | None = None
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Logs:
    """Lines that a run printed.

    Attributes:
        ranks: First and last of each span; empty for all.
        grep: A regular expression that a line has.
        errors: Only errors, with their tracebacks.
        since: As ``model.moments.parse_since`` has it; a span counts back from the run's end, or
            from now while it goes on.
        fold: One line for what several ranks say within seconds.
    """

    run: str
    where: Where = Where()
    ranks: RankSpans = ()
    host: str | None = None
    stream: str | None = None
    grep: str | None = None
    errors: bool = False
    since: str | None = None
    fold: bool = False
    follow: bool = False
    tail: int | None = None


@dataclass(frozen=True, slots=True)
class Why:
    """Say where every rank is right now."""

    run: str
    where: Where = Where()


@dataclass(frozen=True, slots=True)
class Replay:
    """Show a past run in the console, as it was at the moment ``at``; None is its end."""

    run: str
    at: str | None = None
    theme: str | None = None
    startup: bool | None = None


@dataclass(frozen=True, slots=True)
class Compare:
    """Lay runs side by side, next to the first of them."""

    runs: tuple[str, ...]
    json: bool = False


class ExportFormat(StrEnum):
    """What ``export`` writes."""

    JSONL = "jsonl"
    CSV = "csv"
    TENSORBOARD = "tensorboard"
    PROMETHEUS = "prometheus"


class ExportTable(StrEnum):
    """The tables of ``export --format csv``."""

    METRICS = "metrics"
    WINDOWS = "windows"
    RANK_METRICS = "rank_metrics"
    GPUS = "gpus"
    NODES = "nodes"
    RANKS = "ranks"
    PHASES = "phases"
    FINDINGS = "findings"
    LOGS = "logs"
    NUMBERS = "numbers"


@dataclass(frozen=True, slots=True)
class Export:
    """Write a run's events to a file or to stdout.

    Attributes:
        run: None stands for the hosts themselves, without a run; with Prometheus only.
        table: The one table of CSV that is wanted.
        follow: Go on with a run until it ends.
        listen: A loopback address and port at which Prometheus may ask.
        interval_seconds: Between two writings of a file for Prometheus.
    """

    run: str | None
    format: ExportFormat = ExportFormat.JSONL
    output: str | None = None
    table: ExportTable | None = None
    follow: bool = False
    listen: tuple[str, int] | None = None
    where: Where = Where()
    interval_seconds: float = 5.0

    @property
    def goes_on(self) -> bool:
        """Whether it lasts until the run ends or the operator leaves."""
        return self.follow or self.listen is not None


@dataclass(frozen=True, slots=True)
class ReportPage:
    """Write one run as a self-contained page."""

    run: str
    output: str
    where: Where = Where()
