"""What of a run somebody hears of, and how a terminal rings for it."""

import re
from collections.abc import Iterable, Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from distconsole.formats.page import interesting_ranks
from distconsole.model.events import Event
from distconsole.model.findings import Severity
from distconsole.model.notices import LOCAL_WAYS, Notice, NoticeKind, Way
from distconsole.model.run_events import EndState, RankState, RunEnded, RunEvent, RunFinding
from distconsole.model.run_summary import FirstFailure
from distconsole.operations.notifying import MAX_FINDINGS, Notices
from distconsole.runs.timeline import RunTimeline
from distconsole.text.ringing import ringing
from fakes import scenes

EVERY = frozenset(NoticeKind)
NASTY = "a\x07b\x1b\\c\x1b]52;c;!\x07d\u202ee\nf;g\x9c"


def told(events: Iterable[Event], since: float = 0.0) -> list[Notice]:
    notices = Notices(EVERY, since)
    return [notice for event in events if (notice := notices.see(event)) is not None]


@pytest.mark.parametrize(
    ("scene", "kind", "words"),
    [
        (scenes.succeeded, NoticeKind.FINISH, "digits succeeded: after 1 min 0 s"),
        (
            scenes.failing,
            NoticeKind.FAILURE,
            "digits failed: after 1 min 1 s, exit code 1: rank 2 on node2:",
        ),
        (scenes.stalled, NoticeKind.STALL, "digits stalled: rank 1 on node1 makes no step"),
    ],
)
def test_a_run_that_ends_fails_or_stalls_is_told_once(
    scene: partial[Iterator[Event]], kind: NoticeKind, words: str
) -> None:
    (notice,) = told(scene())
    assert notice.kind is kind
    assert f"{notice.title}: {notice.text}".startswith(words)
    assert notice.fields["run"] == scenes.RUN


def test_a_run_that_could_not_be_started_is_told_with_its_reason() -> None:
    end = RunEnded(
        t=1.0, run="r", state=EndState.FAILED, exit_code=3, seconds=0.0, error="n1 is away"
    )
    (notice,) = told([end])
    assert (notice.kind, notice.title, notice.text) == (
        NoticeKind.FAILURE, "r was not started", "n1 is away",
    )  # fmt: skip


def test_no_rank_is_blamed_for_the_host_that_was_lost() -> None:
    first = FirstFailure(rank=2, host="node2", exit_code=1, error="node node2 lost: no word")
    end = RunEnded(
        t=1.0, run="r", state=EndState.FAILED, exit_code=1, seconds=60.0, first_failure=first
    )
    (notice,) = told([end])
    assert notice.text == "after 1 min 0 s, exit code 1: node node2 lost: no word"
    assert (notice.rank, notice.host) == (None, "node2")
    lost = RunTimeline()
    lost.apply(end)
    assert interesting_ranks(lost, 3) == []


def test_a_stall_is_told_again_only_when_it_had_ended() -> None:
    stalls = [scenes.rank(rank, RankState.STALLED) for rank in (1, 2)]
    again = [scenes.rank(rank, RankState.RUNNING) for rank in (1, 2)]
    assert len(told([scenes.plan(4), *stalls, again[0], stalls[0]])) == 1
    assert len(told([scenes.plan(4), *stalls, *again, stalls[0]])) == 2


def test_findings_are_told_by_kind_and_do_not_flood() -> None:
    bad = RunFinding(t=1.0, run="r", check="run.desync", severity=Severity.FAIL, summary="apart")
    others = [replace(bad, check=f"run.odd{number}") for number in range(100)]
    assert [notice.text for notice in told([bad, bad])] == ["apart"]
    assert told([replace(bad, severity=Severity.WARN), replace(bad, check="run.stall")]) == []
    assert len(told(others)) == MAX_FINDINGS


def test_what_was_long_before_is_not_told() -> None:
    events = list(scenes.failing())
    end = next(event for event in events if isinstance(event, RunEnded))
    assert told(events, since=end.t + 1) == []
    assert len(told(events, since=end.t)) == 1


def test_nothing_of_a_node_ends_or_begins_a_sequence() -> None:
    events = (
        replace(event, name=NASTY, run=NASTY) if hasattr(event, "name") else event  # type: ignore[type-var]
        for event in scenes.failing()
        if isinstance(event, RunEvent)
    )
    (notice,) = told(events)
    assert notice.title.isprintable()
    raw = Notice(kind=NoticeKind.TEST, title=NASTY, text=NASTY * 100, t=0.0)
    rung = ringing(raw, LOCAL_WAYS, "both", {"TERM": "xterm"})
    assert re.fullmatch(
        "\x07\x1b\\]9;[^\x00-\x1f\x7f-\x9f]+\x07"
        "\x1b\\]777;notify;[^\x00-\x1f\x7f-\x9f;]+;[^\x00-\x1f\x7f-\x9f;]+\x07",
        rung,
    )
    assert len(rung) < 1000


NOTE = Notice(kind=NoticeKind.TEST, title="t", text="x", t=0.0)
NINE, NAMED = "\x1b]9;t: x\x07", "\x1b]777;notify;t;x\x07"


@pytest.mark.parametrize(
    ("desktop", "environment", "rung"),
    [
        ("auto", {"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, NINE),
        ("auto", {"TERM": "xterm-256color", "VTE_VERSION": "7600"}, NAMED),
        ("auto", {"TERM": "foot"}, NAMED),
        ("auto", {"TERM": "xterm-256color"}, NINE + NAMED),
        ("auto", {"TERM": "linux"}, ""),
        ("osc9", {"TERM": "linux"}, NINE),
        ("off", {"TERM": "xterm"}, ""),
        (
            "osc9",
            {"TERM": "tmux-256color", "TMUX": "/tmp/t,1,0"},
            "\x1bPtmux;\x1b\x1b]9;t: x\x07\x1b\\",
        ),
        ("osc777", {"TERM": "screen", "STY": "1.pts"}, f"\x1bP{NAMED}\x1b\\"),
    ],
)
def test_a_desktop_is_told_as_its_terminal_knows_it(
    desktop: str, environment: dict[str, str], rung: str
) -> None:
    assert ringing(NOTE, {Way.DESKTOP}, desktop, environment) == rung
    assert ringing(NOTE, {Way.BELL}, desktop, environment) == "\x07"
