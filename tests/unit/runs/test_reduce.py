"""Entries of nodes in, events of a run out."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from distconsole.model.findings import Severity
from distconsole.model.run_events import (
    EndState,
    LogLine,
    Metric,
    NodeSample,
    RankChanged,
    RankState,
    RunEnded,
    RunEvents,
    RunFinding,
    Window,
)
from distconsole.rpc.wire import encode_entry
from distconsole.runs.health import health_line
from distconsole.runs.present import done_text, loss_name_of
from distconsole.runs.reduce import RunReducer
from distconsole.runs.summary import decode_entry, seen_in
from distconsole.runs.timeline import RunTimeline
from fakes import scenes
from fakes.run_events import entry, timeline_of

T0 = 1_000_000.0


class Feed:
    """Feeds entries by host with rising numbers, one second apart unless said otherwise."""

    def __init__(self, *hosts: str) -> None:
        self.reducer = RunReducer("run-1", hosts or ("a",))
        self._seq = 0
        self.t = T0

    def __call__(self, host: str, kind: str, /, at: float | None = None, **body: Any) -> list[Any]:
        self._seq += 1
        self.t = self.t + 1 if at is None else at
        return list(self.reducer.feed(host, entry(kind, self._seq, self.t, **body), self.t))

    def state(self, rank: int, state: str = "running", host: str = "a", **body: Any) -> list[Any]:
        body = {"rank": rank, "local_rank": rank, "pid": rank + 7, "state": state, **body}
        return self(host, "state", **body)

    def ranks(self, hosts: str = "aaa") -> list[Any]:
        """Have rank 0 run on the first of ``hosts``, rank 1 on the next, and so on."""
        return [e for rank, host in enumerate(hosts) for e in self.state(rank, host=host)]

    def window(
        self,
        rank: int,
        points: dict[str, list[Any]] | None = None,
        *,
        host: str = "a",
        at: float | None = None,
        **body: Any,
    ) -> list[Any]:
        given = points or {}
        last = max((p[-1][0] for p in given.values()), default=0)
        fields = {"rank": rank, "step": last, "steps": 10, "points": given, **body}
        return self(host, "window", at, **fields)


def only(events: Iterable[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("windows_before", [0, 5])
def test_a_metric_waits_for_every_living_rank(windows_before: int) -> None:
    feed = Feed("a", "b")
    feed("b", "state", rank=1, local_rank=0, pid=2, state="running")
    for _ in range(windows_before):
        feed.window(0)
        feed.window(1, host="b")
    assert only(feed.window(0, {"loss": [[0, 2.0, None]]}), Metric) == []
    (metric,) = only(feed.window(1, {"loss": [[0, 4.0, None]]}, host="b"), Metric)
    assert (metric.step, metric.value, metric.min, metric.max) == (0, 3.0, 2.0, 4.0)
    assert (metric.ranks, metric.samples) == (2, None)


def test_a_metric_waits_for_a_host_that_has_not_told_its_ranks() -> None:
    feed = Feed("a", "b")
    feed("a", "state", rank=0, local_rank=0, pid=1, state="running")
    assert only(feed.window(0, {"loss": [[0, 2.0, None]]}), Metric) == []
    feed("b", "state", rank=1, local_rank=0, pid=2, state="running")
    (metric,) = only(feed.window(1, {"loss": [[0, 4.0, None]]}, host="b"), Metric)
    assert (metric.step, metric.value, metric.ranks) == (0, 3.0, 2)
    late = Feed("a", "b")
    late("a", "state", rank=0, local_rank=0, pid=1, state="running")
    late.window(0, {"loss": [[0, 2.0, None]]})
    (metric,) = only(late.window(0, {"loss": [[1, 1.0, None]]}, at=late.t + 11), Metric)
    assert (metric.step, metric.ranks) == (0, 1), "not for ever"


def two_ranks() -> Feed:
    feed = Feed("a")
    feed.ranks("aa")
    return feed


@pytest.mark.parametrize(("samples", "mean", "total"), [(10, 1.25, 40), (None, 1.5, None)])
def test_the_mean_is_weighted_by_samples_when_every_rank_gives_them(
    samples: int | None, mean: float, total: int | None
) -> None:
    feed = two_ranks()
    feed.window(0, {"loss": [[0, 1.0, 30]]})
    (metric,) = only(feed.window(1, {"loss": [[0, 2.0, samples]]}), Metric)
    assert (metric.value, metric.samples) == (pytest.approx(mean), total)


def test_a_rank_that_never_gives_a_metric_is_not_awaited_for_long() -> None:
    feed = two_ranks()
    assert only(feed.window(0, {"accuracy": [[0, 0.5, None]]}), Metric) == []
    feed.window(1)
    (metric,) = only(feed.window(1), Metric)
    assert (metric.name, metric.ranks) == ("accuracy", 1)
    assert len(only(feed.window(0, {"accuracy": [[9, 0.6, None]]}), Metric)) == 1


def test_a_rank_that_makes_no_steps_is_awaited_once_and_then_no_more() -> None:
    feed = two_ranks()
    feed.window(0, {"loss": [[0, 1.0, None]]})
    assert len(only(feed.window(0, {"loss": [[1, 1.0, None]]}, at=feed.t + 11), Metric)) == 2
    assert len(only(feed.window(0, {"loss": [[2, 1.0, None]]}), Metric)) == 1


def test_steps_that_only_some_ranks_kept_are_left_out() -> None:
    feed = two_ranks()
    feed.window(0, {"loss": [[8, 1.0, None], [16, 1.0, None], [21, 1.0, None]]})
    events = feed.window(1, {"loss": [[8, 3.0, None], [16, 3.0, None], [19, 3.0, None]]})
    events += feed.window(0, {"loss": [[24, 1.0, None], [30, 1.0, None]]})
    events += feed.window(1, {"loss": [[24, 3.0, None], [29, 1.0, None]]})
    assert [metric.step for metric in only(events, Metric)] == [8, 16, 24]
    assert {metric.ranks for metric in only(events, Metric)} == {2}


def test_steps_that_only_some_kept_are_left_out_also_after_a_rank_has_ended() -> None:
    feed = Feed("a")
    feed.ranks()
    for rank in range(3):
        feed.window(rank, {"loss": [[0, 1.0, None]]})
    feed("a", "state", rank=2, local_rank=2, pid=3, state="exited", exit_code=0)
    made: list[Metric] = []
    for step in range(2, 22, 2):
        made += only(feed.window(0, {"loss": [[step - 1, 9.0, None], [step, 1.0, None]]}), Metric)
        made += only(feed.window(1, {"loss": [[step, 1.0, None]]}), Metric)
    assert {metric.step % 2 for metric in made} == {0}
    assert len(made) == 10


def test_a_value_that_is_no_number_counts_though_others_left_the_step_out() -> None:
    feed = two_ranks()
    feed.window(0, {"loss": [[8, 1.0, None], [11, math.nan, None], [12, 1.0, None]]})
    events = feed.window(1, {"loss": [[8, 3.0, None], [12, 3.0, None]]})
    assert [metric.step for metric in only(events, Metric)] == [8, 11, 12]
    assert math.isnan(only(events, Metric)[1].value)


def test_what_every_rank_that_is_left_gives_counts_at_once() -> None:
    feed = Feed("a")
    feed.ranks()
    feed.window(2, {"loss": [[0, 1.0, None]]})
    feed("a", "state", rank=2, local_rank=2, pid=3, state="killed", exit_code=137)
    feed.window(0, {"loss": [[0, 1.0, None], [1, 1.0, None]]})
    events = feed.window(1, {"loss": [[0, 1.0, None], [1, 1.0, None]]})
    assert [(each.step, each.ranks) for each in only(events, Metric)] == [(0, 3), (1, 2)]


def test_a_note_may_be_about_another_host_and_keep_what_was_seen() -> None:
    told = {"check": "run.rank_lost", "severity": "warn", "summary": "S", "hint": "H"}
    (found,) = Feed("a", "b")("a", "note", **told, rank=3, host="b", seen="Traceback\n  line")
    assert (found.hosts, found.rank, found.seen) == (("b",), 3, "Traceback\n  line")


def test_steps_that_begin_again_with_each_epoch_go_on() -> None:
    feed = Feed("a")
    feed("a", "state", rank=0, local_rank=0, pid=1, state="running")
    events: list[RunEvents] = []
    for _ in range(3):
        events += feed.window(0, {"acc": [[step, 0.1, None] for step in range(4)]})
    steps = [metric.step for metric in only(events, Metric)]
    assert steps == list(range(12))


def test_a_report_repeated_at_one_step_is_the_newest() -> None:
    feed = two_ranks()
    events: list[RunEvents] = []
    for value in (0.1, 0.2):
        events += feed.window(0, {"acc": [[0, value, None]]}, steps=0)
        events += feed.window(1, {"acc": [[0, value, None]]}, steps=0)
    metrics = only(events, Metric)
    assert [(m.step, m.value, m.ranks) for m in metrics] == [(0, 0.1, 2), (0, 0.2, 2)]


def test_a_rank_that_ended_is_not_awaited() -> None:
    feed = two_ranks()
    feed.window(0, {"loss": [[5, 1.0, None]]})
    feed.window(1, {"loss": [[4, 1.0, None]]})  # rank 0 is past it
    ended = feed("a", "state", rank=1, local_rank=1, pid=2, state="exited", exit_code=0)
    assert [metric.step for metric in only(ended, Metric)] == [5]


def test_pending_steps_are_bounded() -> None:
    feed = two_ranks()
    feed.window(1, {"loss": [[0, 1.0, None]]})
    count = 0
    for first in range(1, 20_001, 100):
        given = {"loss": [[step, 1.0, None] for step in range(first, first + 100)]}
        count += len(only(feed.window(0, given, at=T0 + 5), Metric))
    assert 20_000 - count <= 1100


def test_a_loss_that_is_not_a_number_is_found_once() -> None:
    feed = two_ranks()
    events = feed.window(1, {"loss": [[3, math.nan, None]]}, metrics={"loss": math.nan})
    events += feed.window(0, {"loss": [[3, 1.0, None]]})
    events += feed.window(1, {"loss": [[4, math.nan, None]]})
    (finding,) = only(events, RunFinding)
    assert (finding.check, finding.rank) == ("run.not_finite", 1)
    assert "step 3" in finding.summary
    (metric,) = only(events, Metric)
    assert math.isnan(metric.value)
    assert (metric.min, metric.max) == (1.0, 1.0)


def test_the_rank_whose_loss_was_no_number_first_is_named_and_not_the_one_heard_of_first() -> None:
    feed = two_ranks()
    events = feed.window(0, {"loss": [[3, 1.0, None], [4, math.nan, None]]})
    assert not only(events, RunFinding)  # rank 1 has not told of step 4
    late = feed.window(1, {"loss": [[3, math.nan, None]]}, at=T0 + 1.5)
    (finding,) = only([*late, *feed.window(0, {"loss": [[9, 1.0, None]]})], RunFinding)
    assert finding.t == T0 + 1.5
    assert (finding.rank, finding.summary) == (1, "loss is nan at step 3 on rank 1")


def test_a_loss_that_is_no_number_on_all_ranks_at_once_blames_none() -> None:
    feed = two_ranks()
    feed.window(0, {"loss": [[4, math.nan, None]]})
    (finding,) = only(feed.window(1, {"loss": [[4, math.nan, None]]}), RunFinding)
    assert (finding.rank, finding.summary) == (UNSET, "loss is nan at step 4 on all 2 ranks")


@pytest.mark.parametrize("end", ["silence", "an end"])
def test_a_loss_that_is_no_number_is_told_though_another_rank_is_silent(end: str) -> None:
    feed = two_ranks()
    feed.window(0, {"loss": [[4, math.nan, None]]})
    if end == "silence":
        events = feed.window(0, {"loss": [[9, math.nan, None]]}, at=feed.t + 10)
    else:
        events = feed("a", "end", state="failed", exit_code=1, seconds=1.0)
    (finding,) = only(events, RunFinding)
    assert finding.summary == "loss is nan at step 4 on rank 0"


def test_who_left_first_without_an_error_is_named_by_the_failure_of_another() -> None:
    feed = two_ranks()
    feed("a", "state", rank=1, local_rank=1, pid=2, state="exited", exit_code=0)
    failed = {"rank": 0, "host": "a", "exit_code": 1, "error": "Connection closed by peer"}
    events = feed("a", "verdict", state="failed", exit_code=1, first_failure=failed)
    (finding,) = only(events, RunFinding)
    assert "rank 1 on a left first, with exit code 0" in finding.hint


@pytest.mark.parametrize("verdict_first", [True, False])
def test_the_rank_that_failed_first_is_no_rank_that_exited(verdict_first: bool) -> None:
    feed = two_ranks()
    failed = {"rank": 1, "host": "a", "exit_code": 1, "error": "ValueError"}
    told: list[tuple[str, dict[str, Any]]] = [
        ("verdict", {"state": "failed", "exit_code": 1, "first_failure": failed}),
        ("state", {"rank": 1, "local_rank": 1, "pid": 2, "state": "exited", "exit_code": 1}),
        ("state", {"rank": 0, "local_rank": 0, "pid": 1, "state": "exited", "exit_code": 1}),
    ]
    if not verdict_first:
        told = [*told[1:], told[0]]
    events = [event for kind, body in told for event in feed("a", kind, **body)]
    last = {event.rank: event.state for event in only(events, RankChanged)}
    assert last == {0: RankState.EXITED, 1: RankState.FAILED}


def test_infinities_of_both_signs_are_no_crash() -> None:
    feed = two_ranks()
    feed.window(0, {"x": [[0, math.inf, None]]})
    (metric,) = only(feed.window(1, {"x": [[0, -math.inf, None]]}), Metric)
    assert math.isnan(metric.value)


def test_entries_with_nan_survive_the_store() -> None:
    body = {"kind": "window", "seq": 1, "t": 1.0, "rank": 0, "step": 3, "steps": 1}
    window = decode_entry(encode_entry({**body, "points": {"loss": [[3, math.nan, None]]}}))
    assert math.isnan(window.points["loss"][0][1])  # type: ignore[union-attr, arg-type]


def test_a_window_keeps_null_for_what_is_not_known() -> None:
    (window,) = only(Feed("a").window(0, data_ms=None, step_ms=[18.5, 20.0]), Window)
    assert (window.step_ms_mean, window.step_ms_p95, window.data_ms) == (18.5, 20.0, None)


def test_a_state_of_a_newer_agent_is_ignored() -> None:
    assert Feed("a")("a", "state", rank=0, local_rank=0, pid=1, state="levitating") == []


def test_an_exit_carries_code_and_signal() -> None:
    feed = Feed("a")
    (event,) = feed.state(0, "killed", exit_code=137, signal=9)
    assert isinstance(event, RankChanged)
    assert (event.state, event.exit_code, event.signal) == (RankState.KILLED, 137, 9)
    (running,) = feed.state(0)
    assert running.exit_code is UNSET


SAMPLE = {
    "node": dict.fromkeys(("cpu", "mem_used", "mem_total", "net_rx_s", "net_tx_s")),
    "gpus": [],
}


def stalls(steps: list[int], *stalled: int, going: tuple[int, ...] = ()) -> list[RunFinding]:
    """What is told where ranks have done ``steps`` and some then stall, half a second apart."""
    feed = Feed("a")
    feed.ranks()
    for rank, step in enumerate(steps):
        feed.window(rank, step=step)
    began, found = feed.t + 31, []
    for place, rank in enumerate(stalled):
        at = began + place / 2
        found += feed.state(rank, "stalled", at=at)
        if at == began:
            for other in going:
                found += feed.window(other, step=steps[other] + 9, at=at)
    for second in range(2, 8):
        found += feed("a", "sample", began + second, **SAMPLE)
    return only(found, RunFinding)


STOP = "stopped making steps after step"


@pytest.mark.parametrize(
    ("steps", "stalled", "going", "rank", "summary"),
    [
        ([98] * 3, (2, 0, 1), (), UNSET, f"all 3 ranks have {STOP} 98"),
        ([98, 97, 98], (0, 1, 2), (), 1, f"rank 1 on a has {STOP} 97; 2 more wait, at step 98"),
        ([98] * 3, (1,), (0, 2), 1, f"rank 1 on a has {STOP} 98; 2 go on"),
        ([98] * 3, (0, 1), (), UNSET, f"ranks 0, 1 have {STOP} 98; nothing is heard of 1 other"),
    ],
    ids=["all", "one is behind", "others go on", "of others nothing is heard"],
)
def test_a_stall_is_one_finding_that_names_only_a_rank_that_is_behind(
    steps: list[int], stalled: tuple[int, ...], going: tuple[int, ...], rank: Any, summary: str
) -> None:
    (finding,) = stalls(steps, *stalled, going=going)
    assert (finding.check, finding.rank, finding.summary) == ("run.stall", rank, summary)
    assert finding.hosts == ("a",)
    assert f"py-spy dump --pid {7 if rank is UNSET else 8} on a" in finding.hint


@pytest.mark.parametrize(
    "error", ["node b lost", "Slurm job 12 was cancelled", "Slurm ended job 12: its time limit"]
)
def test_what_ends_all_ranks_is_blamed_and_none_of_them(error: str) -> None:
    first = {"rank": 1, "host": "b", "exit_code": 1, "error": error, "traceback": ""}
    verdict = {"state": "failed", "exit_code": 1, "first_failure": first}
    (finding,) = Feed("a", "b")("a", "verdict", **verdict)
    assert (finding.summary, finding.rank, finding.hosts) == (error, UNSET, ("b",))
    assert finding.hint == "distconsole logs run-1"


def test_a_sample_is_the_node_and_its_gpus() -> None:
    stranger = {"pid": 5, "user": "eve", "command": "miner", "rank": None}
    ours = {"pid": 6, "user": "me", "command": "python", "rank": 2}
    gpu = {"gpu": 0, "uuid": "GPU-1", "name": "H200", "util": 93.0, "rank": 2, "throttle": None}
    gpus = [{**gpu, "processes": [stranger, ours]}, {"gpu": 1}]
    node, first, second = Feed("a")("a", "sample", node={"cpu": 5.0}, gpus=gpus)
    assert isinstance(node, NodeSample)
    assert (first.rank, first.strangers, first.throttle) == (2, ("5 eve miner",), ())
    assert (second.rank, second.util, second.mig) == (UNSET, None, None)


def logs(feed: Feed, *texts: str, rank: int = 0, stream: str = "out") -> list[LogLine]:
    found: list[LogLine] = []
    for text in texts:
        found += feed("a", "log", rank=rank, stream=stream, offset=0, text=text)
    return [line for line in found if not line.transient]


def test_lines_are_joined_over_slices_for_each_rank_and_stream() -> None:
    feed = Feed("a")
    assert logs(feed, "hel") == []
    assert [line.line for line in logs(feed, "err\n", stream="err")] == ["err"]
    assert [line.line for line in logs(feed, "other\n", rank=1)] == ["other"]
    assert [line.line for line in logs(feed, "lo\nnext")] == ["hello"]


def test_lines_are_escaped_before_anybody_sees_them() -> None:
    (line,) = logs(Feed("a"), "\x1b[2", "J\x1b]0;title\x07red\x1b[31m!\x00\n")
    assert line.line == "red!"


def test_the_end_comes_once_and_flushes_what_is_left() -> None:
    feed = Feed("a", "b")
    logs(feed, "no newline")
    feed("a", "verdict", state="succeeded", exit_code=0, first_failure=None)
    first = feed("a", "end", state="succeeded", exit_code=0, seconds=4.0)
    assert [line.line for line in only(first, LogLine)] == ["no newline"]
    assert feed.reducer.waiting == {"b"}
    feed("b", "verdict", state="succeeded", exit_code=0, first_failure=None)
    (end,) = feed("b", "end", state="succeeded", exit_code=0, seconds=5.0)
    assert isinstance(end, RunEnded)
    assert (end.state, end.exit_code, end.seconds) == (EndState.SUCCEEDED, 0, 5.0)
    assert feed("b", "note", check="x", severity="info", summary="late") == []


def test_the_first_failure_is_told_with_its_traceback_and_ends_the_run() -> None:
    feed = Feed("a")
    failure = {"rank": 0, "t_ns": 5, "exit_code": 1, "error": "reset", "traceback": ""}
    assert feed("a", "failure", **failure) == []
    first = {"rank": 1, "host": "b", "exit_code": 3, "error": "ValueError: boom"}
    first["traceback"] = "Traceback\nValueError: boom"
    (finding,) = feed("a", "verdict", state="failed", exit_code=3, first_failure=first)
    assert finding.check == "run.first_failure"
    assert finding.summary == "rank 1 on b failed first: ValueError: boom"
    assert finding.seen == "Traceback\nValueError: boom"
    (end,) = feed("a", "end", state="failed", exit_code=3, seconds=1.0)
    assert (end.state, end.exit_code) == (EndState.FAILED, 3)
    assert end.first_failure.rank == 1


def test_without_a_verdict_the_earliest_known_failure_is_blamed() -> None:
    feed = Feed("a", "b")
    body = {"exit_code": 7, "error": "late", "traceback": ""}
    feed("a", "failure", at=T0, rank=0, t_ns=int(T0 * 1e9) + 2, **body)
    feed("a", "failure", at=T0, rank=1, t_ns=int(T0 * 1e9) + 1, **{**body, "error": "early"})
    feed("a", "end", state="lost", exit_code=1, seconds=1.0)
    finding, end = feed.reducer.lost_for_good(T0 + 9)
    assert isinstance(finding, RunFinding)
    assert isinstance(end, RunEnded)
    assert end.state is EndState.FAILED
    assert end.first_failure.error == "early"  # type: ignore[union-attr]
    assert end.first_failure.signal is UNSET  # type: ignore[union-attr]


def test_without_a_verdict_a_failure_keeps_its_signal() -> None:
    feed = Feed("a")
    feed("a", "failure", rank=0, t_ns=1, exit_code=137, signal=9, error="killed", traceback="")
    *_, end = feed.reducer.lost_for_good(T0 + 9)
    assert isinstance(end, RunEnded)
    assert end.first_failure.signal == 9  # type: ignore[union-attr]


def test_a_stopped_run_is_no_failure() -> None:
    feed = Feed("a")
    feed("a", "verdict", state="stopped", exit_code=130, first_failure=None)
    (end,) = feed("a", "end", state="stopped", exit_code=130, seconds=1.0)
    assert (end.state, end.exit_code, end.first_failure) == (EndState.STOPPED, 130, UNSET)


def test_a_note_of_a_node_is_a_finding() -> None:
    (finding,) = Feed("a")("a", "note", check="run.oom", severity="fail", summary="s", rank=2)
    assert (finding.check, finding.severity, finding.rank) == ("run.oom", "fail", 2)
    (odd,) = Feed("a")("a", "note", check="x", severity="purple", summary="s")
    assert odd.severity == "info"


def test_hosts_that_train_one_model_each_are_told_once() -> None:
    feed = Feed("a", "b")
    found: list[Any] = []
    for host in "ab":
        feed.state(0, host=host)
    for second in range(12):
        for host in "ab":
            found += only(feed.window(0, host=host, at=T0 + second), RunFinding)
    (finding,) = found
    assert (finding.check, finding.severity, finding.hosts) == ("run.split", "warn", ("b", "a"))
    assert "{node_rank}" in finding.hint


def test_a_rank_that_moves_to_another_host_is_no_split() -> None:
    feed = Feed("a", "b")
    for host in "ab":
        feed.state(0, host=host)
        late = feed.window(0, host="a", at=T0 + 2)
        assert only(late, RunFinding) == []
    for second in range(12):
        assert only(feed.window(0, host="b", at=T0 + second), RunFinding) == []


PARTS = {"data_ms": 1.0, "forward_ms": 5.0, "backward_ms": 20.0, "optimizer_ms": 1.0}


def seconds_of_windows(
    seconds: int, step_ms: float = 30.0, ranks: int = 4, **slow: float
) -> list[RunFinding]:
    """Return what is found of a rank in the middle that takes ``slow`` where the others take ``PARTS``."""
    each = max(1, round(step_ms / 1000))
    return found_in(
        range(0, seconds, each),
        ranks,
        lambda rank, _: {
            "step_ms": [step_ms] * 2,
            **PARTS,
            **(slow if rank == ranks // 2 else {}),
        },
    )


def found_in(
    seconds: Iterable[int], ranks: int, window: Callable[[int, int], dict[str, Any]]
) -> list[RunFinding]:
    feed, found = Feed("a"), []
    for second in seconds:
        for rank in range(ranks):
            body = {"host": f"h{rank}", "at": T0 + second + rank / 10, **window(rank, second)}
            found += only(feed.window(rank, **body), RunFinding)
    return found


def test_a_rank_whose_data_come_late_is_named_once() -> None:
    (finding,) = seconds_of_windows(30, data_ms=9.0)
    assert (finding.check, finding.rank, finding.hosts) == ("run.straggler", 2, ("h2",))
    assert "data" in finding.summary


def test_it_is_said_since_which_step_a_rank_is_slow() -> None:
    def window(rank: int, second: int) -> dict[str, Any]:
        data_ms = 9.0 if rank == 2 and second >= 20 else 1.0
        return {"step": second * 10, "step_ms": [30.0, 30.0], "data_ms": data_ms}

    (finding,) = found_in(range(40), 4, window)
    since = "rank 2 on h2 is slow since about step 200 in the data part of its steps:"
    assert since in finding.summary


@pytest.mark.parametrize("steps_behind", [0, 3])
def test_a_rank_is_slow_in_whole_steps_only_if_it_makes_fewer_of_them(steps_behind: int) -> None:
    def window(rank: int, second: int) -> dict[str, Any]:
        step = (10 - steps_behind * rank) * second
        return {"step": step, "step_ms": [130.0, 130.0] if rank else [100.0, 100.0]}

    found = found_in(range(30), 2, window)
    assert [finding.rank for finding in found] == ([1] if steps_behind else [])


def test_ranks_in_lockstep_are_not_slow_where_a_busy_host_tells_late() -> None:
    def window(rank: int, second: int) -> dict[str, Any]:
        # Host b falls behind by up to 2.5 s; its rank's windows hold fewer, longer steps.
        at = second - rank * min(2.5, second / 10)
        mean = 130.0 if rank else 100.0
        return {"at": T0 + at, "step": int(10 * at), "step_ms": [mean, mean]}

    assert found_in(range(60), 2, window) == []


def test_who_waits_in_forward_for_another_rank_is_not_slow() -> None:
    def window(rank: int, second: int) -> dict[str, Any]:
        # With sharded parameters: rank 1 waits for data, rank 0 for rank 1.
        waits = {"data_ms": 51.0, "forward_ms": 20.0} if rank else {"forward_ms": 70.0}
        body = {"data_ms": 1.0, "backward_ms": 40.0, "optimizer_ms": 3.0, **waits}
        return {"step": 10 * second, "step_ms": [115.0, 115.0], **body}

    found = found_in(range(30), 2, window)
    assert [(each.rank, "data part" in each.summary) for each in found] == [(1, True)]


def test_a_rank_is_named_where_steps_are_longer_than_windows() -> None:
    (finding,) = seconds_of_windows(240, step_ms=12_000.0, data_ms=3_000.0)
    assert (finding.check, finding.rank) == ("run.straggler", 2)


def test_a_rank_that_is_slow_between_the_parts_of_its_steps_is_named() -> None:
    (finding,) = seconds_of_windows(30, backward_ms=8.0)
    assert (finding.check, finding.rank) == ("run.straggler", 2)
    assert "outside data, forward, backward and optimizer: 12 ms more" in finding.summary
    assert "the host's processors" in finding.hint


def test_a_rank_that_waits_for_its_device_is_no_straggler() -> None:
    # All are as long in backward: its long rest is a wait for a result of the device.
    assert seconds_of_windows(30, forward_ms=1.0, optimizer_ms=0.0) == []


def test_equal_ranks_and_small_differences_are_no_stragglers() -> None:
    assert seconds_of_windows(30) == []
    assert seconds_of_windows(30, data_ms=3.5) == []


def test_a_rank_that_is_slow_for_a_moment_is_no_straggler() -> None:
    assert seconds_of_windows(8, forward_ms=25.0) == []


def lose(feed: Feed, host: str, severity: str = "warn") -> list[Any]:
    said = {"summary": f"node {host} lost", "host": host, "severity": severity}
    return feed("a", "note", check="run.node_lost", **said)


def test_the_ranks_of_a_lost_host_are_over_and_its_end_is_not_awaited() -> None:
    feed = Feed("a", "b")
    feed.ranks("ab")
    told = lose(feed, "b")
    (finding,) = only(told, RunFinding)
    assert (finding.check, finding.hosts) == ("run.node_lost", ("b",))
    (rank,) = only(told, RankChanged)
    assert (rank.rank, rank.host, rank.state) == (1, "b", RankState.LOST)
    assert feed("b", "state", rank=1, local_rank=0, pid=7, state="stalled") == []
    assert feed.window(1, host="b") == []
    assert feed("b", "verdict", state="lost", exit_code=1) == []
    feed("a", "verdict", state="succeeded", exit_code=0)
    (end,) = only(feed("a", "end", state="succeeded", exit_code=0, seconds=1.0), RunEnded)
    assert (end.state, end.exit_code, end.first_failure) == (EndState.SUCCEEDED, 0, UNSET)


def test_a_lost_host_that_ends_the_run_is_waited_for() -> None:
    feed = Feed("a", "b")
    feed("b", "state", rank=1, local_rank=0, pid=7, state="running")
    assert [each.state for each in only(lose(feed, "b", "fail"), RankChanged)] == ["lost"]
    feed("a", "verdict", state="failed", exit_code=1)
    assert only(feed("a", "end", state="failed", exit_code=1, seconds=1.0), RunEnded) == []
    assert only(feed("b", "end", state="lost", exit_code=1, seconds=1.0), RunEnded)


def test_a_verdict_of_a_host_that_lost_the_others_counts_where_nobody_says_more() -> None:
    feed = Feed("a", "b")
    first = {"rank": 0, "host": "a", "exit_code": 1, "error": "node a lost"}
    feed("b", "verdict", state="lost", exit_code=1, first_failure=first)
    feed("b", "end", state="lost", exit_code=1, seconds=1.0)
    (end,) = only(feed.reducer.lost_for_good(feed.t), RunEnded)
    assert (end.state, end.exit_code) == (EndState.FAILED, 1)
    assert end.first_failure.error == "node a lost"


def test_an_end_told_where_a_rank_no_longer_lives_says_nothing_about_it() -> None:
    feed = Feed("a", "b")
    feed("a", "state", rank=1, local_rank=0, pid=7, state="running")
    feed("b", "state", rank=1, local_rank=0, pid=8, state="starting")
    assert feed("a", "state", rank=1, local_rank=0, pid=7, state="killed") == []
    assert feed.window(1, host="a") == []


def test_who_is_lost_is_the_coordinators_to_say() -> None:
    feed = Feed("a", "b", "c")
    feed("c", "state", rank=2, local_rank=0, pid=7, state="running")
    said = {"summary": "node c lost", "host": "c", "severity": "warn"}
    assert not only(feed("b", "note", check="run.node_lost", **said), RankChanged)
    assert feed.reducer.waiting == {"a", "b", "c"}


def test_no_rank_stays_running_for_ever_on_a_host_that_never_tells_its_end() -> None:
    feed = Feed("a", "b")
    feed.ranks("ab")
    feed.state(0, "exited", exit_code=0)
    feed("a", "end", state="failed", exit_code=1, seconds=1.0)
    last = list(feed.reducer.lost_for_good(feed.t))
    (rank,) = only(last, RankChanged)
    assert (rank.rank, rank.host, rank.state) == (1, "b", RankState.LOST)
    assert isinstance(last[-1], RunEnded)


def where(rank: int, file: str, silent_s: float = 34.0) -> dict[str, Any]:
    """What a rank of a roll call tells: it waits in a collective, or is in ``file``."""
    waits = file == "train.py"
    own = {"function": "step" if waits else "load", "file": f"/u/{file}", "line": 9}
    torch = "/x/site-packages/torch/distributed/distributed_c10d.py"
    above = [{"function": "all_reduce", "file": torch, "line": 1}] if waits else []
    last = {"group": "0", "seq": 7 if waits else 6, "done_seq": 6, "op": "all_reduce"}
    call = {"rank": rank, "pid": rank + 7, "alive": True, "step": 98, "silent_s": silent_s}
    call |= {"threads": [{"main": True, "frames": [*above, own]}], "collectives": [last]}
    return {"rank": rank, "why": "stalled", "call": call}


@pytest.mark.parametrize("late", [False, True])
def test_where_the_ranks_are_names_who_keeps_them_in_one_finding(late: bool) -> None:
    feed = Feed("a")
    events = feed.ranks()
    for rank in range(3):
        events += feed.window(rank, step=98)
    began = feed.t + 31
    for rank in range(3):
        events += feed.state(rank, "stalled", at=began)
    for second in range(1, 12):
        for rank in range(3 if second == (8 if late else 2) else 0):
            told = where(rank, "data.py" if rank == 1 else "train.py")
            events += feed("a", "roll_call", began + second, **told)
        events += feed("a", "sample", began + second, **SAMPLE)
    timeline = timeline_of(events)
    assert len(only(events, RunFinding)) == (2 if late else 1)
    (finding,) = timeline.findings
    assert (finding.check, finding.rank, finding.kind) == ("run.stall", 1, "elsewhere")
    assert finding.summary == (
        "rank 1 on a is in load at data.py:9; 2 of 3 ranks wait in all_reduce #7 (default_pg) at train.py:9"
    )
    assert f"distconsole why {finding.run}" in finding.hint
    assert " s: rank 1 on a is in load at data.py:9; 2 of 3" in health_line(timeline, began + 12)


def test_a_rank_that_was_asked_as_it_makes_no_step_is_found_by_the_steps_of_the_others() -> None:
    feed = Feed("a")
    events = feed.ranks()
    began = feed.t
    for second in range(1, 24):
        for rank in (0, 2):
            at = began + second
            events += feed.window(rank, step=50 * second, steps=50, step_ms=[20.0, 21.0], t=at)
        if second == 15:
            told = where(1, "data.py", 20.0)
            told["call"]["step"] = -1
            events += feed("a", "roll_call", began + second, **{**told, "why": "start"})
        events += feed("a", "sample", began + second, **SAMPLE)
    (finding,) = timeline_of(events).findings
    assert (finding.check, finding.rank, finding.kind) == ("run.stall", 1, "elsewhere")
    assert finding.severity is Severity.WARN
    assert finding.summary == "rank 1 on a is in load at data.py:9; 2 ranks go on"


@pytest.mark.parametrize("asked", ["b", "ab"])
def test_a_start_that_goes_on_or_of_which_one_rank_was_asked_blames_nobody(asked: str) -> None:
    feed = Feed("a", "b")
    events = feed.ranks("ab")
    began = feed.t
    for host in asked:
        told = where("ab".index(host), "data.py" if host == "b" else "train.py", 45.0)
        told["call"]["step"] = -1
        events += feed(host, "roll_call", began + 45, **{**told, "why": "start"})
    for second in range(46, 60):
        for rank, host in enumerate(asked if asked == "ab" else ""):
            events += feed.window(rank, step=second, host=host, at=began + second)
        events += feed("a", "sample", began + second, **SAMPLE)
    assert only(events, RunFinding) == []


def test_batches_are_named_until_the_first_step_and_forgotten_then() -> None:
    feed = two_ranks()
    timeline = RunTimeline()

    def tell(**body: Any) -> str:
        for rank in (0, 1):
            for event in feed.window(rank, step_ms=[20.0, 21.0], samples_s=400.0, **body):
                timeline.apply(event)
        return health_line(timeline, feed.t)

    assert "batch 20 ms" in tell(step=499, steps=500, batches=True)
    assert done_text(timeline) == "500 batches"
    summary = next(scenes.past_runs()).summary  # type: ignore[union-attr]
    assert seen_in(summary, timeline).unit == "batches"
    assert {view.steps for view in timeline.ranks.values()} == {500}
    assert "step 20 ms" in tell(step=3, steps=4)
    assert done_text(timeline) == "4 steps"
    assert {view.steps for view in timeline.ranks.values()} == {4}
    (window,) = only(feed.window(0, step=4, steps=1, batches=True), Window)
    assert msgspec.to_builtins(window)["unit"] == "batches"


def test_batches_before_the_steps_of_an_attempt_do_not_number_those_of_the_next() -> None:
    feed = two_ranks()
    feed.window(0, step=499, steps=500, batches=True)
    feed.window(0, step=3, steps=4)
    feed("a", "attempt", restart=1, of=1, checkpoint=None)
    (window,) = only(feed.window(0, step=0, steps=1), Window)
    assert window.step == 4


@pytest.mark.parametrize("wait_seconds", [1, 11])
def test_a_printed_loss_stands_where_the_hook_has_none(wait_seconds: int) -> None:
    feed = two_ranks()
    events = []
    for begun, lines in (
        (0, ("iter 3: loss 1\n", "iter 3: loss 2\n")),
        (15, ("loss 1\n", "loss 4\n")),
    ):
        for rank, text in enumerate(lines):
            events += feed("a", "log", rank=rank, stream="out", offset=begun, text=text)
        feed.t += wait_seconds
    events += [event for rank in (0, 1) for event in feed.state(rank, "exited", exit_code=0)]
    events += feed("a", "end", feed.t + 1, state="succeeded", exit_code=0, seconds=12.0)
    timeline = timeline_of(events)
    told = [(each.name, each.step, each.value) for each in only(events, Metric)]
    assert told == [("printed loss", 3, 1.5), ("printed loss", 4, 2.5)]
    assert loss_name_of(timeline) == "printed loss"


SWAPPED = {
    "a": [(0, 5, "starting", True), (1, 5, "starting", False), (1, 5, "exited", False)],
    "b": [(1, 6, "running", True), (0, 6, "running", False), (0, 6, "exited", False)],
}
"""Host -> its states (rank, pid, state, whether the number is the plan's), where the script numbers the ranks."""
SPAWNED = {
    "a": [
        (0, 5, "running", True),
        (1, 7, "running", False),
        (1, 7, "exited", False),
        (0, 5, "exited", False),
    ],
    "b": [
        (1, 6, "running", True),
        (2, 6, "running", False),
        (3, 8, "running", False),
        (3, 8, "exited", False),
        (2, 6, "exited", False),
    ],
}


@pytest.mark.parametrize("told", [SWAPPED, SPAWNED], ids=["swapped", "spawned"])
def test_a_plans_number_takes_no_rank_from_a_host_whatever_comes_first(
    told: dict[str, list[tuple[int, int, str, bool]]],
) -> None:
    wanted = {
        rank: host for host, states in told.items() for rank, _, _, plan in states if not plan
    }
    total = sum(map(len, told.values()))
    for of_a in itertools.combinations(range(total), len(told["a"])):
        feed, left, last = Feed("a", "b"), {host: list(told[host]) for host in told}, {}
        for place in range(total):
            host = "a" if place in of_a else "b"
            rank, pid, state, planned = left[host].pop(0)
            body = {"rank": rank, "local_rank": 0, "pid": pid, "state": state, "planned": planned}
            for event in only(feed(host, "state", **body), RankChanged):
                last[event.rank] = (event.host, event.state)
        assert last == {rank: (host, RankState.EXITED) for rank, host in wanted.items()}, of_a


def test_a_failure_has_the_number_that_the_group_gave_though_the_verdict_is_read_first() -> None:
    first = {"rank": 1, "host": "b", "exit_code": 1, "error": "", "where": "", "t": 5.0}
    feed = Feed("a", "b")
    body = {"local_rank": 0, "state": "running"}
    feed("a", "state", **body, rank=0, pid=5, planned=True)
    feed("b", "state", **body, rank=1, pid=6, planned=True)
    feed("a", "state", **body, rank=1, pid=5)
    for host in "ab":
        judged = feed(host, "verdict", state="failed", exit_code=1, first_failure=first)
        assert only(judged, RunFinding) == []
    (found,) = only(feed("b", "state", **body, rank=0, pid=6), RunFinding)
    assert (found.rank, found.hosts) == (0, ("b",))
    assert only(feed("b", "end", state="failed", exit_code=1, seconds=1.0), RunFinding) == []


@pytest.mark.parametrize(("host", "kind"), [("a", "sample"), ("b", "end")])
def test_a_failure_does_not_wait_for_a_number_that_does_not_come(host: str, kind: str) -> None:
    first = {"rank": 1, "host": "b", "exit_code": 1, "error": "", "where": "", "t": 5.0}
    feed = Feed("a", "b")
    feed("b", "state", local_rank=0, state="running", rank=1, pid=6, planned=True)
    feed("a", "verdict", state="failed", exit_code=1, first_failure=first)
    body = {"node": {}, "gpus": []} if kind == "sample" else {"state": "failed", "exit_code": 1, "seconds": 1.0}  # fmt: skip
    (found,) = only(feed(host, kind, at=feed.t + 6.0, **body), RunFinding)
    assert found.rank == 1
