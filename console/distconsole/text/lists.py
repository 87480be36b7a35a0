"""Runs and hosts as tables: ``runs``, ``show`` and ``top`` without a screen."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.model.run_summary import RunSummary
from distconsole.model.time_text import date_text
from distconsole.text.output import Output
from distconsole.text.tables import bytes_text, duration_text, number_text, table


def show_runs(output: Output, summaries: Sequence[RunSummary]) -> None:
    """Print one line a run."""
    if not summaries:
        output.say("no runs yet: 'distconsole run SCRIPT' makes one")
        return
    rows = [
        (
            summary.run,
            summary.name,
            summary.state,
            date_text(summary.started),
            duration_text(summary.seconds),
            str(summary.world_size),
            ",".join(summary.hosts),
            summary.script,
        )
        for summary in summaries
    ]
    header = ("run", "name", "state", "started", "time", "ranks", "hosts", "script")
    for line in table(header, rows, right=(4, 5)):
        output.data(line)


def show_summary(output: Output, summary: RunSummary) -> None:
    """Print one run's summary."""
    exit_code = "" if summary.exit_code is None else f" (exit code {summary.exit_code})"
    facts = [
        (
            "run",
            summary.run
            if summary.name in ("", summary.run)
            else f"{summary.run} ({summary.name})",
        ),
        ("state", f"{summary.state}{exit_code}"),
        ("script", summary.script),
        ("launcher", summary.launcher),
        ("ranks", f"{summary.world_size} on {', '.join(summary.hosts)}"),
        ("started", date_text(summary.started, "%Y-%m-%d %H:%M:%S")),
        ("time", duration_text(summary.seconds)),
        ("restarts", str(summary.restarts or "")),
        ("steps", "" if summary.steps is None else str(summary.steps)),
        ("samples/s", number_text(summary.samples_s, " (mean of the run)")),
        (
            "rank spread",
            ""
            if summary.step_ms_spread is None
            else f"slowest / fastest step time {summary.step_ms_spread:.3f}",
        ),
        *(
            (name, _metric(summary, name, value))
            for name, value in sorted(summary.metrics.items())
        ),
    ]
    for label, text in facts:
        if text:
            output.data(f"{label:<12} {text}")
    failure = summary.first_failure
    if failure is not None:
        output.data(f"{'failed first':<12} {failure.short_blame}")
        for line in failure.traceback.splitlines():
            output.data(f"    {line}")
    for finding in summary.findings:
        after = duration_text(max(0.0, finding.t - summary.started))
        label = output.paint_out.severity(finding.severity)
        output.data(f"{label} after {after}: {finding.summary}")
        if finding.hint:
            output.data(f"     {output.paint_out('hint:', 'cyan')} {finding.hint}")


def _metric(summary: RunSummary, name: str, value: float) -> str:
    """Return a metric's last value, with its best where that was another."""
    best = summary.best.get(name)
    return f"{value:.6g}" if best in (None, value) else f"{value:.6g} (best {best:.6g})"


def show_load(output: Output, nodes: Sequence[NodeSample], gpus: Sequence[GpuSample]) -> None:
    """Print one table of hosts and one of GPUs; what is unknown stays empty."""
    rows = [
        (
            node.host,
            number_text(node.cpu, "%"),
            number_text(node.load1),
            _share(node.mem_used, node.mem_total),
            bytes_text(node.net_rx_s),
            bytes_text(node.net_tx_s),
        )
        for node in nodes
    ]
    for line in table(
        ("host", "cpu", "load", "memory", "net in/s", "net out/s"), rows, right=(1, 2, 3, 4, 5)
    ):
        output.data(line)
    if gpus:
        output.data("")
        _show_gpus(output, gpus)


def _show_gpus(output: Output, gpus: Sequence[GpuSample]) -> None:
    rows = [
        (
            gpu.host,
            f"{gpu.gpu}" if gpu.mig is None else f"{gpu.gpu}/{gpu.mig}",
            number_text(gpu.util, "%"),
            _share(gpu.mem_used, gpu.mem_total),
            number_text(gpu.temp_c, "C"),
            number_text(gpu.power_w, "W"),
            number_text(gpu.sm_clock_mhz, "MHz"),
            ",".join(gpu.throttle),
            "" if gpu.rank is UNSET else str(gpu.rank),
            "; ".join(gpu.strangers),
        )
        for gpu in gpus
    ]
    header = (
        "host",
        "gpu",
        "util",
        "memory",
        "temp",
        "power",
        "clock",
        "throttle",
        "rank",
        "others",
    )
    for line in table(header, rows, right=(2, 3, 4, 5, 6)):
        output.data(line)


def _share(used: int | None, total: int | None) -> str:
    if used is None:
        return ""
    return bytes_text(used) if total is None else f"{bytes_text(used)}/{bytes_text(total)}"
