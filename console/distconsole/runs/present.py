"""The figures of a run that are of now, for every line, table, plot and page.

A figure that is not of now is 0 if it is known that nothing is done, else unknown.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from statistics import median_low
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
    MEASURED = auto()
    """It makes steps, and they are seen."""
    IDLE = auto()
    """Its host reports; it has finished no step lately."""
    UNSEEN = auto()
    """No recent report on its host."""
    GONE = auto()
    """Its process has ended, or the run has."""


def _sight(timeline: RunTimeline, view: RankView, now: float, *, heard: bool | None) -> Sight:
    """Return the sight of a rank, by whether its host is ``heard`` of; None without a report."""
    if not view.alive:
        return Sight.GONE
    if heard is None:  # then any event of the run counts
        heard = is_fresh(timeline.last_t, now, view.steady_ms)
    if not heard:
        return Sight.UNSEEN
    stepped = view.stepped_at
    if stepped is None or view.state is RankState.STALLED:
        return Sight.IDLE
    # Nearly always at once: how long its steps are is asked of few.
    of_now = now - stepped <= FRESH_SECONDS or is_fresh(stepped, now, view.steady_ms)
    return Sight.MEASURED if of_now else Sight.IDLE


def done_text(timeline: RunTimeline) -> str:
    """Return the progress of a run, such as ``1,200 steps``, or ``512 batches`` without steps; empty if unknown."""
    steps = timeline.steps
    several = "batches" if unit_of(timeline) == "batch" else ""
    return "" if steps is None else count_text(steps + 1, unit_of(timeline), several)


def unit_of(timeline: RunTimeline) -> str:
    """Return the unit of progress: ``step``, or ``batch`` if a rank has made no step yet."""
    return "batch" if timeline.in_batches else "step"


def loss_name_of(timeline: RunTimeline) -> str:
    """Return the name of the loss: the hook's or the script's, else the printed one; empty without any."""
    return next((name for name in ("loss", PRINTED + "loss") if name in timeline.metric_last), "")


def rate_of(view: RankView, sight: Sight) -> float | None:
    """Return a rank's samples a second: 0 if it stands still, None if unknown."""
    match sight:
        case Sight.MEASURED:
            return view.samples_s
        case Sight.IDLE:
            return 0.0 if view.windows else None
        case Sight.UNSEEN | Sight.GONE:
            return None


def own_ms_of(view: RankView, waits: StepWaits, sight: Sight) -> float | None:
    """Return the own time of a rank's last steps; None if it is unknown or old."""
    waited = waits.of(view) if sight in (Sight.MEASURED, Sight.GONE) else None
    if view.step_ms_mean is None or waited is None or waits.usual_own_ms is None:
        return None
    return view.step_ms_mean - waited


@dataclass(frozen=True, slots=True)
class StepWaits:
    """By how many milliseconds each rank waits longer in a step than the rank that waits least.

    If one of them does not report its waits, it is their backward.
    """

    said: bool
    least_ms: float
    total_ms: float | None
    """Sum over all; None if unknown."""
    usual_own_ms: float | None
    """Lower median of their steps without waits; None if unknown."""

    def of(self, view: RankView) -> float | None:
        """Return the wait of a rank that makes steps; None if unknown."""
        waits = view.waited_ms if self.said else meeting_ms(view)
        return None if waits is None else waits - self.least_ms


def meeting_ms(view: RankView) -> float | None:
    return view.window.backward_ms if view.window else None


def _waits_of(
    steps: Sequence[float | None],
    waited: Sequence[float | None],
    backward: Sequence[float | None],
    slow: Sequence[Straggler],
) -> StepWaits:
    said = None not in waited
    told = waited if said else backward
    known = [ms for ms in told if ms is not None]
    least = min(known, default=0.0)
    # A long backward is certainly a wait if a slow rank costs the others time before it.
    own_known = said or any(each.cost_ms for each in slow)
    both = zip(steps, told, strict=True) if own_known else ()
    own = [step - (ms - least) for step, ms in both if step is not None and ms is not None]
    usual = median_low(own) if own else None
    return StepWaits(said, least, sum(ms - least for ms in known) if known else None, usual)


@dataclass(frozen=True, slots=True)
class Present:
    """The figures of a run that are of now; rates and times are None if none is known.

    Attributes:
        samples_s: Samples a second of all ranks seen.
        step_ms: Mean step time of the ranks that make steps.
        p95_ms: The longest 95th percentile of them; 0 if none is known.
        waits: How long they wait for each other.
        working: How many ranks make steps.
        others: State of each other rank.
        idle: Those that live and make none, and whose hosts report.
        unseen: Those that should live, without a report.
        gone: Those whose processes have ended.
        standing: Ranks that made steps and have finished none for too long, with seconds, least far first.
        slow: The ranks that are slow now, the worst first.
        times: The last step time of each rank that reported one, at work or not, in milliseconds.
        hosts: Host -> its ranks.
        states: State -> the ranks in it.
    """

    samples_s: float | None
    step_ms: float | None
    p95_ms: float
    waits: StepWaits
    working: int
    others: Mapping[int, Sight]
    idle: Sequence[RankView]
    unseen: Sequence[RankView]
    gone: Sequence[RankView]
    standing: Mapping[RankView, float]
    slow: Sequence[Straggler]
    times: Sequence[float]
    hosts: Counter[str]
    states: Counter[RankState]

    @property
    def seen(self) -> int:
        return self.working + len(self.idle)

    @property
    def living(self) -> int:
        return self.seen + len(self.unseen)

    def sight(self, rank: int) -> Sight:
        return self.others.get(rank, Sight.MEASURED)

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
    """Return the figures of ``timeline`` that are of ``now`` (UNIX seconds).

    Each of thousands of ranks is read once: reading it again takes as long as the whole computation. The result
    holds no list of them all: the garbage collector would traverse it in the middle of a drawing.
    """
    hosts = {host: is_fresh(node.t, now) for host, node in timeline.nodes.items()}
    hosts |= {host: False for host, link in timeline.links.items() if not link.connected}
    over = timeline.end is not None
    others: dict[int, Sight] = {}
    seen: dict[Sight, list[RankView]] = {each: [] for each in Sight if each is not Sight.MEASURED}
    steps, waited, backward = list[float | None](), list[float | None](), list[float | None]()
    times, rates, p95_ms = list[float | None](), 0.0, 0.0
    where, states = list[str](), list[RankState]()
    for rank, view in timeline.ranks.items():
        times.append(view.step_ms_mean)
        where.append(view.host)
        states.append(view.state)
        sight = Sight.GONE if over else _sight(timeline, view, now, heard=hosts.get(view.host))
        if sight is not Sight.MEASURED:
            others[rank] = sight
            seen[sight].append(view)
            continue
        steps.append(view.step_ms_mean)
        waited.append(view.waited_ms)
        backward.append(meeting_ms(view))
        rates += view.samples_s or 0.0
        p95_ms = max(p95_ms, view.step_ms_p95 or 0.0)
    idle, unseen = seen[Sight.IDLE], seen[Sight.UNSEEN]
    of_now = [each for each in steps if each is not None]
    known = any(view.windows for view in timeline.ranks.values())
    known = known and bool(steps or idle or over)
    slow = [each for each in timeline.stragglers.slow.values() if each.rank in timeline.ranks]
    slow = [each for each in slow if each.rank not in others]
    slow.sort(key=lambda each: (-each.excess_ms, each.rank))
    still = [view for view in idle if view.stepped_at is not None]
    still.sort(key=lambda view: (view.step or 0, view.stepped_at or 0.0, view.rank))
    working = len(steps)
    if over:  # their last figures stay on the screen
        views = [view for view in timeline.ranks.values() if view.step_ms_mean is not None]
        steps, waited = [each.step_ms_mean for each in views], [each.waited_ms for each in views]
        backward = [meeting_ms(each) for each in views]
    return Present(
        samples_s=rates if known else None,
        step_ms=sum(of_now) / len(of_now) if of_now else None,
        p95_ms=p95_ms,
        waits=_waits_of(steps, waited, backward, slow),
        working=working,
        others=others,
        idle=idle,
        unseen=unseen,
        gone=seen[Sight.GONE],
        standing={view: now - (view.stepped_at or now) for view in still},
        slow=slow,
        times=array("d", (each for each in times if each is not None)),
        hosts=Counter(where),
        states=Counter(states),
    )


def reading_text(value: float | None) -> str:
    """Return a figure as it is read off a curve: ``0.126``, ``58.4``, ``876,547``; nothing if unknown."""
    if value is None:
        return ""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def age_text(t: float, now: float, step_ms: float | None = None) -> str:
    """Return the age of a report of ``t``, as `` 32 s ago``; empty for a present one."""
    return "" if is_fresh(t, now, step_ms) else f" {span_text(now - t)} ago"
