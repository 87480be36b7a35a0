"""What of a run is measured now: the one place that says so, for every line, table, plot and page.

A figure that is not of now is 0 where it is known that nothing is done, else unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import TYPE_CHECKING

from distconsole.model.names import count_text
from distconsole.model.run_events import RankState
from distconsole.model.time_text import ms_text, span_text
from distconsole.runs.detectors.slowness import Straggler
from distconsole.runs.logs.printed import PRINTED
from distconsole.runs.pace import FRESH_SECONDS, is_fresh
from distconsole.runs.rank_view import RankView

if TYPE_CHECKING:
    from distconsole.runs.timeline import RunTimeline


class Sight(IntEnum):
    """What can be said of a rank now."""

    MEASURED = auto()
    """It makes steps, and they are seen."""
    IDLE = auto()
    """Its host tells of itself; it has finished no step lately."""
    UNSEEN = auto()
    """Nobody has told lately how its host is."""
    GONE = auto()
    """Its process has ended, or the run has."""


def sights_of(timeline: RunTimeline, now: float) -> dict[int, Sight]:
    """Return what can be said of each rank at ``now`` (UNIX seconds)."""
    if timeline.end is not None:
        return dict.fromkeys(timeline.ranks, Sight.GONE)
    hosts = {host: is_fresh(node.t, now) for host, node in timeline.nodes.items()}
    hosts |= {host: False for host, link in timeline.links.items() if not link.connected}
    return {
        rank: _sight(timeline, view, now, heard=hosts.get(view.host))
        for rank, view in timeline.ranks.items()
    }


def _sight(timeline: RunTimeline, view: RankView, now: float, *, heard: bool | None) -> Sight:
    """Return what can be said of a rank whose host is ``heard`` of; None where it tells nothing of itself."""
    if not view.alive:
        return Sight.GONE
    if heard is None:  # then it is heard of by what else comes
        heard = is_fresh(timeline.last_t, now, view.steady_ms)
    if not heard:
        return Sight.UNSEEN
    stepped = view.stepped_at
    if stepped is None or view.state is RankState.STALLED:
        return Sight.IDLE
    # Nearly always at once: how long its steps are is asked of few.
    of_now = now - stepped <= FRESH_SECONDS or is_fresh(stepped, now, view.steady_ms)
    return Sight.MEASURED if of_now else Sight.IDLE


def standing_ranks(
    timeline: RunTimeline, now: float, sights: Mapping[int, Sight]
) -> dict[RankView, float]:
    """Return living ranks that made steps and have finished none for too long, with seconds, least far first."""
    still = [
        timeline.ranks[rank]
        for rank, sight in sights.items()
        if sight is Sight.IDLE and timeline.ranks[rank].stepped_at is not None
    ]
    still.sort(key=lambda view: (view.step or 0, view.stepped_at or 0.0, view.rank))
    return {view: now - (view.stepped_at or now) for view in still}


def slow_ranks(timeline: RunTimeline, sights: Mapping[int, Sight]) -> list[Straggler]:
    """Return the ranks that are slow now, the worst first."""
    slow = timeline.stragglers.slow.values()
    there = [each for each in slow if sights.get(each.rank) is Sight.MEASURED]
    return sorted(there, key=lambda each: (-each.excess_ms, each.rank))


def done_text(timeline: RunTimeline) -> str:
    """Return how far a run is, such as ``1,200 steps``, or ``512 batches`` where it makes no steps; empty where unknown."""
    steps = timeline.steps
    several = "batches" if unit_of(timeline) == "batch" else ""
    return "" if steps is None else count_text(steps + 1, unit_of(timeline), several)


def unit_of(timeline: RunTimeline) -> str:
    """Return what ranks do one after the other: ``step``, or ``batch`` where one has made no step yet."""
    return "batch" if any(view.batches for view in timeline.ranks.values()) else "step"


def loss_name_of(timeline: RunTimeline) -> str:
    """Return which metric is the loss: the hook's or the script's, else what is printed; empty where there is none."""
    return next((name for name in ("loss", PRINTED + "loss") if name in timeline.metric_last), "")


def rate_of(view: RankView, sight: Sight) -> float | None:
    """Return a rank's samples a second: 0 of one that stands still, None where nobody knows."""
    match sight:
        case Sight.MEASURED:
            return view.samples_s
        case Sight.IDLE:
            return 0.0 if view.windows else None
        case Sight.UNSEEN | Sight.GONE:
            return None


@dataclass(frozen=True, slots=True)
class Present:
    """The figures of a run that are of now; rates and times are None where none is known.

    Attributes:
        samples_s: Samples a second of all ranks that are seen.
        step_ms: Mean step time of the ranks that make steps.
        sights: What can be said of each rank.
        at_work: The ranks that make steps.
        seen: Ranks that live and whose hosts tell of themselves.
        unseen: Ranks that should live and of which nothing is known.
    """

    samples_s: float | None
    step_ms: float | None
    sights: Mapping[int, Sight]
    at_work: tuple[RankView, ...]
    seen: int
    unseen: int

    @property
    def rate_text(self) -> str:
        rate = "–" if self.samples_s is None else f"{self.samples_s:,.0f}"
        if self.samples_s is None or not self.unseen:
            return f"{rate} samples/s"
        return f"{rate} samples/s of {count_text(self.seen, 'rank')}"

    @property
    def step_text(self) -> str:
        return "–" if self.step_ms is None else ms_text(self.step_ms)


def present(timeline: RunTimeline, now: float) -> Present:
    """Return the figures of ``timeline`` that are of ``now`` (UNIX seconds)."""
    sights = sights_of(timeline, now)
    views = timeline.ranks
    at_work = tuple(views[rank] for rank, each in sights.items() if each is Sight.MEASURED)
    count = Counter(sights.values())
    idle, unseen = count[Sight.IDLE], count[Sight.UNSEEN]
    times = [view.step_ms_mean for view in at_work if view.step_ms_mean is not None]
    told = any(view.windows for view in views.values())
    known = told and bool(at_work or idle or not unseen)
    return Present(
        samples_s=sum(view.samples_s or 0.0 for view in at_work) if known else None,
        step_ms=sum(times) / len(times) if times else None,
        sights=sights,
        at_work=at_work,
        seen=len(at_work) + idle,
        unseen=unseen,
    )


def reading_text(value: float | None) -> str:
    """Return a figure as it is read off a curve: ``0.126``, ``58.4``, ``876,547``; nothing if unknown."""
    if value is None:
        return ""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def age_text(t: float, now: float, step_ms: float | None = None) -> str:
    """Return how old what was told at ``t`` is, as `` 32 s ago``; nothing where it is of now."""
    return "" if is_fresh(t, now, step_ms) else f" {span_text(now - t)} ago"
