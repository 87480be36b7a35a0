"""Words about past and present runs: the newest verdict, and one run's details and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap

from rich.text import Text

from distconsole.formats.figures import number_text
from distconsole.model.names import count_text, join_some
from distconsole.model.run_summary import RunSummary
from distconsole.model.time_text import date_text, duration_text
from distconsole.runs.figures import best_word, more_is_better
from distconsole.text.tables import shorten_middle
from distconsole.tui.view_models.check import SEVERITY_MARKS
from distconsole.tui.widgets.tiles import TileData

STATE_STYLES = {
    "running": ("●", "good"),
    "succeeded": ("✓", "faint"),
    "failed": ("✗", "bad"),
    "stopped": ("■", "warn"),
    "unknown": ("?", "note"),
    "unreadable": ("!", "warn"),
}
VERDICT_STYLES = {"succeeded": "good", "unreadable": "warn"}
"""Of one run: in a list, a success stays in the background."""
ORIGINS = {
    "": "",
    "here": "",
    "attached": "launched elsewhere, followed from here",
    "elsewhere": "launched elsewhere; Enter reads its figures from its hosts",
}
"""Words for the origin of a run; none for one's own."""
NO_RUNS = "no runs yet: type 'run SCRIPT', or 'demo'"
LAST_RUNS = 8
MOST_METRICS, MOST_FINDINGS = 6, 3
LABEL_CELLS = 9


def state_text(run: RunSummary) -> Text:
    mark, style = STATE_STYLES.get(run.state, ("", ""))
    return Text(f"{mark} {run.state}".lstrip(), style)


def metric_names(run: RunSummary) -> list[str]:
    first = [name for name in run.metrics if more_is_better(name)] + ["loss"]
    return [name for name in dict.fromkeys((*first, *run.metrics)) if name in run.metrics]


def metrics_text(run: RunSummary, most: int) -> str:
    return ", ".join(f"{name} {run.metrics[name]:.4g}" for name in metric_names(run)[:most])


def runs_verdict(run: RunSummary | None, *, done: bool) -> tuple[str, str, str]:
    """Return tone, mark and words of the run under the cursor; without one, by ``done`` if the list is complete."""
    if run is None:
        return "note", "…", "NO RUNS YET" if done else "READING"
    mark, style = STATE_STYLES.get(run.state, ("?", "note"))
    failure = run.first_failure
    how = (
        failure.short_blame
        if failure is not None
        else figures_text(run) or ORIGINS.get(run.origin, "")
    )
    words = f"{run.state.upper()}  {run.run}{': ' if how else ''}{how}"
    return VERDICT_STYLES.get(run.state, style), mark, words


def figures_text(run: RunSummary) -> str:
    return ", ".join(
        [
            *([count_text(run.steps, "step")] if run.steps else ()),
            *([f"{number_text(run.samples_s)} samples/s"] if run.samples_s else ()),
            *([f"slowest rank {spread}"] if (spread := spread_text(run)) else ()),
            *([count_text(run.restarts, "restart")] if run.restarts else ()),
        ]
    )


def spread_text(run: RunSummary) -> str:
    """Return the ratio of the slowest rank's own time to the fastest's, of step times if waits are unknown."""
    if run.own_ms_spread:
        return f"x{run.own_ms_spread:.2f} of own time"
    return f"x{run.step_ms_spread:.2f}" if run.step_ms_spread else ""


def counts_text(runs: Sequence[RunSummary]) -> str:
    """Return the numbers of running runs and of ended ones by state, except successes."""
    states = Counter(run.state for run in runs)
    return ", ".join(
        f"{states[state]:,} {state}"
        for state in STATE_STYLES
        if states[state] and state != "succeeded"
    )


def alike(run: RunSummary, runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the last of ``runs`` with the name of ``run`` up to that one, the oldest first."""
    same = [each for each in runs if each.name == run.name and each.started <= run.started]
    return sorted(same, key=lambda each: each.started)[-LAST_RUNS:]


def change_text(run: RunSummary, runs: Sequence[RunSummary]) -> tuple[str, str]:
    """Return the speedup of ``run`` over the last one of its name, and that run; empty if unknown."""
    before = [each for each in alike(run, runs) if each.run != run.run and each.samples_s]
    if not run.samples_s or not before:
        return "", ""
    share = run.samples_s / (before[-1].samples_s or 1.0) - 1
    return f"{100 * share:+.0f} %", before[-1].run


def run_tiles(run: RunSummary, runs: Sequence[RunSummary]) -> list[TileData]:
    """Return the last figures of ``run``, with those of earlier ``runs`` of its name."""
    same, (change, _) = alike(run, runs), change_text(run, runs)
    names = metric_names(run)
    name = names[0] if names else "loss"
    metric = run.metrics.get(name)
    values = [each.metrics.get(name) for each in same]
    best = f"{best_word(name)} {run.best[name]:.4g}" if name in run.best else ""
    rates = [each.samples_s for each in same]
    rank = f"slowest {spread}" if (spread := spread_text(run)) else ""
    return [
        TileData(
            "samples/s", number_text(run.samples_s) or "–", "strong", rates, [(change, "note")]
        ),
        TileData(
            name, "–" if metric is None else f"{metric:.4g}", "strong", values, [(best, "note")]
        ),
        TileData("steps", f"{run.steps:,}" if run.steps else "–", "strong", (), [(rank, "note")]),
    ]


def run_details(run: RunSummary, runs: Sequence[RunSummary], cells: int) -> Text:
    """Return a run's description, end, cause, and last figures, in lines of ``cells``; the most needed first."""
    failure = run.first_failure
    lines: list[tuple[str, str, str]] = []
    if failure is not None:
        lines.append(("cause", failure.short_blame, "bad"))
    code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    lasted = f" after {duration_text(run.seconds)}" if run.seconds is not None else ""
    lines.append(("state", f"{run.state}{lasted}{code}", STATE_STYLES.get(run.state, ("", ""))[1]))
    change, before = change_text(run, runs)
    against = f" ({change} against {before})" if change else ""
    lines.append(("figures", figures_text(run) + against, ""))
    lines.append(("metrics", metrics_text(run, MOST_METRICS), ""))
    where = join_some(run.hosts)
    room = max(1, cells - LABEL_CELLS)
    by = f" by {run.launcher}"
    script = shorten_middle(run.script, max(1, room - len(by)))
    lines.append(("script", f"{script}{by}" if script else "", ""))
    lines.append(("from", ORIGINS.get(run.origin, ""), "note"))
    ranks = count_text(run.world_size, "rank")
    lines.append(("ranks", f"{ranks} on {where}" if where else ranks, ""))
    seen = "" if run.last_seen is None else f", last seen {date_text(run.last_seen)}"
    lines.append(("started", f"{date_text(run.started)}{seen}", ""))
    lines += [
        ("found", each.summary, SEVERITY_MARKS[each.severity][1])
        for each in run.findings[-MOST_FINDINGS:]
    ]
    text = Text(end="")
    for label, words, style in lines:
        if words:
            text.append(f"{label:<{LABEL_CELLS}}", "faint")
            text.append(f"\n{'':{LABEL_CELLS}}".join(wrap(words, room)), style).append("\n")
    if failure is not None and failure.traceback:
        shown = failure.traceback.rstrip().splitlines()
        text.append("\n".join(["", *(shorten_middle(line, max(1, cells)) for line in shown)]))
    text.rstrip()
    return text
