"""A run, or the load of hosts, as gauges in Prometheus's text exposition format 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/
Labels are ``run``, ``host``, ``rank`` and ``gpu``; units are base units, as Prometheus's naming asks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from distconsole.model.events import HostStatus
from distconsole.model.findings import Severity
from distconsole.model.run_events import EndState, GpuSample, NodeSample, RankState
from distconsole.runs.figures import GPU_FIGURES, NODE_FIGURES, STEP_FIGURES, Figure
from distconsole.runs.pace import is_fresh
from distconsole.runs.present import Sight, own_ms_of, present
from distconsole.runs.rank_view import RankView
from distconsole.runs.timeline import RunTimeline

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL_CHARS = 200
MAX_LABELLED = 50_000
"""Values that one page holds; a rank that invents names must not fill the memory of who asks."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ODD_NUMBERS = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
MAX_METRIC_NAMES_A_RANK = 16
OWN_HELP = "Mean step, last window, without its waits for other ranks."

Labels = tuple[tuple[str, str], ...]
"""Names with their values."""


@dataclass(slots=True)
class GaugePage:
    """Families of gauges, each with its help, in order of their first value.

    A value that is unknown or NaN of nobody's making is left out; one that a rank reported as NaN or
    infinite is told as such, for that is what its loss is.
    """

    families: dict[str, tuple[str, dict[Labels, float]]] = field(default_factory=dict)
    """Name -> its help, and the values by their labels."""
    _count: int = 0

    def put(self, name: str, meaning: str, value: float | None, /, **labels: object) -> None:
        """Add a value; one with the same labels replaces it. None is left out."""
        if value is None:
            return
        assert _NAME.fullmatch(name), name
        _, values = self.families.setdefault(name, (meaning, {}))
        key = tuple((label, str(told)) for label, told in labels.items() if told != "")
        if key not in values:
            if self._count >= MAX_LABELLED:
                return
            self._count += 1
        values[key] = float(value)

    def text(self) -> str:
        """Return the page; it ends with a line end, as the format wants."""
        lines: list[str] = []
        for name, (meaning, values) in self.families.items():
            help_text = meaning.replace("\\", "\\\\").replace("\n", "\\n")
            lines.append(f"# HELP {name} {help_text}")
            lines.append(f"# TYPE {name} gauge")
            for labels, value in values.items():
                given = ",".join(f'{label}="{_escape(told)}"' for label, told in labels)
                number = repr(value)
                lines.append(
                    f"{name}{given and f'{{{given}}}'} {_ODD_NUMBERS.get(number, number)}"
                )
        return "\n".join(lines) + "\n" if lines else ""


def run_page(timeline: RunTimeline, now: float) -> GaugePage:
    """Return the gauges of a run at ``now`` (UNIX seconds).

    While it goes on, what is not measured now is left out; of one that has ended the last is told,
    beside when that was.
    """
    page = GaugePage()
    run, plan, end = timeline.run, timeline.plan, timeline.end

    def put(name: str, meaning: str, value: float | None, /, **labels: str) -> None:
        page.put(f"distconsole_run_{name}", meaning, value, run=run, **labels)

    of_plan = {"launcher": plan.launcher, "script": plan.script} if plan else {}
    put("info", "What the run is; always 1.", 1, name=timeline.name, **of_plan)
    for state in ("running", *EndState):
        known = end.state if end else "running"
        put("state", "1 for the run's state.", known == state, state=state)
    put("ranks", "Ranks of the run.", timeline.world)
    put("started_timestamp_seconds", "Its begin.", timeline.started)
    put("last_event_timestamp_seconds", "Its newest event.", timeline.last_t)
    put("exit_code", "How it ended.", end.exit_code if end else None)
    restarts = timeline.restart.restart if timeline.restart else 0
    put("restarts", "Times its ranks were started anew.", restarts)
    figures = present(timeline, now)
    put("samples_per_second", "Sum over the ranks.", figures.samples_s if end is None else None)
    for name, metric in sorted(timeline.metric_last.items()):
        for suffix, value in (("", metric.value), ("_min", metric.min), ("_max", metric.max)):
            put(f"metric{suffix}", "As reduced over the ranks.", value, name=name)
        put("metric_step", "The step it is of.", metric.step, name=name)
    found = Counter(finding.severity for finding in timeline.findings)
    for severity in Severity:
        put("findings", "Findings so far.", found[severity], severity=severity.value)
    for number, view in sorted(timeline.ranks.items()):
        sight = figures.sight(number)
        _rank(page, run, view, own_ms_of(view, figures.waits, sight), sight)
    _run_load(page, timeline, now)
    return page


def _run_load(page: GaugePage, timeline: RunTimeline, now: float) -> None:
    run, nodes, gpus = timeline.run, timeline.nodes.values(), timeline.gpus.values()
    told = {node.host: node.t for node in nodes}
    told |= {gpu.host: max(gpu.t, told.get(gpu.host, gpu.t)) for gpu in gpus}
    name = "distconsole_host_last_sample_timestamp_seconds"
    for host, t in sorted(told.items()):
        page.put(name, "When.", t, run=run, host=host)
    if timeline.end is None:
        told = {host: t for host, t in told.items() if is_fresh(t, now)}
    _load(
        page,
        run,
        (node for node in nodes if node.host in told),
        (gpu for gpu in gpus if gpu.host in told),
    )


def hosts_page(
    hosts: Iterable[HostStatus], nodes: Iterable[NodeSample], gpus: Iterable[GpuSample]
) -> GaugePage:
    """Return the load of hosts; of one that does not answer only that."""
    page = GaugePage()
    for status in sorted(hosts, key=lambda each: each.host):
        page.put("distconsole_host_up", "1 if it answers.", status.reachable, host=status.host)
    _load(page, "", nodes, gpus)
    return page


def _rank(page: GaugePage, run: str, view: RankView, own_ms: float | None, sight: Sight) -> None:
    labels = {"run": run, "host": view.host, "rank": view.rank}
    if view.gpu is not None:
        labels["gpu"] = view.gpu
    for state in RankState:
        held = view.state is state
        page.put("distconsole_rank_state", "1 for its state.", held, **labels, state=state)
    page.put("distconsole_rank_step", "The last step it did.", view.step, **labels)
    page.put("distconsole_rank_last_window_timestamp_seconds", "When.", view.last_seen, **labels)
    rate = view.samples_s
    if sight is Sight.MEASURED:
        _figures(page, "distconsole_rank", STEP_FIGURES, view, labels)
        own_seconds = None if own_ms is None else own_ms / 1000
        page.put("distconsole_rank_own_seconds", OWN_HELP, own_seconds, **labels)
    else:
        rate = 0.0 if rate is not None and sight is Sight.IDLE else None
    page.put("distconsole_rank_samples_per_second", "Its rate.", rate, **labels)
    for name, value in list(view.metrics.items())[:MAX_METRIC_NAMES_A_RANK]:
        page.put("distconsole_rank_metric", "As it reported it.", value, **labels, name=name)


def _load(
    page: GaugePage, run: str, nodes: Iterable[NodeSample], gpus: Iterable[GpuSample]
) -> None:
    for node in sorted(nodes, key=lambda each: each.host):
        labels: dict[str, Any] = {"run": run, "host": node.host}
        _figures(page, "distconsole_node", NODE_FIGURES, node, labels)
    for gpu in sorted(gpus, key=lambda each: (each.host, each.gpu, each.mig or "")):
        labels = {"run": run, "host": gpu.host, "gpu": gpu.gpu, "mig": gpu.mig or ""}
        labels["rank"] = "" if gpu.rank is UNSET else gpu.rank
        _figures(page, "distconsole_gpu", GPU_FIGURES, gpu, labels)


def _figures(
    page: GaugePage,
    prefix: str,
    figures: tuple[Figure, ...],
    source: object,
    labels: dict[str, Any],
) -> None:
    for figure in figures:
        if figure.gauge:
            page.put(f"{prefix}_{figure.gauge}", figure.about, figure.base_value(source), **labels)


def _escape(value: str) -> str:
    if len(value) > MAX_LABEL_CHARS:
        value = value[: MAX_LABEL_CHARS - 1] + "…"
    value = value.encode("utf-8", "replace").decode()
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")
