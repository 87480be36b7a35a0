"""A run for an OpenTelemetry collector, by OTLP over HTTP (an extra): its gauges, and its output and findings as logs.

Gauges are those of Prometheus (``formats.gauges``) under the names that OpenTelemetry's own translation turns
into the same: ``distconsole_gpu_power_watts`` is ``distconsole.gpu.power`` in W. Where they go, with which
headers, is as OpenTelemetry's variables say: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from distconsole.errors import UnavailableError
from distconsole.formats.curves import end_text
from distconsole.formats.gauges import run_page
from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import LogLine, RunEnded, RunEvents, RunFinding
from distconsole.runs.timeline import RunTimeline

POINTS_A_REQUEST = 5_000
LOGS_A_REQUEST = 500
MAX_UNSENT_LOGS, MAX_UNSENT_PAGES = 50_000, 60
"""Kept for a collector that takes none; the oldest go first, and are counted."""
UNITS = {
    "_samples_per_second": (".samples", "{sample}/s"),
    "_bytes_per_second": ("", "By/s"),
    "_timestamp_seconds": ("_timestamp", "s"),
    "_seconds": ("", "s"),
    "_bytes": ("", "By"),
    "_ratio": ("", "1"),
    "_celsius": ("", "Cel"),
    "_watts": ("", "W"),
    "_hertz": ("", "Hz"),
}
"""How the name of a gauge ends -> how it does there, and its unit (UCUM)."""
NAMES = {"distconsole_rank_step": "distconsole.rank.last_step"}
"""Those that would else be called as another gauge is, whose ending is its unit."""
ATTRIBUTES = {"host": "host.name"}
"""A label -> its name in the semantic conventions, if they have one."""
SCOPE = InstrumentationScope("distconsole", version("distconsole"))
SEVERITIES = {Severity.FAIL: SeverityNumber.ERROR, Severity.WARN: SeverityNumber.WARN}

Point = tuple[str, str, export.NumberDataPoint]
"""A gauge of Prometheus, its meaning, and a value."""


class OtlpRun:
    """Sends a run's events to a collector.

    Args:
        interval_seconds: Between two sendings of the gauges.
        clock: Gives UNIX seconds; None unless the run goes on.
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float] | None = None) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._every, self._clock = interval_seconds, clock
        self._timeline = RunTimeline()
        self._metrics = OTLPMetricExporter()
        self._logs = OTLPLogExporter()
        self._resource: Resource | None = None
        self._records: list[ReadableLogRecord] = []
        self._unsent: list[list[Point]] = []
        self._logs_due = LOGS_A_REQUEST
        self._left_out = 0
        self._sent_t = 0.0
        self._sent_points = self._sent_lines = 0

    def take(self, event: RunEvents) -> None:
        """Take an event; raises UnavailableError if it is time to send, and the collector does not take it."""
        if self._resource is None:
            self._sent_t = event.t
        if not isinstance(event, LogLine):
            self._timeline.apply(event)
        if self._resource is None:
            self._resource = _resource(self._timeline)
        record = _record(event)
        if record is not None:
            self._records.append(ReadableLogRecord(record, self._resource, SCOPE))
        if event.t - self._sent_t >= self._every:
            self._send_gauges(event.t)
        surplus = max(0, len(self._records) - MAX_UNSENT_LOGS)
        self._left_out += surplus
        del self._records[:surplus]
        if len(self._records) >= self._logs_due:
            self._send_logs()

    def flush(self) -> None:
        now = self._clock() if self._clock is not None else self._sent_t
        if now - self._sent_t >= self._every and self._resource is not None:
            self._send_gauges(now)
        self._send_logs()

    def close(self) -> str:
        try:
            self._send_logs()
        finally:
            if self._resource is not None:
                self._send_gauges(self._timeline.last_t or time.time())
        self.abandon()
        if self._left_out:
            raise UnavailableError(
                f"{count_text(self._left_out, 'log record or page of gauges', 'log records and pages of gauges')} left out"
            )
        values = count_text(self._sent_points, "value")
        return f"{values} and {count_text(self._sent_lines, 'log record')} sent to the collector"

    def abandon(self) -> None:
        self._metrics.shutdown()
        self._logs.shutdown()

    def _send_gauges(self, t: float) -> None:
        self._sent_t = t
        page = run_page(self._timeline, t)
        points = []
        for gauge, (meaning, values) in page.families.items():
            for labels, value in values.items():
                named = {ATTRIBUTES.get(name, name): of for name, of in labels if name != "run"}
                point = export.NumberDataPoint(named, 0, int(t * 1e9), value)
                points.append((gauge, meaning, point))
        self._unsent.append(points)
        if len(self._unsent) > MAX_UNSENT_PAGES:
            self._left_out += 1
            del self._unsent[0]
        while self._unsent:
            points = self._unsent[0][:POINTS_A_REQUEST]
            scope = export.ScopeMetrics(SCOPE, _metrics(points), "")
            data = export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])
            if self._metrics.export(data) is not export.MetricExportResult.SUCCESS:
                raise _refusal()
            del self._unsent[0][: len(points)]
            self._sent_points += len(points)
            if not self._unsent[0]:
                del self._unsent[0]

    def _send_logs(self) -> None:
        self._logs_due = len(self._records) + LOGS_A_REQUEST
        while records := self._records[:LOGS_A_REQUEST]:
            if self._logs.export(records) is not LogRecordExportResult.SUCCESS:
                raise _refusal()
            del self._records[: len(records)]
            self._sent_lines += len(records)
        self._logs_due = LOGS_A_REQUEST


def _refusal() -> UnavailableError:
    return UnavailableError(
        "the OpenTelemetry collector does not take what it is sent",
        "OTEL_EXPORTER_OTLP_ENDPOINT says where it is (http://localhost:4318 without)",
    )


def _resource(timeline: RunTimeline) -> Resource:
    about = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME", "distconsole"),
        "service.version": SCOPE.version or "",
        "service.instance.id": timeline.run,
        "distconsole.run.id": timeline.run,
        "distconsole.run.name": timeline.name,
    }
    if timeline.plan is not None:
        about["distconsole.launcher"] = timeline.plan.launcher
    return Resource.create(about)


def _metrics(points: list[Point]) -> list[export.Metric]:
    found = []
    for (gauge, meaning), of_it in groupby(points, itemgetter(0, 1)):
        name, unit = otel_name(gauge)
        gauges = export.Gauge([point for *_, point in of_it])
        found.append(export.Metric(name, meaning, unit, gauges))
    return found


def otel_name(gauge: str) -> tuple[str, str]:
    """Return the name and the unit in OpenTelemetry of what Prometheus calls ``gauge``."""
    if gauge in NAMES:
        return NAMES[gauge], ""
    product, of, what = gauge.split("_", 2)
    name = f"{product}.{of}.{what}"
    for ending, (there, its_unit) in UNITS.items():
        if gauge.endswith(ending):
            return name[: -len(ending)] + there, its_unit
    return name, ""


def _record(event: RunEvents) -> LogRecord | None:
    about: dict[str, str | int] = {}
    severity, name = SeverityNumber.INFO, "distconsole.end"
    match event:
        case LogLine():
            name, body = "distconsole.output", event.line
            about = {"host.name": event.host, "log.iostream": f"std{event.stream}"}
        case RunFinding():
            name, body = "distconsole.finding", event.summary
            severity = SEVERITIES.get(event.severity, severity)
            about = {"distconsole.check": event.check, "host.name": ",".join(event.hosts)}
        case RunEnded():
            body = end_text(event)
            severity = SeverityNumber.ERROR if event.exit_code else severity
        case _:
            return None
    rank = getattr(event, "rank", None)
    if isinstance(rank, int):
        about["rank"] = rank
    t_ns = int(event.t * 1e9)
    return LogRecord(
        timestamp=t_ns,
        observed_timestamp=t_ns,
        severity_number=severity,
        severity_text=severity.name,
        body=body,
        attributes=about,
        event_name=name,
    )
