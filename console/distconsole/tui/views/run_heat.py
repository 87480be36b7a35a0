"""The heat map of a run: its quantity, ranks and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from distconsole.model.names import count_text
from distconsole.model.time_text import span_text
from distconsole.runs.detectors.slowness import Straggler
from distconsole.runs.detectors.stragglers import cost_text
from distconsole.runs.present import Present, present
from distconsole.runs.rank_history import OWN, STEP
from distconsole.runs.rank_view import RankView
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.tasks import RequestTask
from distconsole.tui.terminal.sanitize import printable_name
from distconsole.tui.view_models.heat import PACE, heat_of
from distconsole.tui.widgets.heat_map import HeatMap
from distconsole.tui.widgets.panel import Panel

MAX_NAMED = 5
"""Ranks listed beside the heat map by their trouble."""


class RunHeat(HeatMap):
    quantity = STEP.name
    whole = False
    _is_chosen = False
    """True if the user has chosen the quantity: else it is own time once a rank of the run is slow."""
    _shown_task: RequestTask | None = None
    _now = 0.0

    @property
    def about(self) -> str:
        return f"heat map by {printable_name(self.quantity.removeprefix('metric '))}, {self._span}"

    @property
    def _span(self) -> str:
        return "the whole run" if self.whole else "the last minutes"

    def choose(self, what: str, known: Sequence[str]) -> str:
        """Show another quantity of ``known`` or another span; return the error in ``what``."""
        if what == "span":
            self.whole = not self.whole
            return ""
        if not known:
            return "nothing is known of the ranks yet"
        now = self.quantity.removeprefix("metric ")
        if what == "next":
            place = known.index(now) if now in known else -1
            what = known[(place + 1) % len(known)]
        if what not in known:
            there = printable_name(", ".join(known))
            return f"nothing called '{what}' is known; there is: {there}"
        self.quantity, self._is_chosen = what, True
        return ""

    def draw(
        self, task: RequestTask, now: float, also: str = "", figures: Present | None = None
    ) -> None:
        """Show the run of ``task`` at ``now`` (UNIX seconds), with ``also`` in the panel's heading."""
        if task is not self._shown_task:
            self._shown_task = task
            self.zooms = ()
            if not self._is_chosen:
                self.quantity = STEP.name
        self._now = now
        with task.lock:
            figures = figures or present(task.run, now)
            slow, history = figures.slow, task.history
            if not self._is_chosen:
                if OWN.name not in history.quantities:
                    self.quantity = STEP.name
                elif slow:  # no rank is slow in the whole step
                    self.quantity = OWN.name
            key = self.quantity
            if key not in history.quantities:
                key = f"metric {key}"
            going = task.run.end is None
            stands = going and not figures.working
            heat = heat_of(
                history,
                key,
                self.zoomed or sorted(task.run.ranks),
                whole=self.whole,
                lines=self.rows,
                width=self.columns,
                listed=self.lines,
                until=now if stands else None,
            )
            worst = () if heat is None else heat.worst
            listed = {each.rank for each in worst if each.quantity in PACE}
            told = troubles_of(
                task.run, figures.standing, [s for s in slow if s.rank not in listed]
            )
            prices = {each.rank: cost_text(each) if each.cost_ms else "" for each in slow}
        self.show(heat, told, prices)
        title, parts = self.heading()
        if isinstance(self.parent, Panel):
            self.parent.entitle(
                title or self.about, ", ".join(filter(None, [*parts, self._span, also]))
            )

    def zoom(self) -> None:
        if self._shown_task is not None:
            self.draw(self._shown_task, self._now)


def troubles_of(
    run: RunTimeline, still: Mapping[RankView, float], slow: Sequence[Straggler]
) -> list[tuple[str, str]]:
    """Return mark and words of the stalled ranks, with seconds, and of the slow ones."""
    first = islice(still.items(), MAX_NAMED)
    told = [("‖", f"{view.rank} {view.host} no step {span_text(age)}") for view, age in first]
    if len(still) > MAX_NAMED:
        told.append(
            ("‖", count_text(len(still) - MAX_NAMED, "more makes no step", "more make no step"))
        )
    for each in slow[:MAX_NAMED]:
        price = f", costs {cost_text(each)}" if each.cost_ms else ""
        told.append(("▲", f"{each.rank} {run.ranks[each.rank].host} slow {each.part}{price}"))
    return told
