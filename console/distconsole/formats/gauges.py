"""A run, or the load of hosts, as gauges for Prometheus.

Labels are ``run``, ``host``, ``rank`` and ``gpu``; units are base units, as Prometheus's naming asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from distconsole.formats.exposition import Page
from distconsole.model.events import HostStatus
from distconsole.model.findings import Severity
from distconsole.model.run_events import EndState, GpuSample, NodeSample, RankState
from distconsole.runs.figures import GPU_FIGURES, NODE_FIGURES, STEP_FIGURES, Figure
from distconsole.runs.pace import is_fresh
from distconsole.runs.present import present
from distconsole.runs.rank_view import RankView
from distconsole.runs.timeline import RunTimeline

MAX_METRIC_NAMES_A_RANK = 16


def run_page(timeline: RunTimeline, now: float) -> Page:
    """Return what a run looks like at ``now`` (UNIX seconds).

    While it goes on, what is not measured now is left out; of one that has ended the last is told,
    beside when that was.
    """
    page = Page()
    run = timeline.run
    plan, end = timeline.plan, timeline.end
    page.put(
        "distconsole_run_info",
        "What the run is; always 1.",
        1,
        run=run,
        name=timeline.name,
        launcher=plan.launcher if plan else "",
        script=plan.script if plan else "",
    )
    for state in ("running", *EndState):
        known = end.state if end else "running"
        page.put(
            "distconsole_run_state", "1 for the run's state.", known == state, run=run, state=state
        )
    page.put("distconsole_run_ranks", "Ranks of the run.", timeline.world, run=run)
    page.put("distconsole_run_started_timestamp_seconds", "Its begin.", timeline.started, run=run)
    page.put(
        "distconsole_run_last_event_timestamp_seconds",
        "Its newest event.",
        timeline.last_t,
        run=run,
    )
    page.put("distconsole_run_exit_code", "How it ended.", end.exit_code if end else None, run=run)
    restarts = timeline.restart.restart if timeline.restart else 0
    page.put("distconsole_run_restarts", "Times its ranks were started anew.", restarts, run=run)
    figures = present(timeline, now)
    rate = figures.samples_s if end is None else None
    page.put("distconsole_run_samples_per_second", "Sum over the ranks.", rate, run=run)
    _run_metrics(page, timeline)
    found = Counter(finding.severity for finding in timeline.findings)
    for severity in Severity:
        page.put(
            "distconsole_run_findings",
            "Findings so far.",
            found[severity],
            run=run,
            severity=severity.value,
        )
    at_work = {view.rank for view in figures.at_work}
    for number, view in sorted(timeline.ranks.items()):
        _rank(page, run, view, measured=number in at_work)
    told = {node.host: node.t for node in timeline.nodes.values()}
    told |= {gpu.host: max(gpu.t, told.get(gpu.host, gpu.t)) for gpu in timeline.gpus.values()}
    for host, t in sorted(told.items()):
        labels = {"run": run, "host": host}
        page.put("distconsole_host_last_sample_timestamp_seconds", "When.", t, **labels)
    if end is None:
        told = {host: t for host, t in told.items() if is_fresh(t, now)}
    _load(
        page,
        run,
        (node for node in timeline.nodes.values() if node.host in told),
        (gpu for gpu in timeline.gpus.values() if gpu.host in told),
    )
    return page


def hosts_page(
    hosts: Iterable[HostStatus], nodes: Iterable[NodeSample], gpus: Iterable[GpuSample]
) -> Page:
    """Return the load of hosts; of one that does not answer only that."""
    page = Page()
    for status in sorted(hosts, key=lambda each: each.host):
        page.put("distconsole_host_up", "1 if it answers.", status.reachable, host=status.host)
    _load(page, "", nodes, gpus)
    return page


def _run_metrics(page: Page, timeline: RunTimeline) -> None:
    for name, metric in sorted(timeline.metric_last.items()):
        labels = {"run": timeline.run, "name": name}
        reduced = (("", metric.value), ("_min", metric.min), ("_max", metric.max))
        for suffix, value in reduced:
            page.put(
                f"distconsole_run_metric{suffix}", "As reduced over the ranks.", value, **labels
            )
        page.put("distconsole_run_metric_step", "The step it is of.", metric.step, **labels)


def _rank(page: Page, run: str, view: RankView, *, measured: bool) -> None:
    labels = {"run": run, "host": view.host, "rank": view.rank}
    if view.gpu is not None:
        labels["gpu"] = view.gpu
    for state in RankState:
        page.put(
            "distconsole_rank_state",
            "1 for its state.",
            view.state is state,
            **labels,
            state=state,
        )
    page.put("distconsole_rank_step", "The last step it did.", view.step, **labels)
    page.put("distconsole_rank_last_window_timestamp_seconds", "When.", view.last_seen, **labels)
    if measured:
        _figures(page, "distconsole_rank", STEP_FIGURES, view, labels)
        page.put("distconsole_rank_samples_per_second", "Its rate.", view.samples_s, **labels)
    for name, value in list(view.metrics.items())[:MAX_METRIC_NAMES_A_RANK]:
        page.put("distconsole_rank_metric", "As it reported it.", value, **labels, name=name)


def _load(page: Page, run: str, nodes: Iterable[NodeSample], gpus: Iterable[GpuSample]) -> None:
    for node in sorted(nodes, key=lambda each: each.host):
        labels: dict[str, Any] = {"run": run, "host": node.host}
        _figures(page, "distconsole_node", NODE_FIGURES, node, labels)
    for gpu in sorted(gpus, key=lambda each: (each.host, each.gpu, each.mig or "")):
        labels = {"run": run, "host": gpu.host, "gpu": gpu.gpu, "mig": gpu.mig or ""}
        labels["rank"] = "" if gpu.rank is UNSET else gpu.rank
        _figures(page, "distconsole_gpu", GPU_FIGURES, gpu, labels)


def _figures(
    page: Page, prefix: str, figures: tuple[Figure, ...], source: object, labels: dict[str, Any]
) -> None:
    for figure in figures:
        if figure.gauge:
            page.put(f"{prefix}_{figure.gauge}", figure.about, figure.base_value(source), **labels)
