"""Verbs that read what is stored, and one that is not there yet.
``logs``: what fits, what is fold_lines, where bars stood at last.

``compare`` on stored runs: text and JSON, what was configured otherwise, and what cannot be compared.
"""

import contextlib
import io
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from msgspec.structs import replace

from distconsole.cli.streams import Streams
from distconsole.config.paths import runs_dir
from distconsole.errors import ConfigError, RunNotFoundError, UnreachableError, UsageError
from distconsole.formats.settings import arguments_of, settings_of_run
from distconsole.launch.planner import exclude_hosts
from distconsole.model import requests as ask
from distconsole.model.cluster import Cluster, Host
from distconsole.model.comparison import Comparison
from distconsole.model.events import (
    Diagnosed,
    Event,
    Narration,
    RunListed,
    RunsCompared,
    RunShown,
    TextMade,
)
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import (
    EndState,
    LogLine,
    NodeSample,
    PlanMade,
    PlannedHost,
    RankState,
    RunEnded,
    RunEvents,
)
from distconsole.operations import perform
from distconsole.operations.sessions import SessionSource
from distconsole.operations.stored.logs import Passed, end_transient, fold_lines, select_lines
from distconsole.operations.stored.remote_runs import KnownRun, find_known
from distconsole.rpc.frames import RunKnown
from distconsole.runs.logs.filter import parse_filter
from distconsole.runs.store.run_file import RunRecord, StoredEntry
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import summarise
from distconsole.text.compare import comparison_lines
from distconsole.text.progress import SAID_SECONDS, Bars, alike, bar_text
from fakes.blank import blank
from fakes.journals import Journal, keep, stored_entry
from fakes.run_events import rank_is, timeline_of
from fakes.sessions import no_session
from suite.printing import print_events

HOST = PlannedHost(host="a", ranks=(0,), command="python t.py", env={})
PLAN = blank(PlanMade, t=100.0, run="demo-1", world_size=1, hosts=(HOST,), script="t.py")
END = RunEnded(t=105.0, run="demo-1", state=EndState.SUCCEEDED, exit_code=0, seconds=5.0)
BODIES = [
    {"kind": "state", "rank": 0, "local_rank": 0, "pid": 9, "state": "running"},
    {
        "kind": "window",
        "rank": 0,
        "step": 19,
        "steps": 20,
        "step_ms": [50.0, 60.0],
        "data_ms": 1.0,
        "samples_s": 640.0,
        "metrics": {"loss": 0.5},
        "dropped": 0,
        "points": {"loss": [[18, 0.7, 32.0], [19, 0.5, 32.0]]},
    },
    {"kind": "log", "rank": 0, "stream": "out", "offset": 0, "text": "hello\n"},
    {
        "kind": "note",
        "check": "run.disk",
        "severity": "warn",
        "summary": "the disk of a is full",
        "hint": "make room",
    },
    {"kind": "verdict", "state": "succeeded", "exit_code": 0, "first_failure": None},
    {"kind": "end", "state": "succeeded", "exit_code": 0, "seconds": 5.0},
]


def done(request: ask.Request, sessions: SessionSource = no_session) -> list[Event]:
    return list(perform(request, sessions))


def unreachable(where: ask.Where) -> NoReturn:
    raise UnreachableError(f"{where.hosts} cannot be reached")


@pytest.fixture
def stored() -> RunStore:
    store = RunStore(runs_dir())
    plan, end = msgspec.json.encode(PLAN), msgspec.json.encode(END)
    record = RunRecord(RunId("demo-1"), "mine", 100.0, ("a",), b"", plan, end)
    with store.create(record) as run_file:
        told = enumerate(BODIES, 1)
        keep(run_file, [stored_entry("a", seq, 100.0 + seq, **body) for seq, body in told])
    return store


def test_show_folds_the_entries_to_a_summary(stored: RunStore) -> None:
    (event,) = done(ask.Show("mine"))
    assert isinstance(event, RunShown)
    summary = event.summary
    assert (summary.run, summary.state, summary.steps) == ("demo-1", "succeeded", 20)
    assert (summary.samples_s, summary.metrics) == (640.0, {"loss": 0.5})
    assert summary.step_ms_spread == 1.0
    (finding,) = summary.findings
    assert (finding.check, finding.severity, finding.summary, finding.hint) == (
        *("run.disk", "warn", "the disk of a is full", "make room"),
    )


@pytest.mark.usefixtures("home")
def test_show_of_a_run_whose_hosts_do_not_answer_says_when_it_was_last_seen() -> None:
    journal = Journal(run="digits-1121-a3f9", ended=False)
    journal.write(RunStore(runs_dir()))
    why, said, shown = done(ask.Show("last"), unreachable)
    assert isinstance(shown, RunShown)
    assert isinstance(said, Narration)
    assert isinstance(why, Narration)
    assert why.text.endswith("cannot be reached; only what is stored here is shown")
    assert shown.summary.state == "unknown"
    assert "was running when last seen" in said.text


def test_ranks_that_a_script_spawned_are_counted() -> None:
    timeline = timeline_of(rank_is(rank, RankState.RUNNING) for rank in range(2))
    record = RunRecord(RunId("demo-1"), hosts=("a",), plan=msgspec.json.encode(PLAN))
    assert summarise(record, timeline).world_size == 2


def test_logs_that_find_no_line_say_what_there_is(stored: RunStore) -> None:
    (said,) = done(ask.Logs(run="mine", ranks=((5, 5),)))
    assert isinstance(said, Narration)
    assert said.text == "no line fits: demo-1 has rank 0 on a"
    assert not [each for each in done(ask.Logs(run="mine")) if isinstance(each, Narration)]


def test_show_says_what_was_noticed_and_when(stored: RunStore) -> None:
    out, _ = print_events(ask.Show("mine"), *done(ask.Show("mine")))
    assert out.splitlines()[-2:] == [
        "warn after 4.0 s: the disk of a is full",
        "     hint: make room",
    ]


def test_the_summary_of_a_run_that_is_over_is_made_once(
    stored: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = done(ask.Show("mine"))
    monkeypatch.setattr("distconsole.runs.summary.stored_events", lambda _file: 1 / 0)
    assert done(ask.Show("mine")) == [first]


def test_the_summary_of_a_run_without_an_end_is_made_anew(stored: RunStore) -> None:
    with stored.create(RunRecord(RunId("going-1"), "", 300.0, ("a",))) as run_file:
        for count in (1, 2):
            keep(run_file, [stored_entry("a", count, 300.0 + count, **BODIES[1])])
            done(ask.Show("going-1"), unreachable)
            assert run_file.kept_summary() == b""


def test_runs_lists_without_asking_any_host(stored: RunStore) -> None:
    stored.create(RunRecord(RunId("later-1"), "", 200.0, ("a",))).close()
    runs = [e.summary for e in done(ask.Runs()) if isinstance(e, RunListed)]
    assert [f"{run.run} {run.state}" for run in runs] == ["later-1 unknown", "demo-1 succeeded"]
    none = [e.text for e in done(ask.Runs(only="state=failed")) if isinstance(e, Narration)]
    assert none[-1] == "--where fits none of the runs (2)"


def test_a_list_says_how_fast_and_how_good_each_run_was(stored: RunStore) -> None:
    for _ in range(2):  # the second time it is in the catalogue
        (listed,) = (event for event in done(ask.Runs()) if isinstance(event, RunListed))
        summary = listed.summary
        assert (summary.state, summary.seconds, summary.steps) == ("succeeded", 5.0, 20)
        assert (summary.samples_s, summary.metrics) == (640.0, {"loss": 0.5})


def test_a_full_disk_does_not_hide_the_list(stored: RunStore) -> None:
    with contextlib.closing(sqlite3.connect(stored.folder / "demo-1.db")) as db:
        db.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON meta BEGIN SELECT RAISE(FAIL, 'disk is full'); END"
        )
    events = done(ask.Runs())
    assert [event.summary.run for event in events if isinstance(event, RunListed)] == ["demo-1"]


def test_entries_that_cannot_be_read_do_not_hide_the_list(stored: RunStore) -> None:
    with stored.create(RunRecord(RunId("odd-1"), "", 300.0, ("a",))) as run_file:
        keep(run_file, [StoredEntry(HostName("a"), 1, 301.0, b'{"seq": 1, "kind": "window"}')])
    listed = [event.summary for event in done(ask.Runs()) if isinstance(event, RunListed)]
    assert [(each.run, each.steps) for each in listed] == [("odd-1", None), ("demo-1", 20)]


def test_of_a_run_without_an_end_is_said_what_is_known_and_what_asks(stored: RunStore) -> None:
    now = time.time()
    where = ask.Where(hosts="a:2,b c", ssh_config="/x/config", python="/py")
    record = RunRecord(RunId("later-1"), "", now - 7300, ("a", "b"), where=where)
    with stored.create(record) as run_file:
        # b has ended; of a nothing is known.
        keep(run_file, [stored_entry("b", 1, now - 200, **BODIES[-1])])
    stored.create(RunRecord(RunId("older-1"), "", now - 7301, ("c",))).close()
    events = done(ask.Runs())
    assert [event.text for event in events if isinstance(event, Narration)] == [
        "later-1 was running when last seen 3 min ago on a,b; "
        "distconsole runs --ssh-config /x/config --hosts 'a:2,b c' asks",
        "older-1 was running when last seen 2 h ago on c; distconsole runs --hosts c asks",
    ]
    seen = [event.summary.last_seen for event in events if isinstance(event, RunListed)]
    assert seen == [now - 200, now - 7301, None]


def test_how_to_reach_the_hosts_is_put_over_how_they_were_reached() -> None:
    kept = ask.Where(hosts="a,b", ssh_config="/old", setup="module load x")
    assert ask.Where().over(kept) == kept
    over = ask.Where(ssh_config="/new", python="/py").over(kept)
    assert over == ask.Where(hosts="a,b", ssh_config="/new", python="/py", setup="module load x")
    other = ask.Where(cluster="lab").over(kept)
    assert (other.hosts, other.cluster, other.ssh_config) == (None, "lab", "/old")


def test_replay_and_attach_to_an_ended_run_give_the_same_events(stored: RunStore) -> None:
    events = done(ask.Replay("last"))
    assert events == done(ask.Attach("demo"))
    assert events[0] == PLAN
    assert isinstance(events[-1], RunEnded)
    assert [getattr(event, "t", None) for event in events][1:3] == [101.0, 102.0]


def test_an_export_is_json_lines_of_the_events(stored: RunStore) -> None:
    texts = [event.text for event in done(ask.Export("last")) if isinstance(event, TextMade)]
    kinds = [msgspec.json.decode(text)["event"] for text in texts]
    assert kinds == ["plan", "rank", "window", "metric", "metric", "log", "finding", "end"]


def test_an_export_as_csv_is_one_number_a_row(stored: RunStore) -> None:
    export = ask.Export("last", ask.ExportFormat.CSV)
    rows = [event.text.split(",") for event in done(export) if isinstance(event, TextMade)]
    assert rows[0] == ["t", "event", "host", "rank", "gpu", "step", "name", "value"]
    assert ["102.0", "metric", "", "", "", "19", "loss", "0.5"] in rows
    assert ["102.0", "window", "a", "0", "", "19", "step_ms_mean", "50.0"] in rows
    assert all(len(row) == 8 for row in rows)
    assert not any("forward_ms" in row for row in rows)
    with pytest.raises(RunNotFoundError):
        next(iter(perform(ask.Export("nothing", ask.ExportFormat.CSV), no_session)))


def test_an_export_that_cannot_be_written_leaves_nothing(stored: RunStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        done(ask.Export("last", output=str(tmp_path / "no" / "folder.jsonl")))
    done(ask.Export("last", output=str(tmp_path / "out.jsonl")))
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_run_whose_ranks_nobody_asked_says_so(stored: RunStore) -> None:
    (told,) = [event for event in done(ask.Why("last")) if isinstance(event, Diagnosed)]
    assert (told.live, told.diagnosis.hang, told.exit_code) == (False, False, 0)
    assert "none of its ranks stalled while it was watched" in told.diagnosis.summary


def test_a_report_is_one_file_and_says_where_it_lies(stored: RunStore, tmp_path: Path) -> None:
    (told,) = done(ask.ReportPage("last", str(tmp_path / "run.html")))
    assert isinstance(told, Narration)
    assert str(tmp_path / "run.html") in told.text
    assert "Succeeded" in (tmp_path / "run.html").read_text()
    with pytest.raises(ConfigError, match="cannot be written"):
        done(ask.ReportPage("last", str(tmp_path / "no" / "run.html")))
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]


@pytest.mark.parametrize(
    "request_", [ask.Show("no"), ask.Attach("no"), ask.Logs("no"), ask.Stop("no"), ask.Rerun("no")]
)
def test_a_run_that_nobody_knows_is_an_error(request_: ask.Request) -> None:
    with pytest.raises(RunNotFoundError):
        done(request_)


def test_a_run_from_elsewhere_cannot_be_run_again(stored: RunStore) -> None:
    with pytest.raises(RunNotFoundError, match="not started from here"):
        done(ask.Rerun("last"))


def test_hosts_are_left_out_by_name() -> None:
    cluster = Cluster((Host(HostName("a")), Host(HostName("b"))))
    assert [host.name for host in exclude_hosts(cluster, ("a",)).hosts] == ["b"]
    with pytest.raises(UsageError, match="no such host"):
        exclude_hosts(cluster, ("c",))


def known(run: str, name: str = "") -> KnownRun:
    return KnownRun(
        RunId(run), blank(RunKnown, run=run, name=name, nodes=[]), (HostName("a"),), {}
    )


def test_a_run_of_the_hosts_is_found_as_one_of_the_store() -> None:
    runs = [known("new-1"), known("old-1", "mine"), known("old-2")]
    found = {word: find_known(runs, word).run for word in ("last", "mine", "old-2", "n")}
    assert found == {"last": "new-1", "mine": "old-1", "old-2": "old-2", "n": "new-1"}
    for word in ("old", "", "else"):
        with pytest.raises(RunNotFoundError):
            find_known(runs, word)
    with pytest.raises(RunNotFoundError) as caught:
        find_known(runs, "mien", ["here-1"])
    assert caught.value.hint.startswith("did you mean mine?")
    with pytest.raises(RunNotFoundError) as caught:
        find_known(runs, "hree-1", ["here-1"])
    assert caught.value.hint.startswith("did you mean here-1?")


@pytest.mark.parametrize("verb", [ask.Attach, ask.Logs, ask.Stop, ask.Show])
def test_a_misspelt_run_gets_the_nearest_right_one(
    stored: RunStore, verb: Callable[[str], ask.Request]
) -> None:
    with pytest.raises(RunNotFoundError) as caught:
        done(verb("mien"))
    assert "did you mean mine?" in caught.value.hint


def line(rank: int, text: str, t: float = 0.0, *, transient: bool = False) -> LogLine:
    return LogLine(
        t=t, run="r", host=f"n{rank // 4}", stream="out", line=text, rank=rank, transient=transient
    )


def printed(*events: RunEvents) -> str:
    return print_events(ask.Logs(run="r"), *events)[0]


def test_a_folded_line_says_which_ranks_and_waits_no_longer_than_it_must() -> None:
    sample = blank(NodeSample, t=9.0, run="r", host="n0")
    events = [line(0, "a"), line(1, "a", 0.5), line(0, "b", 0.6), sample, line(0, "c", 9.1)]
    given = fold_lines(select_lines(iter(events), parse_filter("", 0.0)))
    taken = [next(given), next(given)]
    assert printed(*taken) == "[0-1] a\n[0 n0] b\n"
    assert printed(*given) == "[0 n0] c\n"


def test_what_a_filter_leaves_out_is_not_folded_in() -> None:
    events = [line(rank, text) for rank in range(6) for text in ("a", "b")]
    told = fold_lines(select_lines(iter(events), parse_filter("1-2,5 /a/", 0.0)))
    assert printed(*told) == "[1-2,5] a\n"


def test_of_a_bar_that_never_ended_the_last_state_is_a_line() -> None:
    events = [
        line(0, "10%", transient=True),
        line(1, "20%", transient=True),
        line(0, "done"),
        line(1, "30%", transient=True),
    ]
    told = [one for one in end_transient(iter(events)) if not isinstance(one, Passed)]
    assert printed(*told) == "[0 n0] done\n[1 n0] 30%\n"


def test_colours_are_for_terminals_alone() -> None:
    red = LogLine(t=0.0, run="r", host="n", stream="out", line="x", styled="\x1b[31mx\x1b[0m")
    assert printed(red) == "[n] x\n"


def test_bars_that_look_alike_are_one_which_is_the_least_far() -> None:
    lines = [
        line(r, f" {40 + r}%|{'#' * r}  | {r}/9 [00:0{r}<?]", transient=True) for r in (2, 0, 1)
    ]
    (bar,) = alike(lines, fold=True)
    assert bar_text(bar) == "[0-2] 40-42% 40%|  | 0/9 [00:00<?]"
    assert len(alike(lines, fold=False)) == 3


def test_in_a_pipe_bars_are_said_now_and_then_and_only_where_they_went_on() -> None:
    err = io.StringIO()
    streams = Streams(io.StringIO(), err)
    now = 0.0
    bars = Bars(streams, clock=lambda: now)
    for step in range(1000):
        now = step * SAID_SECONDS * 2.5 / 1000
        bars.show(line(step % 2, f"{step // 10}%", transient=True))
    bars.end(line(0, "99%"))
    streams.close()
    assert err.getvalue() == "[0-1] 39-40% 39%\n[0-1] 79-80% 79%\n"


def found(*runs: str) -> Comparison:
    events = list(perform(ask.Compare(runs), no_session))
    (made,) = (event for event in events if isinstance(event, RunsCompared))
    return made.comparison


@pytest.fixture
def store() -> RunStore:
    store = RunStore(runs_dir())
    Journal(run="one-1", env={"NCCL_DEBUG": "INFO", "API_TOKEN": "one"}).write(store)
    Journal(
        run="two-1", slow=1, fails=2, seconds=90, env={"NCCL_DEBUG": "WARN", "API_TOKEN": "two"}
    ).write(store)
    for run, version, rate in (("one-1", "2.1.0", "0.1"), ("two-1", "2.3.0", "0.2")):
        with store.open(RunId(run)) as run_file:
            record = run_file.record()
            asked = ask.Run(
                "train.py",
                ("--lr", rate, "--token=abc123", "data"),
                launcher=ask.LauncherName.TORCH,
            )
            facts = {"node1": {"torch.version": version}, "node2": {"torch.version": version}}
            run_file.write_record(
                RunRecord(
                    record.run, record.name, record.started, record.hosts,
                    msgspec.json.encode(asked), facts=msgspec.json.encode(facts),
                )
            )  # fmt: skip
    return store


@pytest.mark.usefixtures("store")
def test_two_stored_runs_are_told_apart() -> None:
    made = found("one-1", "two-1")
    text = "\n".join(comparison_lines(made))
    assert "A succeeded, B failed" in text
    assert re.search(r"B takes 1[23] % longer per step \(.*\): data wait 2 → 5", text)
    differs = {each.name: each.values for each in made.differs}
    assert differs == {
        "env NCCL_DEBUG": ("INFO", "WARN"),
        "arg --lr": ("0.1", "0.2"),
        "torch.version": ("2.1.0", "2.3.0"),
    }
    assert {"launcher", "hosts", "arg --token", "env API_TOKEN"} <= set(made.same)
    assert "abc123" not in msgspec.json.encode(made).decode()


@pytest.mark.usefixtures("store")
def test_more_than_two_are_compared_with_the_first(store: RunStore) -> None:
    Journal(run="big-1", hosts=4).write(store)
    made = found("one-1", "two-1", "big-1")
    assert [run.letter for run in made.runs] == ["A", "B", "C"]
    assert any(words.startswith("C does 2.00 x the samples/s of A") for words in made.words)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("runs", "error"),
    [
        (("one-1",), UsageError),
        (("one-1", "one-1"), UsageError),
        (("one-1",) * 9, UsageError),
        (("one-1", "nowhere"), RunNotFoundError),
    ],
)
def test_what_cannot_be_compared_is_said(runs: tuple[str, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        found(*runs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lr", "0.1", "--bf16", "--seed=7"), {"--lr": "0.1", "--bf16": "given", "--seed": "7"}),
        (
            ("--shift", "-3", "data", "out"),
            {"--shift": "-3", "argument 1": "data", "argument 2": "out"},
        ),
        (("-x", "1", "-x", "2"), {"-x": "1 2"}),
        ((), {}),
    ],
)
def test_arguments_have_names(words: tuple[str, ...], said: dict[str, str]) -> None:
    assert arguments_of(words) == said


def test_a_run_that_was_attached_to_has_its_command() -> None:
    plan = Journal().plan()
    said = settings_of_run(replace(plan, name="x"), None, {}, ["NVIDIA H100"])
    assert said["command"] == "/opt/venv/bin/python train.py --epochs 3"
    assert said["GPU"] == "NVIDIA H100"
    assert "env MASTER_ADDR" not in said
