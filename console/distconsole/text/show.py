"""Events of one request as text or as JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from distconsole.model import requests as ask
from distconsole.model.events import (
    BenchEnded,
    BenchProgress,
    BenchRun,
    CheckEnded,
    CheckJudged,
    CheckProgress,
    CollectivesMeasured,
    ConditionJudged,
    DemoEnded,
    DemoStep,
    Diagnosed,
    Event,
    FindingMade,
    HostStatus,
    LaunchersJudged,
    LaunchKept,
    Narration,
    PairProgress,
    RankListed,
    RunListed,
    RunsCompared,
    RunShown,
    ScriptSought,
    TextMade,
)
from distconsole.model.findings import Severity
from distconsole.model.run_events import GpuKey, GpuSample, LogLine, NodeSample, RunEvent
from distconsole.model.run_summary import RunSummary
from distconsole.model.verbs import verb_of
from distconsole.text.bench import (
    show_bench,
    show_bench_progress,
    show_bench_run,
    show_collectives,
)
from distconsole.text.check import show_progress, show_report, show_rounds, show_way_to_details
from distconsole.text.compare import show_comparison
from distconsole.text.lists import RUN_COLUMNS, count_matches, show_load, show_ranks, show_summary
from distconsole.text.output import Output
from distconsole.text.run import RunText
from distconsole.text.tables import show_columns
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


class Show(Protocol):
    """Takes the events of one request in order."""

    def event(self, event: Event) -> None:
        """Show one event."""

    def finish(self) -> None:
        """The request is answered."""


def show_for(request: ask.Request, output: Output, *, on_screen: bool = False) -> Show:
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

    def event(self, event: Event) -> None:
        match event:
            case ConditionJudged():
                self._output.say(count_matches(event))
            case Narration() | DemoStep() | DemoEnded():
                PRINTERS[type(event)](self._output, event)
            case TextMade():
                self._output.data(event.text)
            case CheckProgress() | CheckJudged() | PairProgress() | FindingMade() | HostStatus():
                pass
            case BenchProgress() | LaunchKept() | LaunchersJudged() | ScriptSought():
                pass
            case _:
                self._output.data(self._encode(_data_of(event)).decode())

    def finish(self) -> None:
        self._output.close()


def _data_of(event: Event) -> object:
    match event:
        case CheckEnded():
            return event.report
        case RunListed() | RunShown():
            return event.summary
        case RunsCompared():
            return event.comparison
        case RankListed():
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
        self._judged: ConditionJudged | None = None
        self._run = RunText(output, watchable=watchable)
        self._listed: list[RunSummary] = []
        self._ranks: list[RankListed] = []

    def event(self, event: Event) -> None:
        if printer := PRINTERS.get(type(event)):
            printer(self._output, event)
            return
        match event:
            case RunEvent():
                self._run.show(event)
            case CheckEnded():
                show_report(self._output, event.report, details=self._details)
                if not (self._details or self._on_screen):
                    show_way_to_details(self._output, event.report)
            case RunListed():
                self._listed.append(event.summary)
            case RankListed():
                self._ranks.append(event)
            case ConditionJudged():
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

    def event(self, event: Event) -> None:
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

    def event(self, event: Event) -> None:
        match event:
            case LogLine():
                self._run.log(event, err=False)
            case Narration() | TextMade():
                super().event(event)
            case _:
                pass


def narrate(output: Output, narration: Narration) -> None:
    if narration.severity in (Severity.WARN, Severity.FAIL):
        output.say(f"{output.paint_err.severity(narration.severity)} {narration.text}")
    else:
        output.say(narration.text)


def _show_host(output: Output, status: HostStatus) -> None:
    if status.reachable:
        return
    output.say(f"{output.paint_err.severity(Severity.FAIL)} {status.host}: {status.detail}")
    if status.hint:
        output.say(f"     {output.paint_err('hint:', 'cyan')} {status.hint}")


def demo_lines(event: DemoStep | DemoEnded) -> list[str]:
    """Return the things to look at in this part; at the end the leftovers, and further commands."""
    if isinstance(event, DemoStep):
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


def _show_demo(output: Output, event: DemoStep | DemoEnded) -> None:
    title, *rest = demo_lines(event)
    for line in (output.paint_err(title, "bold"), *rest):
        output.say(line)


PRINTERS: Mapping[type, Callable[[Output, Any], None]] = {
    Narration: narrate,
    DemoStep: _show_demo,
    DemoEnded: _show_demo,
    CheckProgress: show_progress,
    PairProgress: show_rounds,
    HostStatus: _show_host,
    RunShown: lambda output, shown: show_summary(output, shown.summary),
    RunsCompared: show_comparison,
    Diagnosed: show_diagnosis,
    TextMade: lambda output, made: output.data(made.text),
    BenchProgress: show_bench_progress,
    BenchRun: show_bench_run,
    BenchEnded: show_bench,
    CollectivesMeasured: show_collectives,
}
