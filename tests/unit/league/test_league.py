"""The league's cases are data with a seed, and its scores count a wrong name against a verdict."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from distconsole.model.diagnosis.diagnosis import Diagnosis, Hang, Sure
from distconsole.model.findings import Severity
from distconsole.model.run_events import LogLine, RunFinding
from league.cases import CLASSES, HERE, Case, make_cases
from league.page import write_page
from league.scoring import asked_table, misses, score, table
from league.soak import Heard
from league.trying import ON_BED, Verdict, obstacle_of, request_of

CASES = make_cases(1)


def a_case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def test_there_are_a_hundred_faults_and_twenty_healthy_trainings_each_with_its_truth() -> None:
    count = Counter(case.klass for case in CASES)
    assert set(count) == set(CLASSES)
    assert sum(count.values()) - count["healthy"] - count["asked"] >= 100
    assert count["healthy"] >= 20
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(bool(case.odd) is (case.klass not in ("healthy", "asked")) for case in CASES)
    assert all(
        case.mark
        for case in CASES
        if case.fault in ("sleeps", "file_lock", "saves") and case.klass == "hang"
    )


def test_ranks_of_mpirun_and_slurm_run_where_these_are_and_are_skipped_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by = {name: [case for case in CASES if case.launcher == name] for name in ON_BED}
    assert all({"hang", "dying", "healthy"} <= {c.klass for c in own} for own in by.values())
    with_mpi = a_case("hang/sleeps/loop/hvd-mpi-4")
    assert ("HOROVOD_CONTROLLER", "mpi") in request_of(with_mpi, HERE).env
    assert request_of(a_case("hang/sleeps/loop/ddp-slurm-4"), HERE).slurm == "-N2"
    monkeypatch.setattr("league.trying.obstacle", lambda marker: f"no {marker}")
    assert obstacle_of(by["slurm"][0]) == "no testbed"
    assert obstacle_of(a_case("hang/sleeps/loop/hvd-horovod-4")) == "no horovod"
    assert obstacle_of(a_case("hang/sleeps/loop/ddp-torch-4")) == ""


def test_a_seed_draws_the_culprits_and_nothing_else() -> None:
    assert make_cases(1) == CASES
    other = make_cases(2)
    assert [case.name for case in other] == [case.name for case in CASES]
    assert [case.odd for case in other] != [case.odd for case in CASES]


def test_a_wrong_name_is_blame_and_a_silent_verdict_is_not() -> None:
    case = a_case("hang/sleeps/loop/ddp-torch-4")
    truth = Verdict("elsewhere", case.odd, case.hosts, case.mark, "all_reduce #7", 0.3)
    other = Verdict(
        "elsewhere",
        tuple(3 - rank for rank in case.odd),
        case.hosts,
        case.mark,
        "all_reduce #7",
        0.3,
    )
    verdicts = (truth, other, Verdict("undecided"), Verdict(error="it did not start"))
    scores = [score(case, each) for each in verdicts]
    assert [each["all"] for each in scores] == [True, False, False, False]
    assert [each["blamed"] for each in scores] == [False, True, False, False]
    pairs = zip(verdicts, scores, strict=True)
    rows = [
        {"case": asdict(case), "verdict": asdict(verdict), "score": own} for verdict, own in pairs
    ]
    assert "| hang | 4 | 1 (25 %) | 50 % | 1 (25 %) | 1 | 0.3 s | 0.3 s |" in table(rows)
    assert misses(rows).count("\n") == 4


def test_a_rank_that_dies_or_works_out_something_else_when_it_is_asked_is_a_miss() -> None:
    cases = [a_case(f"asked/{kind}/py-spy/none-3.11-1") for kind in ("pools", "prefetch")]
    unharmed = {"ranks": 4, "asks": 1000, "answers": 990, "deaths": 0, "changed": 0}
    verdicts = (
        Verdict("asked", asked=unharmed),
        Verdict("asked", asked={**unharmed, "deaths": 1}, alarms=["1 deaths"]),
    )
    pairs = list(zip(cases, verdicts, strict=True))
    assert [score(*each)["all"] for each in pairs] == [True, False]
    rows = [{"case": asdict(case), "verdict": asdict(verdict)} for case, verdict in pairs]
    assert "| py-spy | 3.11 | 2 | 8 | 2,000 | 1,980 | 1 | 0 |" in asked_table(rows)


def test_a_table_is_written_and_the_other_one_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = [f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->" for name in ("league", "asked")]
    page.write_text("\n".join(marks))
    case = a_case("asked/pools/server/none-3.13-1")
    verdict = Verdict("asked", asked={"ranks": 4, "asks": 7})
    rows = [{"case": asdict(case), "verdict": asdict(verdict), "score": score(case, verdict)}]
    write_page(page, rows, 1, {"time": "2026-11-29 00:00"}, "abc")
    before, _, after = page.read_text().partition("<!-- asked: begin -->")
    assert before == f"{marks[0]}\n"
    assert "| server | 3.13 | 1 | 4 | 7 | 0 | 0 | 0 |" in after


def test_an_alarm_in_a_healthy_training_is_blame() -> None:
    case = a_case("healthy/plain/ddp-torch-4")
    assert score(case, Verdict("healthy"))["all"]
    assert score(case, Verdict("healthy", alarms=["run.straggler: rank 1"]))["blamed"]


@pytest.mark.parametrize(
    ("severity", "kind", "alarms"),
    [
        (Severity.INFO, Hang.SAVING, 0),
        (Severity.WARN, Hang.HEALTHY, 1),
        (Severity.INFO, Hang.UNDECIDED, 1),
    ],
)
def test_in_a_soak_a_warning_is_an_alarm_and_so_is_an_answer_that_names_no_phase(
    tmp_path: Path, severity: Severity, kind: Hang, alarms: int
) -> None:
    heard = Heard(tmp_path / "soak.jsonl")
    heard.take(LogLine(t=1.0, run="r", host="node1", stream="stdout", line="PHASE 1.0 all_save"))
    heard.take(RunFinding(t=2.0, run="r", check="run.stall", severity=severity, summary="still"))
    heard.answer(Diagnosis(kind=kind, sure=Sure.LIKELY, hang=False, summary="it saves"))
    assert heard.alarms == alarms
    rows = [json.loads(line) for line in (tmp_path / "soak.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["all_save", "all_save"]
    assert [row["said"] for row in rows] == ["run.stall: still", "it saves"]
