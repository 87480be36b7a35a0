"""``bench strategies`` as lines: how it goes to stderr, the table and a chart to stdout."""

from __future__ import annotations

from collections.abc import Callable

from distconsole.model.events import BenchEnded, BenchProgress, BenchResult, BenchRun, Spread
from distconsole.model.findings import Severity
from distconsole.model.run_events import EndState
from distconsole.text.output import Output
from distconsole.text.tables import duration_text, number_text, table

CHART_CELLS = 40
EIGHTHS = " ▏▎▍▌▋▊▉█"

HEADER = (
    *("strategy", "ranks", "time, s", "samples/s", "speed-up"),
    *("efficiency, %", "loss", "accuracy, %", "GPU, %"),
)


def show_bench_progress(output: Output, progress: BenchProgress) -> None:
    """Show which run goes on, on a terminal."""
    step = "" if progress.step is None else f", step {progress.step}"
    output.status(f"round {progress.round} of {progress.rounds}: {progress.strategy}{step}")


def show_bench_run(output: Output, run: BenchRun) -> None:
    """Tell how a run went."""
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
    right = tuple(range(1, len(HEADER)))
    head, *rows = table(HEADER, [_row(each) for each in done], right)
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
        _spread(each.efficiency, _percent),
        _spread(each.loss, "{:.4f}".format),
        _spread(each.accuracy, "{:.2%}".format).replace("%", ""),
        _spread(each.gpu_util, "{:.0f}".format),
    )


def _chart(output: Output, done: list[BenchResult]) -> None:
    """Draw the samples a second, each bar against the longest."""
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


def bar_text(share: float, cells: int, *, plain: bool) -> str:
    """Return a bar of ``share`` (0 to 1) of ``cells``: to an eighth of a cell, or in number signs."""
    if plain:
        return "#" * round(share * cells)
    whole, rest = divmod(round(share * cells * 8), 8)
    return "█" * whole + (EIGHTHS[rest] if rest else "")


def _spread(figure: Spread | None, text: Callable[[float], str]) -> str:
    if figure is None:
        return ""
    middle, low, high = text(figure.median), text(figure.lowest), text(figure.highest)
    return middle if low == high else f"{middle} [{low}-{high}]"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"
