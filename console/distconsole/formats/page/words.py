"""How a run went, in words."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from distconsole.formats.figures import number_text
from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import EndState, RankState, RunFinding
from distconsole.model.time_text import duration_text
from distconsole.runs.detectors.conclusions import FIRST_FAILURE, NODE_LOST
from distconsole.runs.detectors.stragglers import past_text
from distconsole.runs.health import health_line
from distconsole.runs.report_data import ReportData
from distconsole.runs.timeline import RunTimeline

HEADS = {EndState.SUCCEEDED: "Succeeded", EndState.FAILED: "Failed", EndState.STOPPED: "Stopped"}
ORDER = (Severity.FAIL, Severity.WARN, Severity.INFO, Severity.OK)


@dataclass(frozen=True, slots=True)
class PageVerdict:
    """The page's headline: ``tone`` (``good``, ``bad``, ``open``), words, a traceback, a few figures."""

    tone: str
    head: str
    says: str
    traceback: str
    hint: str
    figures: tuple[tuple[str, str], ...]


def verdict_of(data: ReportData, now: float) -> PageVerdict:
    """Return how the run went, or goes at ``now`` (UNIX seconds)."""
    timeline = data.timeline
    end = timeline.end
    first = None if end is None or end.first_failure is UNSET else end.first_failure
    bad = {each.check: each for each in timeline.findings if each.severity is Severity.FAIL}
    told = bad.get(FIRST_FAILURE) or bad.get(NODE_LOST)
    figures = _figures(data, now)
    if end is None:
        when = timeline.last_t or now
        line = _capital(health_line(timeline, now))
        says = f"{_sentence(line)} Its last word is {duration_text(max(0.0, now - when))} old."
        return PageVerdict("open", "Without an end so far", says, "", "", figures)
    tone = "good" if end.state is EndState.SUCCEEDED else "bad"
    says = f"After {duration_text(end.seconds)}, with exit code {end.exit_code}"
    says += f" and {count_text(end.restarts, 'restart')}." if end.restarts else "."
    if first is not None:
        says = f"{_sentence(_capital(first.blame[:400]))} {says}"
    if end.state is EndState.SUCCEEDED and (slow := _slow_text(timeline)):
        says = f"{says} {slow}"
    return PageVerdict(
        "open" if end.state is EndState.STOPPED else tone,
        HEADS[end.state],
        says,
        first.traceback if first is not None else "",
        told.hint if told is not None else "",
        figures,
    )


def findings_of(timeline: RunTimeline) -> list[RunFinding]:
    return sorted(timeline.findings, key=lambda each: (ORDER.index(each.severity), each.t))


def first_failed_rank(timeline: RunTimeline) -> int | None:
    end = timeline.end
    first = UNSET if end is None else end.first_failure
    return first.rank if first is not UNSET and first.of_rank else None


def interesting_ranks(timeline: RunTimeline, limit: int) -> list[tuple[int, str]]:
    """Return ranks whose lines are worth reading, with the reason, the most telling first."""
    why: dict[int, str] = {}
    first = first_failed_rank(timeline)
    if first is not None:
        why[first] = "failed first"
    for view in timeline.ranks.values():
        if view.state in (RankState.FAILED, RankState.STALLED):
            why.setdefault(view.rank, view.state.value)
    for finding in findings_of(timeline):
        if finding.rank is not UNSET and finding.severity in (Severity.FAIL, Severity.WARN):
            why.setdefault(finding.rank, finding.check)
    for rank in sorted(timeline.ranks)[:1]:
        why.setdefault(rank, "the first one")
    return list(why.items())[:limit]


def _figures(data: ReportData, now: float) -> tuple[tuple[str, str], ...]:
    timeline = data.timeline
    seconds = timeline.end.seconds if timeline.end else now - (timeline.started or now)
    rate = timeline.mean_samples_s
    steps = timeline.steps
    hosts, times = {view.host for view in timeline.ranks.values()}, timeline.step_times
    spread, of = timeline.own_spread, "Own time, slowest over fastest"
    if spread is None:
        spread, of = timeline.spread, "Slowest over fastest"
    planned = timeline.plan.world_size if timeline.plan else 0
    given = [
        ("Lasted" if timeline.end else "Going for", duration_text(seconds)),
        ("Ranks", f"{max(planned, len(timeline.ranks)):,} on {count_text(len(hosts), 'host')}"),
        ("Steps", f"{steps + 1:,}" if steps is not None else ""),
        ("Samples/s, mean", f"{rate:,.0f}" if rate is not None else ""),
        ("Step time, mean", number_text(sum(times) / len(times), " ms") if times else ""),
        (of, f"{spread:.2f}x" if spread else ""),
    ]
    for name in ("loss", "accuracy", "test_accuracy"):
        metric = timeline.metric_last.get(name)
        if metric is not None:
            given.append(
                (f"{name.replace('_', ' ').capitalize()}, last", number_text(metric.value))
            )
    return tuple((name, value) for name, value in given if value)


def _slow_text(timeline: RunTimeline) -> str:
    """Name slow ranks, and their cost; the figure of slowest over fastest is beside it."""
    hosts = {view.rank: view.host for view in timeline.ranks.values()}
    told = sorted(timeline.stragglers.told, key=lambda each: -each.cost_ms)
    return " ".join(_sentence(_capital(past_text(each, hosts))) for each in told[:2])


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
