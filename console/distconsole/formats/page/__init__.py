"""A run as one page of HTML that asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from msgspec import UNSET

from distconsole.formats.figures import bytes_text, number_text
from distconsole.formats.page.heat import heat_map
from distconsole.formats.page.plots import PagePlot, plot
from distconsole.formats.settings import environment_of, settings_of
from distconsole.grammar.secrets import mask_text
from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import EndState, RankState, RunFinding
from distconsole.model.time_text import duration_text, is_time, utc_text
from distconsole.runs.detectors.conclusions import FIRST_FAILURE, NODE_LOST
from distconsole.runs.detectors.stragglers import past_text
from distconsole.runs.health import health_line
from distconsole.runs.logs.levels import Level, LevelWatch
from distconsole.runs.rank_history import OWN, STEP
from distconsole.runs.rank_view import RankView
from distconsole.runs.report_data import KeptLine, LineEnds, ReportData
from distconsole.runs.timeline import PHASE_ORDER, RunTimeline
from distconsole.ssh.plain import plain_lines

MAX_PLOTS = 12
MAX_FINDINGS = 60
MAX_RANKS_OF_LINES = 6
MAX_HOSTS = 256
MAX_NAMED_METRICS = 64
MAX_TEXT_CHARS = 20_000
"""Of one text on the page: a traceback, a value, an error."""
PHASE_NAMES = {
    "interpreter": "Python is up",
    "import_torch": "torch is imported",
    "init_process_group": "all ranks have met",
    "first_step": "first step done",
}


class PageColumn(NamedTuple):
    name: str
    title: str
    numeric: bool = True


COLUMNS = (
    PageColumn("Rank", "Global rank"),
    PageColumn("Host", "Where it ran", numeric=False),
    PageColumn("GPU", "Its GPU there"),
    PageColumn("State", "How it ended, or how it is", numeric=False),
    PageColumn("Exit", "Exit code"),
    PageColumn("Steps", "Steps that it did"),
    PageColumn("Step ms", "Mean step time over the run"),
    PageColumn(
        "Own ms",
        "Mean step time after the first second, less the rank's waits beyond the shortest waits of any rank",
    ),
    PageColumn(
        "Of fastest", "Own time over that of the fastest rank; step time where waits are unknown"
    ),
    PageColumn("Data ms", "Waiting for data, in its last second"),
    PageColumn("Samples/s", "Mean over the run"),
    PageColumn("GPU %", "GPU use, last seen"),
    PageColumn("GPU memory", "Last seen"),
    PageColumn("First step s", "From its start to the end of its first step"),
)

STATE = next(at for at, column in enumerate(COLUMNS) if column.name == "State")
LOG_CLASSES = {Level.PLAIN: "out", Level.WARN: "warn", Level.PART: "err", Level.ERROR: "err"}


def page_of(data: ReportData, now: float) -> bytes:
    """Return the page of a run, in UTF-8, of closed ``data`` at ``now`` (UNIX seconds)."""
    style, script = _own("page.css"), _own("page.js")
    environment = jinja2.Environment(
        autoescape=True,
        finalize=_clean,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.from_string(_own("page.html"))
    page = template.render(
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        style_hash=_hash(style),
        script_hash=_hash(script),
        **_content(data, now),
    )
    return page.encode("utf-8", "replace")


def _content(data: ReportData, now: float) -> dict[str, Any]:
    timeline = data.timeline
    plan, end = timeline.plan, timeline.end
    started = timeline.started if timeline.started is not None else now
    plots = [each for each in _plots(data, started) if each is not None]
    slow_seen = bool(timeline.own_times and timeline.stragglers.told)
    heat = heat_map(data.heat, started, OWN if slow_seen else STEP)
    findings = findings_of(timeline)
    metrics = sorted(timeline.metric_last)
    ranks = _ranks(timeline)
    shown = [
        at
        for at, column in enumerate(COLUMNS)
        if not column.name.startswith("GPU") or any(cells[at][0] for cells in ranks)
    ]
    return {
        "title": timeline.name,
        "run": timeline.run,
        "written": utc_text(now),
        "began": utc_text(started),
        "ended": utc_text(end.t) if end is not None else "",
        "verdict": verdict_of(data, now),
        "findings": findings[:MAX_FINDINGS],
        "more_findings": max(0, len(findings) - MAX_FINDINGS),
        "plots": plots,
        "last_metrics": [
            (name, number_text(timeline.metric_last[name].value), timeline.metric_last[name].step)
            for name in metrics[:MAX_NAMED_METRICS]
        ],
        "metric_count": len(metrics),
        "heat": heat,
        "own_known": slow_seen,
        "columns": [COLUMNS[at] for at in shown],
        "ranks": [[cells[at] for at in shown] for cells in ranks],
        "state_at": shown.index(STATE),
        "phases": _phases(timeline),
        "settings": settings_of(plan) if plan is not None else [],
        "environment": environment_of(plan) if plan is not None else [],
        "hosts": list(_hosts(timeline)),
        "more_hosts": max(0, len(_host_names(timeline)) - MAX_HOSTS),
        "logs": list(_logs(data)),
        "line_count": sum(ends.count for ends in data.lines.values()),
        "records": data.records,
        "data": {
            "plots": [each.data() for each in plots],
            "heat": heat.data() if heat is not None else None,
        },
    }


def _plots(data: ReportData, started: float) -> Iterator[PagePlot | None]:
    timeline = data.timeline
    marks = [(each.t, f"restart {each.restart}") for each in data.restarts]
    if timeline.end is not None and timeline.end.first_failure is not UNSET:
        marks.append((timeline.end.t, "failure"))
    favoured = [name for name in ("loss", "accuracy", "test_accuracy") if name in timeline.metrics]
    others = sorted(name for name in timeline.metrics if name not in favoured)
    for name in [*favoured, *others][: MAX_PLOTS - 3]:
        series = timeline.metrics[name]
        last = timeline.metric_last.get(name)
        over = f"mean of {last.ranks:,} ranks" if last is not None and last.ranks > 1 else ""
        yield plot(name, series, note=over)
    until = timeline.last_t if timeline.end is None else timeline.end.t
    time_axis: dict[str, Any] = {
        "started": started,
        "zero": True,
        "marks": marks,
        "until": until if is_time((until or 0.0) - started) else None,
    }
    ranks = len(timeline.ranks)
    yield plot(
        "Throughput", timeline.throughput, note="all ranks together", unit="samples/s", **time_axis
    )
    yield plot(
        "Step time",
        timeline.step_ms.series,
        note=f"mean of {ranks:,} ranks",
        unit="ms",
        **time_axis,
    )
    yield plot("GPU use", timeline.gpu_use.series, note="mean of the GPUs", unit="%", **time_axis)


def _ranks(timeline: RunTimeline) -> list[list[tuple[str, str]]]:
    """Return the rows of the ranks, the worst first."""
    own, first = timeline.own_times, first_failed_rank(timeline)
    fastest_ms = min(own.values() or timeline.step_times, default=None)
    bad = (RankState.FAILED, RankState.STALLED)
    views = list(timeline.ranks.values())
    views.sort(key=lambda view: (view.rank != first, view.state not in bad, view.rank))
    return [
        _rank(each, own.get(each.rank), fastest_ms, first=each.rank == first) for each in views
    ]


def _rank(
    view: RankView, own_ms: float | None, fastest_ms: float | None, *, first: bool
) -> list[tuple[str, str]]:
    compared = view.step_ms_run if own_ms is None else own_ms
    ratio = compared / fastest_ms if compared and fastest_ms else None
    used, total = (view.sample.mem_used, view.sample.mem_total) if view.sample else (None, None)
    memory = bytes_text(used) + (f" of {bytes_text(total)}" if used is not None and total else "")
    first_step = view.phases.get("first_step")
    return [
        _sort_cell(view.rank),
        (view.host, view.host),
        _sort_cell(view.gpu),
        ("failed first" if first else view.state.value, view.state.value),
        _sort_cell(view.exit_code),
        _sort_cell(view.steps or None, f"{view.steps:,}"),
        _sort_cell(view.step_ms_run),
        _sort_cell(own_ms),
        _sort_cell(ratio, f"{ratio:.2f}x" if ratio is not None else ""),
        _sort_cell(view.data_ms),
        _sort_cell(view.samples_s_run),
        _sort_cell(view.gpu_util),
        _sort_cell(used, memory),
        _sort_cell(first_step),
    ]


def _sort_cell(value: float | None, text: str | None = None) -> tuple[str, str]:
    if value is None:
        return "", ""
    shown = (
        text if text is not None else str(value) if isinstance(value, int) else number_text(value)
    )
    return shown, f"{value:.12g}"


def _phases(timeline: RunTimeline) -> list[dict[str, Any]]:
    found = []
    longest = max((max(v.phases.values()) for v in timeline.ranks.values() if v.phases), default=0)
    for phase in PHASE_ORDER:
        known = [(v.phases[phase], v) for v in timeline.ranks.values() if phase in v.phases]
        if not known:
            continue
        slowest, view = max(known, key=lambda each: (each[0], -each[1].rank))
        seconds = [each for each, _ in known]
        found.append(
            {
                "name": PHASE_NAMES[phase],
                "ranks": len(known),
                "fastest": duration_text(min(seconds)),
                "middle": duration_text(statistics.median(seconds)),
                "slowest": duration_text(slowest),
                "who": f"rank {view.rank} on {view.host}",
                "from": 100 * min(seconds) / (longest or 1),
                "to": max(0.5, 100 * (slowest - min(seconds)) / (longest or 1)),
                "at": 100 * statistics.median(seconds) / (longest or 1),
            }
        )
    return found


def _host_names(timeline: RunTimeline) -> list[str]:
    planned = [each.host for each in timeline.plan.hosts] if timeline.plan is not None else []
    return list(dict.fromkeys([*planned, *timeline.nodes]))


def _hosts(timeline: RunTimeline) -> Iterator[tuple[str, ...]]:
    ranks = Counter(view.host for view in timeline.ranks.values())
    gpus: dict[str, list[str]] = {}
    for gpu in sorted(timeline.gpus.values(), key=lambda each: each.gpu):
        gpus.setdefault(gpu.host, []).append(gpu.name or "GPU")
    for host in _host_names(timeline)[:MAX_HOSTS]:
        node = timeline.nodes.get(host)
        names = gpus.get(host, [])
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        yield (
            host,
            str(ranks[host]),
            kinds or "none seen",
            str(node.cpus or "") if node is not None else "",
            bytes_text(node.mem_total) if node is not None else "",
        )


def _logs(data: ReportData) -> Iterator[dict[str, Any]]:
    by_rank = {rank: (host, ends) for (rank, host), ends in data.lines.items()}
    for rank, why in interesting_ranks(data.timeline, MAX_RANKS_OF_LINES):
        if rank in by_rank:
            host, ends = by_rank[rank]
            yield _log(f"Rank {rank} on {host}", why, ends, data)
    for (of, host), ends in data.lines.items():
        if of is None:
            yield _log(f"What started the ranks on {host}", "", ends, data)
            return


def _log(who: str, why: str, ends: LineEnds, data: ReportData) -> dict[str, Any]:
    started, levels = data.timeline.started or 0.0, LevelWatch()

    def line(each: KeptLine) -> tuple[str, str, str]:
        since = duration_text(max(0.0, each.t - started))
        return since, LOG_CLASSES[levels.of(who, each.text)], each.text

    return {
        "who": who,
        "why": why,
        "first": [line(each) for each in ends.first],
        "left_out": ends.left_out,
        "last": [line(each) for each in ends.last],
    }


def _clean(value: Any) -> Any:
    """Make text harmless before it is escaped: no control characters, no secret, no endless line."""
    if isinstance(value, str) and not isinstance(value, Markup):
        if len(value) > MAX_TEXT_CHARS:
            value = f"{value[:MAX_TEXT_CHARS]} …[{len(value) - MAX_TEXT_CHARS} more characters]"
        return mask_text(plain_lines(value))
    return value


def _own(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


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
    hosts = {view.host for view in timeline.ranks.values()}
    spread, of = timeline.own_spread, "Own time, slowest over fastest"
    if spread is None:
        spread, of = timeline.spread, "Slowest over fastest"
    planned = timeline.plan.world_size if timeline.plan else 0
    known = timeline.step_times
    given = [
        ("Lasted" if timeline.end else "Going for", duration_text(seconds)),
        ("Ranks", f"{max(planned, len(timeline.ranks)):,} on {count_text(len(hosts), 'host')}"),
        ("Steps", f"{steps + 1:,}" if steps is not None else ""),
        ("Samples/s, mean", f"{rate:,.0f}" if rate is not None else ""),
        ("Step time, mean", number_text(sum(known) / len(known), " ms") if known else ""),
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
