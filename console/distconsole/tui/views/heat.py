"""The page of the heat map: what it shows of a run, by which quantity and how far back. It keeps no history."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from distconsole.model.time_text import span_text
from distconsole.monitor.health import silent_ranks
from distconsole.monitor.present import present
from distconsole.tui.feeds import RequestTask
from distconsole.tui.harmless import shown_name
from distconsole.tui.heat import heat_of
from distconsole.tui.widgets.heat_map import HeatMap

MAX_SILENT = 5


class HeatPage(Vertical):
    """The heat map of one run."""

    DEFAULT_CSS = "HeatPage { height: 1fr; }"

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.quantity = "step"
        self.whole = False
        self._ranks: tuple[int, ...] = ()
        self._shown_task: RequestTask | None = None
        self._now = 0.0

    def compose(self) -> ComposeResult:
        """The map alone."""
        yield HeatMap()

    @property
    def map(self) -> HeatMap:
        """The map."""
        return self.query_one(HeatMap)

    @property
    def about(self) -> str:
        """What it shows, in words."""
        name = shown_name(self.quantity.removeprefix("metric "))
        return f"heat map by {name}, {'the whole run' if self.whole else 'the last minutes'}"

    def choose(self, what: str, known: Sequence[str]) -> str:
        """Show another quantity of ``known`` or another span; return what is wrong with ``what``."""
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
            return f"nothing called '{what}' is known; there is: {shown_name(', '.join(known))}"
        self.quantity = what
        return ""

    def draw(self, task: RequestTask, now: float) -> None:
        """Show the run of ``task`` at ``now`` (UNIX seconds)."""
        if task is not self._shown_task:
            self._shown_task, self._ranks = task, ()
            self.map.zooms.clear()
        self._now = now
        with task.reading():
            history, key = task.history, self.quantity
            if key not in history.quantities:
                key = f"metric {key}"
            going = task.run.end is None
            silent = silent_ranks(task.run, now) if going else {}
            stands = going and not present(task.run, now).at_work
            heat = heat_of(
                history,
                key,
                self._ranks or sorted(task.run.ranks),
                whole=self.whole,
                lines=self.map.lines,
                width=self.map.cells,
                listed=max(1, self.map.content_size.height - 4),
                until=now if stands else None,
            )
            told = [
                f"{view.rank} {view.host} no step {span_text(age)}"
                for view, age in islice(silent.items(), MAX_SILENT)
            ]
        if len(silent) > MAX_SILENT:
            told.append(f"and {len(silent) - MAX_SILENT:,} more are silent")
        self.map.show(heat, told)

    @on(HeatMap.Zoomed)
    def zoom(self, event: HeatMap.Zoomed) -> None:
        """Show other ranks."""
        self._ranks = event.ranks
        if self._shown_task is not None:
            self.draw(self._shown_task, self._now)
