"""Runs, hosts, GPUs and ranks as tables for a shell; the screen shows the same columns of hosts and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType

from distconsole.expression import Value, ValueKind
from distconsole.formats.figures import bytes_text, figure_text, number_text
from distconsole.model.events import ConditionJudged, RankListed
from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.model.run_summary import RunSummary
from distconsole.model.time_text import date_text, duration_text
from distconsole.runs.conditions.rank_fields import RANK_FIELDS
from distconsole.runs.figures import GPU, NODE, Figure, best_word
from distconsole.text.output import Output
from distconsole.text.tables import Column, show_columns, show_table


def share_text(used: int | None, total: int | None) -> str:
    """Return bytes of all bytes, such as ``1.5G/16.0G``."""
    if used is None:
        return ""
    return bytes_text(used) if not total else f"{bytes_text(used)}/{bytes_text(total)}"


def _nvlink(gpu: GpuSample) -> str:
    both = (gpu.nvlink_rx_s, gpu.nvlink_tx_s)
    return "" if None in both else bytes_text(sum(each or 0.0 for each in both))


def _known(value: Value | UnsetType) -> str:
    return "" if value is None or value is UNSET else str(value)


def gpu_number(gpu: GpuSample) -> str:
    return f"{gpu.gpu}" if gpu.mig is None else f"{gpu.gpu}/{gpu.mig}"


def figure_column(figure: Figure, width: int, need: int) -> Column[Any]:
    """Return the column of a figure in a table of samples, by which it can be sorted."""
    cell = partial(figure_text, figure)
    return Column(figure.heading, width, cell, need, True, figure.name)


NODE_COLUMNS: list[Column[NodeSample]] = [
    figure_column(NODE["cpu"], 5, 0),
    figure_column(NODE["load"], 6, 3),
    Column("memory", 13, lambda node: share_text(node.mem_used, node.mem_total), 1, True, "ram"),
    figure_column(NODE["net.in"], 9, 4),
    figure_column(NODE["net.out"], 8, 4),
    figure_column(NODE["disk.write"], 8, 6),
]
GPU_COLUMNS: list[Column[GpuSample]] = [
    Column("name", 21, lambda gpu: gpu.name, 6, sort="name"),
    figure_column(GPU["util"], 5, 0),
    Column("memory", 13, lambda gpu: share_text(gpu.mem_used, gpu.mem_total), 1, True, "mem"),
    figure_column(GPU["temp"], 5, 2),
    figure_column(GPU["power"], 6, 2),
    figure_column(GPU["clock"], 5, 4),
    Column("nvlink/s", 8, _nvlink, 7, True, "nvlink"),
    Column("ecc", 4, lambda gpu: _known(GPU["ecc"].value(gpu)), 5, True, "ecc"),
    Column("rank", 4, lambda gpu: _known(gpu.rank), 1, True, "rank"),
]
"""Columns of hosts and GPUs in a shell and on the screen, beside their names."""


def state_text(run: RunSummary) -> str:
    return (
        f"{run.state} ({run.exit_code})" if run.state == "failed" and run.exit_code else run.state
    )


RUN_COLUMNS: list[Column[RunSummary]] = [
    Column("run", 24, lambda run: run.run),
    Column("name", 14, lambda run: run.name),
    Column("state", 12, state_text),
    Column("started", 16, lambda run: date_text(run.started)),
    Column("time", 11, lambda run: duration_text(run.seconds), right=True),
    Column("ranks", 5, lambda run: str(run.world_size), right=True),
    Column("hosts", 5, lambda run: ",".join(run.hosts)),
    Column("script", 16, lambda run: run.script),
]


def show_load(output: Output, nodes: Sequence[NodeSample], gpus: Sequence[GpuSample]) -> None:
    host: Column[Any] = Column("host", 14, lambda sample: sample.host)
    show_columns(output, [host, *NODE_COLUMNS], nodes)
    if gpus:
        output.data("")
        others: list[Column[GpuSample]] = [
            Column("throttle", 8, lambda gpu: ",".join(gpu.throttle)),
            Column("others", 12, lambda gpu: "; ".join(gpu.strangers)),
        ]
        number: Column[GpuSample] = Column("gpu", 5, gpu_number)
        show_columns(output, [host, number, *GPU_COLUMNS, *others], gpus)


def show_summary(output: Output, summary: RunSummary) -> None:
    exit_code = "" if summary.exit_code is None else f" (exit code {summary.exit_code})"
    unknown = summary.state == "unknown"
    asked = f" (its hosts tell it: distconsole attach {summary.run})" if unknown else ""
    name = "" if summary.name in ("", summary.run) else f" ({summary.name})"
    spread, of = summary.own_ms_spread, "own"
    if spread is None:
        spread, of = summary.step_ms_spread, "step"
    facts = [
        ("run", f"{summary.run}{name}"),
        ("state", f"{summary.state}{exit_code or asked}"),
        ("script", summary.script),
        ("launcher", summary.launcher),
        ("ranks", f"{summary.world_size} on {', '.join(summary.hosts)}"),
        ("started", date_text(summary.started, "%Y-%m-%d %H:%M:%S")),
        ("time", duration_text(summary.seconds)),
        ("restarts", str(summary.restarts or "")),
        (summary.unit or "steps", "" if summary.steps is None else str(summary.steps)),
        ("samples/s", number_text(summary.samples_s, " (mean of the run)")),
        ("rank spread", f"slowest / fastest {of} time {spread:.3f}" if spread is not None else ""),
    ]
    for metric, value in sorted(summary.metrics.items()):
        best = summary.best.get(metric)
        also = "" if best in (None, value) else f" ({best_word(metric)} {best:.6g})"
        facts.append((metric, f"{value:.6g}{also}"))
    failure = summary.first_failure
    if failure is not None:
        facts.append(("failed first", failure.short_blame))
    for label, text in facts:
        if text:
            output.data(f"{label:<12} {text}")
    for line in failure.traceback.splitlines() if failure is not None else ():
        output.data(f"    {line}")
    for finding in summary.findings:
        after = duration_text(max(0.0, finding.t - summary.started))
        label = output.paint_out.severity(finding.severity)
        output.data(f"{label} after {after}: {finding.summary}")
        if finding.hint:
            output.data(f"     {output.paint_out('hint:', 'cyan')} {finding.hint}")


def show_ranks(output: Output, ranks: Sequence[RankListed]) -> None:
    names = [name for name in ranks[0].shown if name in ranks[0].fields]
    rows = [[value_text(name, each.fields.get(name)) for name in names] for each in ranks]
    kinds = [RANK_FIELDS.find(name) for name in names]
    right = [at for at, kind in enumerate(kinds) if kind is None or kind.kind is ValueKind.NUMBER]
    show_table(output, names, rows, right)


def count_matches(judged: ConditionJudged) -> str:
    unknown = f", {judged.unknown} unknown" if judged.unknown else ""
    return f"{judged.condition}: {judged.matched or 'none'} of {judged.asked} {judged.of}{unknown}"


def value_text(name: str, value: Value) -> str:
    """Return the value of a rank's field, with its unit."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return ",".join(value)
    field = RANK_FIELDS.find(name)
    unit = "" if field is None else field.unit
    if unit == "B":
        return bytes_text(value)
    if isinstance(value, int) and not unit:
        return str(value)
    return f"{number_text(value)}{'' if unit == '%' else ' ' if unit else ''}{unit}"
