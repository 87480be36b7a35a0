"""``bench`` as text: progress to stderr; tables, a chart, and problems to stdout."""

from __future__ import annotations

from collections.abc import Callable

from distconsole.formats.figures import number_text
from distconsole.model.events import (
    BenchEnded,
    BenchProgress,
    BenchResult,
    BenchRun,
    CollectivesMeasured,
    Spread,
)
from distconsole.model.findings import Severity
from distconsole.model.names import count_text, join_some
from distconsole.model.run_events import EndState
from distconsole.model.time_text import duration_text
from distconsole.text.check import show_finding, show_tables
from distconsole.text.output import Output
from distconsole.text.tables import bar_text, table

CHART_CELLS = 40
MAX_NAMED = 4

HEADER = (
    *("strategy", "ranks", "time, s", "samples/s", "speed-up"),
    *("efficiency, %", "loss", "accuracy, %", "GPU, %"),
)


def show_bench_progress(output: Output, progress: BenchProgress) -> None:
    step = "" if progress.step is None else f", step {progress.step}"
    output.status(f"round {progress.round} of {progress.rounds}: {progress.strategy}{step}")


def show_bench_run(output: Output, run: BenchRun) -> None:
    said = f"round {run.round} of {run.rounds}: {run.strategy}"
    if run.state is EndState.SUCCEEDED:
        speed = number_text(run.samples_s, " samples/s")
        output.say(f"{said}  {speed}  {duration_text(run.seconds)}")
        return
    if run.state is EndState.STOPPED:
        output.say(f"{said}  stopped")
        return
    hint = f" (distconsole logs {run.run})" if run.run else ""
    mark = output.paint_err.severity(Severity.FAIL)
    output.say(f"{mark} {said} failed: {run.error}{hint}")


def show_bench(output: Output, ended: BenchEnded) -> None:
    """Print the table and the chart; ``median [lowest-highest]`` where rounds differ."""
    output.status("")
    done = [each for each in ended.strategies if each.rounds]
    if done:
        _table(output, ended, done)
        _chart(output, done)
    for skipped in ended.skipped:
        output.data(f"{skipped.strategy}: cannot run here: {skipped.reason}")
    for each in ended.strategies:
        if each.error and ended.state is not EndState.STOPPED:
            output.data(f"{each.strategy}: failed: {each.error}")
    if ended.state is EndState.STOPPED:
        output.say("stopped: the figures are those of the runs that had ended")


def _table(output: Output, ended: BenchEnded, done: list[BenchResult]) -> None:
    output.data(
        f"ResNet-18 (width {ended.width}), {ended.images} generated images, {ended.epochs} epochs, "
        f"{ended.batch} a device, {ended.precision}; hosts {', '.join(ended.hosts)}"
    )
    head, *rows = table(HEADER, [_row(each) for each in done], range(1, len(HEADER)))
    output.data(output.paint_out(head, "bold"))
    for row in rows:
        output.data(row)


def _row(each: BenchResult) -> tuple[str, ...]:
    return (
        each.strategy,
        str(each.ranks),
        _spread(each.seconds, number_text),
        _spread(each.samples_s, number_text),
        _spread(each.speedup, number_text),
        _spread(each.efficiency, "{:.0%}".format).replace("%", ""),
        _spread(each.loss, "{:.4f}".format),
        _spread(each.accuracy, "{:.2%}".format).replace("%", ""),
        _spread(each.gpu_util, "{:.0f}".format),
    )


def _chart(output: Output, done: list[BenchResult]) -> None:
    speeds = [(each.strategy, each.samples_s.median) for each in done if each.samples_s]
    if not speeds:
        return
    most = max(speed for _, speed in speeds) or 1.0
    names = max(len(name) for name, _ in speeds)
    output.data("")
    output.data(output.paint_out("samples/s", "bold"))
    for name, speed in speeds:
        bar = bar_text(speed / most, CHART_CELLS, plain=not output.paint_out.enabled)
        output.data(f"{name:{names}}  {output.paint_out(bar, 'cyan')} {number_text(speed)}")
    output.data("")


def _spread(figure: Spread | None, text: Callable[[float], str]) -> str:
    if figure is None:
        return ""
    middle, low, high = text(figure.median), text(figure.lowest), text(figure.highest)
    return middle if low == high else f"{middle} [{low}-{high}]"


def show_collectives(output: Output, measured: CollectivesMeasured) -> None:
    output.status("")
    if measured.collectives:
        output.data(
            f"{measured.launcher}/{measured.backend}, {count_text(measured.size, 'rank')} on "
            f"{', '.join(measured.hosts)}; busbw by nccl-tests' formulae"
        )
    show_tables(output, measured.collectives)
    output.data("")
    _show_exactness(output, measured)
    if measured.left_out:
        what = "no time for" if measured.collectives else "not measured:"
        output.data(f"{what} {join_some(measured.left_out, MAX_NAMED, '; ')}")
    for finding in measured.findings:
        show_finding(output, finding)


def _show_exactness(output: Output, measured: CollectivesMeasured) -> None:
    exact: dict[str, list[str]] = {}
    lacking: dict[str, list[str]] = {}
    for each in measured.verified:
        if each.unsupported:
            lacking.setdefault(each.unsupported, []).append(f"{each.op} {each.dtype}")
        else:
            verdict = "exact" if each.correct else "WRONG"
            exact.setdefault(f"{each.dtype} ({each.elements} values): {verdict}", []).append(
                each.op
            )
    for what, ops in exact.items():
        output.data(f"{what}: {', '.join(dict.fromkeys(ops))}")
    for why, cases in lacking.items():
        output.data(f"not there: {join_some(list(dict.fromkeys(cases)), MAX_NAMED)} ({why})")
