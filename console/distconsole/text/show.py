"""Events of one request as text or as JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from distconsole.formats.figures import number_text
from distconsole.model import events
from distconsole.model import requests as ask
from distconsole.model.findings import Severity
from distconsole.model.names import count_text, join_some
from distconsole.model.run_events import EndState, GpuKey, GpuSample, LogLine, NodeSample, RunEvent
from distconsole.model.run_summary import RunSummary
from distconsole.model.time_text import duration_text
from distconsole.model.verbs import verb_of
from distconsole.text.check import (
    HOW_TO_SEE_MORE,
    show_finding,
    show_progress,
    show_report,
    show_rounds,
    show_tables,
)
from distconsole.text.compare import show_comparison
from distconsole.text.lists import RUN_COLUMNS, count_matches, show_load, show_ranks, show_summary
from distconsole.text.output import Output
from distconsole.text.run import RunText
from distconsole.text.tables import bar_text, show_columns, table
from distconsole.text.why import show_diagnosis

WITH_A_RUN = (
    ("distconsole replay last", "see the run again, at any moment"),
    ("distconsole report last -o demo.html", "the run as one page for a browser"),
    ("distconsole check --hosts HOST1,HOST2", "check your own hosts"),
)
WITHOUT_A_RUN = (
    ("distconsole demo", "the whole demo"),
    ("distconsole check --hosts HOST1,HOST2", "check your own hosts"),
    ("distconsole run train.py", "run your script, on this machine"),
)


class Printer(Protocol):
    """Takes the events of one request in order."""

    def event(self, event: events.Event) -> None:
        """Show one event."""

    def finish(self) -> None:
        """The request is answered."""


def show_for(request: ask.Request, output: Output, *, on_screen: bool = False) -> Printer:
    """Return what shows the events of ``request``; ``on_screen`` keys lead to the rest."""
    if getattr(request, "json", False):
        return JsonShow(output)
    match verb_of(request).prints:
        case "load":
            return LoadShow(output)
        case "logs":
            return LogShow(output)
        case prints:
            watchable = (
                not on_screen
                and isinstance(request, ask.Run | ask.Rerun)
                and not request.detach
                and not getattr(request, "dry_run", False)
            )
            details = prints == "details"
            return TextShow(output, details=details, on_screen=on_screen, watchable=watchable)


class JsonShow:
    """Every event that is data as one JSON line; narration still goes to stderr."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._encode = msgspec.json.Encoder().encode

    def event(self, event: events.Event) -> None:
        match event:
            case events.ConditionJudged():
                self._output.say(count_matches(event))
            case events.Narration() | events.DemoStep() | events.DemoEnded():
                PRINTERS[type(event)](self._output, event)
            case events.TextMade():
                self._output.data(event.text)
            case (
                events.CheckProgress()
                | events.CheckJudged()
                | events.PairProgress()
                | events.FindingMade()
                | events.HostStatus()
                | events.BenchProgress()
                | events.LaunchKept()
                | events.LaunchersJudged()
                | events.ScriptSought()
            ):
                pass
            case _:
                self._output.data(self._encode(_data_of(event)).decode())

    def finish(self) -> None:
        self._output.close()


def _data_of(event: events.Event) -> object:
    match event:
        case events.CheckEnded():
            return event.report
        case events.RunListed() | events.RunShown():
            return event.summary
        case events.RunsCompared():
            return event.comparison
        case events.RankListed():
            return {"run": event.run, **event.fields}
        case _:
            return event


class TextShow:
    """Text for a person at a shell; lists are held until they are whole."""

    def __init__(
        self,
        output: Output,
        *,
        details: bool = False,
        on_screen: bool = False,
        watchable: bool = False,
    ) -> None:
        self._output = output
        self._details = details
        self._on_screen = on_screen
        self._judged: events.ConditionJudged | None = None
        self._run = RunText(output, watchable=watchable)
        self._listed: list[RunSummary] = []
        self._ranks: list[events.RankListed] = []

    def event(self, event: events.Event) -> None:
        if printer := PRINTERS.get(type(event)):
            printer(self._output, event)
            return
        match event:
            case RunEvent():
                self._run.show(event)
            case events.CheckEnded():
                show_report(self._output, event.report, details=self._details)
                said = any(each.severity is not Severity.OK for each in event.report.findings)
                if said and not (self._details or self._on_screen):
                    self._output.say(HOW_TO_SEE_MORE)
            case events.RunListed():
                self._listed.append(event.summary)
            case events.RankListed():
                self._ranks.append(event)
            case events.ConditionJudged():
                self._judged = event
            case _:
                pass  # for the screen alone

    def finish(self) -> None:
        if self._listed:
            show_columns(self._output, RUN_COLUMNS, self._listed)
        if self._ranks:
            show_ranks(self._output, self._ranks)
        if self._judged is not None:
            self._output.say(count_matches(self._judged))
        self._output.close()


class LoadShow(TextShow):
    """``top`` without a screen: a table whenever every host has sent a new sample."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._nodes: dict[str, NodeSample] = {}
        self._gpus: dict[GpuKey, GpuSample] = {}

    def event(self, event: events.Event) -> None:
        match event:
            case NodeSample():
                if event.host in self._nodes:
                    self._print()
                self._nodes[event.host] = event
            case GpuSample():
                self._gpus[event.key] = event
            case _:
                super().event(event)

    def finish(self) -> None:
        if self._nodes or self._gpus:
            self._print()
        super().finish()

    def _print(self) -> None:
        show_load(self._output, list(self._nodes.values()), list(self._gpus.values()))
        self._nodes.clear()
        self._gpus.clear()


class LogShow(TextShow):
    """``logs``: every line is data, whichever stream it was printed to; bars live in the status."""

    def event(self, event: events.Event) -> None:
        match event:
            case LogLine():
                self._run.log(event, err=False)
            case events.Narration() | events.TextMade():
                super().event(event)
            case _:
                pass


def narrate(output: Output, narration: events.Narration) -> None:
    if narration.severity in (Severity.WARN, Severity.FAIL):
        output.say(f"{output.paint_err.severity(narration.severity)} {narration.text}")
    else:
        output.say(narration.text)


def _show_host(output: Output, status: events.HostStatus) -> None:
    if status.reachable:
        return
    output.say(f"{output.paint_err.severity(Severity.FAIL)} {status.host}: {status.detail}")
    if status.hint:
        output.say(f"     {output.paint_err('hint:', 'cyan')} {status.hint}")


def demo_lines(event: events.DemoStep | events.DemoEnded) -> list[str]:
    """Return the things to look at in this part; at the end the leftovers, and further commands."""
    if isinstance(event, events.DemoStep):
        return [f"{event.number} of {event.of} \N{MIDDLE DOT} {event.title}: look at {event.look}"]
    kept = f"; the run {event.run} is kept" if event.run else ""
    tries = WITH_A_RUN if event.run else WITHOUT_A_RUN
    width = max(len(command) for command, _ in tries)
    torch = "distconsole demo --torch trains a real network"
    if event.torch_lacks:
        torch += f"; it needs {', '.join(event.torch_lacks)}: pip install 'distconsole[training]'"
    return [
        f"the demo is over: its nodes, their processes and their folder are gone{kept}",
        "try next:",
        *(f"    {command:<{width}}  {what}" for command, what in tries),
        torch,
    ]


def _show_demo(output: Output, event: events.DemoStep | events.DemoEnded) -> None:
    title, *rest = demo_lines(event)
    for line in (output.paint_err(title, "bold"), *rest):
        output.say(line)


CHART_CELLS = 40
MAX_NAMED = 4

HEADER = (
    *("strategy", "ranks", "time, s", "samples/s", "speed-up"),
    *("efficiency, %", "loss", "accuracy, %", "GPU, %"),
)


def show_bench_progress(output: Output, progress: events.BenchProgress) -> None:
    step = "" if progress.step is None else f", step {progress.step}"
    output.status(f"round {progress.round} of {progress.rounds}: {progress.strategy}{step}")


def show_bench_run(output: Output, run: events.BenchRun) -> None:
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


def show_bench(output: Output, ended: events.BenchEnded) -> None:
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


def _table(output: Output, ended: events.BenchEnded, done: list[events.BenchResult]) -> None:
    output.data(
        f"ResNet-18 (width {ended.width}), {ended.images} generated images, {ended.epochs} epochs, "
        f"{ended.batch} a device, {ended.precision}; hosts {', '.join(ended.hosts)}"
    )
    head, *rows = table(HEADER, [_row(each) for each in done], range(1, len(HEADER)))
    output.data(output.paint_out(head, "bold"))
    for row in rows:
        output.data(row)


def _row(each: events.BenchResult) -> tuple[str, ...]:
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


def _chart(output: Output, done: list[events.BenchResult]) -> None:
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


def _spread(figure: events.Spread | None, text: Callable[[float], str]) -> str:
    if figure is None:
        return ""
    middle, low, high = text(figure.median), text(figure.lowest), text(figure.highest)
    return middle if low == high else f"{middle} [{low}-{high}]"


def show_collectives(output: Output, measured: events.CollectivesMeasured) -> None:
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


def _show_exactness(output: Output, measured: events.CollectivesMeasured) -> None:
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


PRINTERS: Mapping[type, Callable[[Output, Any], None]] = {
    events.Narration: narrate,
    events.DemoStep: _show_demo,
    events.DemoEnded: _show_demo,
    events.CheckProgress: show_progress,
    events.PairProgress: show_rounds,
    events.HostStatus: _show_host,
    events.RunShown: lambda output, shown: show_summary(output, shown.summary),
    events.RunsCompared: show_comparison,
    events.Diagnosed: show_diagnosis,
    events.TextMade: lambda output, made: output.data(made.text),
    events.BenchProgress: show_bench_progress,
    events.BenchRun: show_bench_run,
    events.BenchEnded: show_bench,
    events.CollectivesMeasured: show_collectives,
}
