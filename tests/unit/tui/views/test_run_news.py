"""What is to be known of a run beside its first line: the newest first, nothing twice, what has passed in one line."""

from distconsole.model.findings import Severity
from distconsole.model.run_events import RankState, RunFinding
from distconsole.runs.health import health_of
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.views.run_words import news_of
from fakes import scenes

T = scenes.MINUTE_LATER


def finding(t: float, check: str, summary: str, rank: int, **more: str) -> RunFinding:
    return RunFinding(
        t=t, run=scenes.RUN, check=check, severity=Severity.WARN, summary=summary, rank=rank, **more
    )  # fmt: skip


def test_the_newest_finding_is_first_and_what_is_said_or_has_passed_takes_no_room() -> None:
    timeline = RunTimeline()
    slow = finding(T - 20, "run.straggler", "rank 2 is slow", 2, hint="look at its disk")
    other = finding(T - 9, "run.odd", "something odd", 0)
    newer = finding(T - 8, "run.odd", "something newer", 0)
    stall = finding(
        T + 35, "run.stall", "rank 1 on node1 is at ddp.py:29", 1, kind="elsewhere", hint="py-spy"
    )
    stalled = [scenes.rank(n, RankState.STALLED, T + 34) for n in range(4)]
    for event in [*scenes.training(4), slow, other, newer, *stalled, stall]:
        timeline.apply(event)  # type: ignore[arg-type]
    said = "HUNG  " + health_of(timeline, T + 40).sentence[:30]
    lines = news_of(timeline, T + 40, said, 100).plain.splitlines()
    assert lines[-1] == "earlier: rank 2 is slow, 60 s ago"
    assert [line.partition(",")[0] for line in lines] == [
        "  hint: py-spy",
        "! warn something newer",
        "! warn something odd",
        "earlier: rank 2 is slow",
    ]
