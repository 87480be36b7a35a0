"""What ``why`` prints: the sentence first, of when it is, equal stacks, and the ways to them.
Prose is broken between words on a terminal, and stays one line in a pipe.
"""

import io
import json
from typing import Any

import pytest
from msgspec import structs

from distconsole.cli.main import exit_code_of
from distconsole.cli.streams import Streams
from distconsole.model.diagnosis.calls import Call, GpuUse, Place
from distconsole.model.diagnosis.diagnosis import Diagnosis, Hang, Sure
from distconsole.model.events import Diagnosed, FoundJob
from distconsole.model.requests import Why
from distconsole.runs.diagnosis.judge import judge
from distconsole.text.output import COLOUR, tell, wrap_line
from distconsole.text.why import gpu_text, path_text
from suite.printing import print_events
from suite.roll_calls import roll_of

SKIPS = {
    "world": 4,
    "each": {"waits": "all_reduce 2507 train.py:88"},
    1: {"at": "load_image data.py:31", "refused": [{"way": "py-spy", "why": "not on PATH"}]},
}


def made(**more: Any) -> Diagnosed:
    roll = roll_of(SKIPS)
    by_host: dict[str, Any] = {}
    for rank, call in roll.calls.items():
        by_host[roll.hosts[rank]] = (*by_host.get(roll.hosts[rank], ()), call)
    fields = {"t": 1000.0, "run": "r", "live": True, **more}
    return Diagnosed(diagnosis=judge(roll), calls=by_host, **fields)


def printed(event: Diagnosed, *, as_json: bool = False) -> list[str]:
    return print_events(Why("r", json=as_json), event)[0].splitlines()


def test_the_culprit_comes_first_then_equal_stacks_then_what_was_lacking() -> None:
    lines = printed(made())
    assert lines[0].startswith("HANGS  3 of 4 ranks wait in all_reduce #2507")
    assert "Rank 1 on node1 is not there: it is in load_image at data.py:31" in lines[0]
    heads = [line for line in lines if line.startswith("rank")]
    assert heads == [
        "ranks 0,2-3 (2 hosts)  in train_epoch at train.py:88",
        "rank 1 (node1)  in load_image at data.py:31",
    ]
    assert lines[-2:] == ["stacks read by torch's worker server: 4 ranks", "  py-spy: not on PATH"]


def test_what_was_kept_says_of_when_it_is() -> None:
    assert printed(made(live=False, ended=1060.0))[0].endswith(", 60 s before its end")


def test_json_is_one_object_with_the_calls_of_each_host() -> None:
    (line,) = printed(made(), as_json=True)
    told = json.loads(line)
    assert (told["run"], told["diagnosis"]["ranks"]) == ("r", [1])
    assert {host: len(calls) for host, calls in told["calls"].items()} == {"node1": 2, "node2": 2}


def test_jobs_that_were_found_stand_first_and_say_how_to_ask_about_the_others() -> None:
    job = FoundJob(
        number=1, launcher="torchrun", script="t.py", where="10.0.0.1:29500", run="", world=4,
        age_s=120.0, ranks={"node1": {0: 7, 1: 8}, "node2": {2: 7}}, missing=(3,),
    )  # fmt: skip
    other = structs.replace(job, number=2, launcher="mpirun", where="", world=3)
    first, second, head, *_ = printed(made(job=1, jobs=(job, other)))
    assert first == "job 1: torchrun t.py: 3 of 4 ranks on node1, node2, for 2 min, 10.0.0.1:29500"
    assert second.endswith(
        "mpirun t.py: 3 ranks on node1, node2, for 2 min (--job 2 asks about it)"
    )
    assert head.startswith("HANGS")
    assert printed(made(job=1, jobs=(job,)))[0].startswith("torchrun t.py: 3 of 4 ranks")


def test_no_answer_of_any_host_is_the_exit_code_of_unreachable_hosts() -> None:
    assert (exit_code_of(made()), exit_code_of(made(exit_code=3))) == (0, 3)


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/x.py", "torch/nn/x.py:7"),
        ("/tmp/node/runs/r-1/code/data.py", "data.py:7"),
        ("/tmp/node/hook-0af3/distconsole_training/steps.py", "distconsole_training/steps.py:7"),
        ("/home/u/data.py", "/home/u/data.py:7"),
    ],
)
def test_a_path_is_shown_without_where_it_is_installed(file: str, shown: str) -> None:
    assert path_text(Place(function="f", file=file, line=7)) == shown


def test_the_gpus_of_ranks_with_one_stack_are_told_as_a_range() -> None:
    two = [GpuUse(util=100.0, power_w=95.2, power_usual_w=310.0), GpuUse(util=0.0, power_w=70.0)]
    assert gpu_text(two) == "GPU use 0-100 %, 70-95 W, 310 W in steps"
    assert gpu_text([GpuUse()]) == ""
    calls = {"node1": (Call(rank=1, gpu=two[1]),)}
    shown = printed(structs.replace(made(), calls=calls))
    assert "    GPU use 0 %, 70 W" in shown


def test_what_can_never_go_on_is_a_deadlock_at_once() -> None:
    differs = {"world": 4, "each": {"waits": "all_reduce 7 train.py:88", "silent_s": 5.0}}
    roll = roll_of({**differs, 3: {"waits": "barrier 7 train.py:95", "silent_s": 5.0}})
    (head, *_) = printed(structs.replace(made(), diagnosis=judge(roll)))
    assert head.startswith("DEADLOCK  collective #7 of default_pg differs")


def test_of_a_run_that_ended_unasked_it_is_not_said_that_it_may_hang_yet() -> None:
    never = Diagnosis(kind=Hang.UNDECIDED, sure=Sure.UNKNOWN, hang=False, summary="the run failed")
    told = Diagnosed(t=1000.0, run="r", live=False, diagnosis=never, ended=990.0)
    assert printed(told) == ["ENDED  the run failed"]


def test_prose_is_broken_between_words_with_colours_counted_as_nothing() -> None:
    line = "\x1b[31mFAIL\x1b[0m \x1b[1mn1,n2:\x1b[0m n1 and n2 cannot reach each other"
    lines = wrap_line(line, 24, 5)
    assert [COLOUR.sub("", each) for each in lines] == [
        "FAIL n1,n2: n1 and n2",
        "     cannot reach each",
        "     other",
    ]
    assert " ".join(each.strip() for each in lines) == line


def test_a_word_that_is_too_long_and_an_indented_line_stay_whole() -> None:
    assert wrap_line("  see /a/very/long/path/of/something now", 12, 4) == [
        "  see",
        "    /a/very/long/path/of/something",
        "    now",
    ]
    assert wrap_line("", 40) == [""]


def test_in_a_pipe_a_line_stays_a_line() -> None:
    out = io.StringIO()
    streams = Streams(out, io.StringIO())
    tell(streams, "word " * 50)
    streams.close()
    assert out.getvalue() == "word " * 50 + "\n"
