"""``--where`` and ``--fail-if``: what is listed, what decides the exit code, what is refused."""

import io
import json
from collections.abc import Iterator

import msgspec
import pytest

from distconsole.cli.main import perform_headless
from distconsole.cli.streams import Streams
from distconsole.config.paths import runs_dir
from distconsole.errors import UsageError
from distconsole.grammar.verbs import parse_line
from distconsole.model import requests as ask
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import EndState, PlanMade, PlannedHost, RunEnded
from distconsole.operations.judging import my_names
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from fakes.journals import keep, stored_entry
from fakes.sessions import no_session

SLOW = "step_ms.p95_run > 1.1 * median(step_ms.p95_run)"
"""What docs/reference/expressions.md gives for a script."""


def entries(rank: int, p95: float | None) -> Iterator[dict[str, object]]:
    yield {"kind": "state", "rank": rank, "local_rank": rank, "pid": 9 + rank, "state": "running"}
    for step in (9, 19):
        yield {
            "kind": "window", "rank": rank, "step": step, "steps": 10,
            "step_ms": None if p95 is None else [p95 - 1, p95], "data_ms": 1.0,
            "samples_s": 640.0, "metrics": {"val/loss": 0.5}, "dropped": 0, "points": {},
        }  # fmt: skip


def stored(run: str, figures: list[float | None]) -> None:
    plan = PlanMade(
        t=100.0, run=run, launcher="torch", why="because", world_size=len(figures),
        hosts=(PlannedHost(host="a", ranks=tuple(range(len(figures))), command="c", env={}),),
        script="t.py",
    )  # fmt: skip
    end = RunEnded(t=105.0, run=run, state=EndState.SUCCEEDED, exit_code=0, seconds=5.0)
    both = msgspec.json.encode(plan), msgspec.json.encode(end)
    record = RunRecord(RunId(run), "", 100.0, ("a",), b"", *both)
    bodies = [body for rank, p95 in enumerate(figures) for body in entries(rank, p95)]
    with RunStore(runs_dir()).create(record) as run_file:
        keep(run_file, [stored_entry("a", seq, 100.0, **b) for seq, b in enumerate(bodies, 1)])


@pytest.fixture
def runs() -> None:
    stored("even-1", [20.0, 20.5, 20.0, 21.0])
    stored("slow-1", [20.0, 20.5, None, 23.0])
    stored("blind-1", [None, None])


def told(line: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a command line."""
    out, err = io.StringIO(), io.StringIO()
    code = perform_headless(parse_line(line), Streams(out, err), no_session)
    return code, out.getvalue(), err.getvalue()


@pytest.mark.usefixtures("runs")
def test_one_line_fails_a_run_with_a_slow_rank() -> None:
    code, out, err = told(f"show slow-1 --fail-if '{SLOW}'")
    assert code == 1
    heading, row = out.splitlines()
    assert heading.split() == ["rank", "host", "state", "step_ms.p95_run"]
    # The host never told how its ranks ended; the run has: followed live, it is said alike.
    assert row.split() == ["3", "a", "lost", "23.0", "ms"]
    assert f"{SLOW}: 1 of 4 ranks, 1 unknown" in err
    assert told(f"show even-1 --fail-if '{SLOW}'") == (0, "", f"{SLOW}: none of 4 ranks\n")


@pytest.mark.usefixtures("runs")
def test_what_was_not_measured_is_no_health() -> None:
    code, out, err = told(f"show blind-1 --fail-if '{SLOW}'")
    assert (code, out, "cannot be judged: of 2 ranks none is known" in err) == (1, "", True)
    code, _, err = told("show even-1 --where 'host=b' --fail-if 'rank>=0'")
    assert (code, "of 0 ranks" in err) == (1, True)


@pytest.mark.usefixtures("runs")
def test_where_lists_ranks_and_changes_no_exit_code() -> None:
    code, out, _ = told("show slow-1 --where 'rank<2 and step>15'")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["rank", "0", "1"])
    assert told("show slow-1 --where 'rank>7'") == (0, "", "--where fits none of the ranks (4)\n")
    code, out, _ = told("show slow-1 --json --where 'step_ms.p95_run > median(step_ms.p95_run)'")
    (line,) = map(json.loads, out.splitlines())
    assert (line["run"], line["rank"], line["step_ms.p95_run"]) == ("slow-1", 3, 23.0)
    assert (line["metric.val/loss"], line["util"]) == (0.5, None)


@pytest.mark.usefixtures("runs")
def test_both_judge_what_the_one_left_by_figures_of_all() -> None:
    assert told(f"show slow-1 --where 'rank<3' --fail-if '{SLOW}'")[0] == 0
    assert told("show slow-1 --where 'rank<3' --fail-if 'max(step_ms.p95) > 22ms'")[0] == 1


@pytest.mark.usefixtures("runs")
def test_runs_are_listed_and_judged_by_conditions() -> None:
    _, out, _ = told("runs --json --where 'run~slow or ranks=2'")
    assert {json.loads(line)["run"] for line in out.splitlines()} == {"slow-1", "blind-1"}
    assert told("runs --fail-if 'state=failed'") == (0, "", "state=failed: none of 3 runs\n")
    code, out, err = told("runs --fail-if 'run=even-1'")
    assert (code, "even-1" in out, "1 of 3 runs" in err) == (1, True, True)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("line", ["show even-1 --where", "runs --fail-if", "top --once --where"])
def test_a_condition_that_means_nothing_is_told_with_its_place(line: str) -> None:
    code, out, err = told(f"{line} 'hots~x'")
    assert (code, out) == (2, "")
    said = err.splitlines()
    assert "no field 'hots', at character 1" in said[0]
    assert "did you mean host" in said[1]
    assert said[3].index("^") == said[2].index("hots")


def test_conditions_of_top_go_with_once() -> None:
    with pytest.raises(UsageError, match="goes with --once"):
        parse_line("top --where 'util<10'")
    found = parse_line("top --once --where 'util<10' --fail-if 'strangers>0'")
    assert isinstance(found, ask.Top)
    assert (found.only, found.fail_if) == ("util<10", "strangers>0")


def test_the_operator_is_known_by_the_names_used_on_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    hosts = (Host(HostName("a"), user="root"), Host(HostName("b"), user="ann"))
    assert my_names(Cluster(hosts)) == ("ann", "root")
