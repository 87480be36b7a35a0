"""What is said of a run besides its figures: how it goes, what it is, what was found, how it failed."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from textwrap import wrap

from msgspec import UNSET
from rich.text import Text

from distconsole.formats.figures import number_text
from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import EndState, RunFinding
from distconsole.model.time_text import duration_text
from distconsole.runs.figures import more_is_better
from distconsole.runs.health import Tone, health_of
from distconsole.runs.present import Present, age_text, done_text
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.check import SEVERITY_MARKS

MARKS = {
    Tone.GOOD: ("●", "✓", "good"),
    Tone.NOTE: ("…", "…", "note"),
    Tone.WARN: ("▲", "■", "warn"),
    Tone.BAD: ("✗", "✗", "bad"),
}
"""Tone -> the mark of a run that goes on, that of one that has ended, and their style."""


def verdict_of(task: RequestTask, now: float, figures: Present) -> tuple[str, str, str, str]:
    """Return tone, mark and sentence of the run of ``task`` at ``now`` (UNIX seconds), and what it is about."""
    timeline = task.run
    if task.error is not None and timeline.end is None:
        hint = f"hint: {task.error.hint}" if task.error.hint else ""
        return "bad", "✗", task.error.message, hint
    if timeline.plan is None and not timeline.ranks:
        nothing = ("nothing ran", "") if task.done else ("preparing", "…")
        return "note", nothing[1], nothing[0], ""
    health = health_of(timeline, now, figures)
    going, ended, tone = MARKS[health.tone]
    ranks = count_text(timeline.world, "rank")
    sentence = f"{health.word.upper()}  {health.sentence or ranks}"
    if timeline.restart is not None and timeline.end is None:
        sentence += f", restart {timeline.restart.restart} of {timeline.restart.of}"
    return tone, going if timeline.end is None else ended, sentence, about_text(timeline, now)


def about_text(timeline: RunTimeline, now: float) -> str:
    """Name, age, what the ranks are doing, where; the least needed last."""
    plan = timeline.plan
    if plan is None:
        return ""
    end = timeline.end
    seconds = end.seconds if end is not None else max(0.0, now - (timeline.started or now))
    parts = [timeline.name, duration_text(seconds)]
    states = Counter(view.state for view in timeline.ranks.values())
    if len(states) > 1:
        parts.append(", ".join(f"{count} {state.value}" for state, count in states.most_common()))
    hosts = [host.host for host in plan.hosts]
    parts.append(", ".join(hosts) if len(hosts) <= 3 else f"{len(hosts)} hosts")
    return "  ".join([*parts, plan.launcher, PurePosixPath(plan.script).name])


HINT, LEAST_HINT = "  hint: ", 20

SAID_AS = {
    "run.straggler": "is slow",
    "run.stall": "a step",
    "run.node_lost": "no connection",
    "run.first_failure": "failed",
}
"""Check -> what a verdict has of it that says the same of the same rank or host."""


def news_of(timeline: RunTimeline, now: float, said: str, cells: int) -> Text:
    """What should be known now, in lines of so many ``cells``: findings, the worst and newest last; when it went well, the results.

    Of a finding that is ``said`` above already only what to do stands here.
    """
    text = Text()
    end = timeline.end
    if end is not None and end.state is EndState.SUCCEEDED and timeline.metric_last:
        text.append("results  ", style="strong")
        text.append(_results(timeline) + "\n")
    shown = [f for f in timeline.findings if f.severity in (Severity.WARN, Severity.FAIL)]
    for finding in sorted(shown[-20:], key=lambda finding: -finding.severity.order)[:3]:
        # What was found may have passed: while the run goes on, its age is said.
        age = age_text(finding.t, now) if end is None else ""
        _add_finding(text, finding, age, cells, told=_is_said(finding, said))
    text.rstrip()
    return text


def _is_said(finding: RunFinding, said: str) -> bool:
    whose = finding.hosts[:1] if finding.rank is UNSET else (f"rank {finding.rank} ",)
    about = SAID_AS.get(finding.check)
    same = about is not None and about in said and any(each in said for each in whose)
    return same or finding.summary in said


def _add_finding(text: Text, finding: RunFinding, age: str, cells: int, *, told: bool) -> None:
    if not told:
        mark, style = SEVERITY_MARKS[finding.severity]
        text.append(f"{mark} ", style=style)
        text.append(finding.summary)
        text.append(f",{age}\n" if age else "\n", style="note")
    if finding.hint:
        hint = wrap(finding.hint, max(LEAST_HINT, cells - len(HINT)), break_on_hyphens=False)
        text.append(HINT + f"\n{' ' * len(HINT)}".join(hint) + "\n", style="note")


def _results(timeline: RunTimeline) -> str:
    names = sorted(
        timeline.metric_last, key=lambda name: (not more_is_better(name), name != "loss", name)
    )
    parts = [f"{name} {timeline.metric_last[name].value:.4g}" for name in names[:6]]
    if done := done_text(timeline):
        parts.append(done)
    highest = max(timeline.throughput.values, default=None)
    if highest is not None:
        parts.append(f"up to {number_text(highest)} samples/s")
    return "  ".join(parts)


def traceback_of(timeline: RunTimeline) -> tuple[int | None, str]:
    """Return the rank that failed first and its traceback, both empty where none did."""
    found = (f for f in timeline.findings if f.check == "run.first_failure" and f.seen)
    first = next(found, None)
    if first is None:
        return None, ""
    return first.rank if first.rank is not UNSET else None, first.seen.rstrip()
