"""Every case names its culprit, and only its culprit; whatever ranks tell, nobody who waits with most is blamed.
Jobs of several hosts are put together and judged by the judge of runs; who is not seen is never said to be well.
Which files are the script's own, and what those of libraries say of a rank.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from distconsole.model.diagnosis.calls import Call
from distconsole.model.diagnosis.diagnosis import Hang, Sure
from distconsole.rpc.frames import JobPart, Survey
from distconsole.runs.diagnosis.found import Found, join_surveys, judge_found
from distconsole.runs.diagnosis.judge import judge
from distconsole.runs.diagnosis.roll import Roll
from distconsole.runs.diagnosis.stacks import (
    Does,
    is_library,
    line_text,
    waits_for_lock,
    what_it_does,
)
from fakes.any_entry import any_value
from suite.roll_calls import call_of, roll_of
from suite.seeds import seeds

CASES: list[dict[str, Any]] = yaml.load(
    Path(__file__).with_name("cases.yaml").read_text(), yaml.CSafeLoader
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_a_case_is_named(case: dict[str, Any]) -> None:
    found = judge(roll_of(case))
    text = f"{found.summary}; {found.hint}"
    assert (found.kind, list(found.ranks)) == (Hang(case["kind"]), case["ranks"]), text
    for words in case.get("says", ()):
        assert words in text
    if "at" in case:
        assert found.place is not None
        assert line_text(found.place) == case["at"]
    assert found.hang is case.get("hang", True)
    assert found.sure.value == case.get("sure", found.sure.value)


def test_a_rank_whose_steps_are_known_was_started() -> None:
    case = {"world": 2, "no_call": [1], "each": {"waits": "all_reduce 7 train.py:88"}}
    found = judge(replace(roll_of(case), usual_ms={1: 30.0}))
    assert "not started" not in found.summary
    assert "has made steps, but its host does not say where it is now" in found.summary


def test_a_start_without_a_stack_is_not_said_to_import() -> None:
    calls = {rank: Call(rank=rank, pid=rank + 7, stage="starting") for rank in range(2)}
    found = judge(Roll("run-1", calls, dict.fromkeys(calls, "n0"), {}))
    assert found.kind is Hang.STARTING
    assert "has made no step yet" in found.summary or "have made no step yet" in found.summary
    assert found.sure.value == "likely"


@pytest.mark.parametrize("seed", seeds(8, always=2))
def test_whatever_nodes_tell_a_diagnosis_is_made(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(60):
        world = dice.choice((1, 2, 4, 9))
        told = [
            msgspec.convert(any_value(Call, dice), Call) for _ in range(dice.randrange(world + 1))
        ]
        calls = {call.rank: call for call in told}
        hosts = {rank: f"n{rank % 2}" for rank in range(world)}
        away = {"n1": "timed out"} if dice.random() < 0.3 else {}
        found = judge(Roll("run-1", calls, hosts, away, longest_s=dice.choice((0.0, 90.0))))
        assert found.summary
        assert set(found.ranks) <= set(hosts) | set(calls)


@pytest.mark.parametrize("seed", seeds(8, always=2))
def test_nobody_who_waits_where_most_wait_is_blamed(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(40):
        world = dice.choice((2, 3, 4, 8, 64))
        odd = dice.sample(range(world), dice.randint(0, (world - 1) // 2))
        waits = {
            "waits": dice.choice(
                ("all_reduce 7 train.py:88", "backward 7 train.py:88", "all_reduce - train.py:8")
            )
        }
        others = [
            {"at": "load data.py:3", "done": 6},
            {"waits": "barrier 7 train.py:95"},
            {"waits": "all_reduce 6 train.py:88"},
            {
                "at": "main train.py:99",
                "in": dice.choice(("destroy", "lock", "dataloader", "save")),
            },
            {"at": "f train.py:3", "state": dice.choice("RSDTt"), "recorder": False},
            {"alive": False, "ended": {"exit_code": dice.choice((0, 1))}},
        ]
        case = {"world": world, "each": waits, **{rank: dice.choice(others) for rank in odd}}
        assert set(judge(roll_of(case)).ranks) <= set(odd), case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_a_backend_that_met_its_timeout_decides_nothing(case: dict[str, Any]) -> None:
    bare, roll = judge(roll_of(case)), roll_of(case)
    met = "torch: backend gloo met a timeout or an error"
    for rank, call in roll.calls.items():
        roll.calls[rank] = msgspec.structs.replace(call, note=met)
    found = judge(roll)
    assert (found.kind, found.ranks, found.sure) == (bare.kind, bare.ranks, bare.sure)


AT = {"waits": "all_reduce 7 train.py:88"}


def rank(number: int, words: dict[str, Any] | None = None, world: int = 4, **more: Any) -> Any:
    """Return a CALL as an agent tells it; without a stack where no words say where it is."""
    found = msgspec.to_builtins(call_of(number, words or {"at": "f train.py:1"}, world))
    found |= {"collectives": [], "stage": None, "silent_s": 80.0, "step": -1, "pid": 100 + number}
    return found | ({} if words else {"threads": [], "way": "proc"}) | more


def part(*ranks: Any, **more: Any) -> JobPart:
    fields = {"key": "k", "launcher": "torchrun", "script": "t.py", "here": False, "size": 4}
    return JobPart(ranks=ranks, **{**fields, **more})  # type: ignore[arg-type]


def joined(*parts: JobPart, **more: Any) -> list[Found]:
    return join_surveys(
        {f"n{at}": Survey(jobs=(each,), **more) for at, each in enumerate(parts, 1)}
    )


def test_the_ranks_of_all_hosts_are_one_job_and_the_one_that_is_elsewhere_is_named() -> None:
    sleeps = {"at": "load data.py:31"}
    (found,) = joined(part(rank(0, AT), rank(1, sleeps)), part(rank(2, AT), rank(3, AT)))
    made = judge_found(found, {})
    assert (made.ranks, made.hang, made.sure) == ((1,), True, Sure.LIKELY)
    assert "3 of 4 ranks wait in all_reduce at train.py:88. Rank 1 on n1" in f"{made.summary}"
    assert found.told(1).ranks == {"n1": {0: 100, 1: 101}, "n2": {2: 102, 3: 103}}


def test_a_stopped_rank_is_named_without_any_stack() -> None:
    idle = {"state": "S", "waits_for": {"kind": "socket", "what": ""}}
    (found,) = joined(part(*(rank(n, **idle) for n in (0, 2, 3)), rank(1, state="T")))
    made = judge_found(found, {})
    assert (made.kind, made.ranks, made.hang) == (Hang.STOPPED, (1,), True)


def test_without_stacks_what_the_kernel_says_is_told_and_nobody_is_blamed() -> None:
    idle = {"state": "S", "syscall": {"name": "futex"}, "main_cpu_s": 0.0, "over_s": 1.0}
    other = {**idle, "syscall": {"name": "clock_nanosleep"}}
    (found,) = joined(part(*(rank(n, **idle) for n in (0, 2, 3)), rank(1, **other)))
    made = judge_found(found, {})
    assert (made.kind, made.ranks, made.sure) == (Hang.UNDECIDED, (), Sure.UNKNOWN)
    assert "rank 1: state S in clock_nanosleep, no CPU; ranks 0,2-3: state S" in made.summary
    assert "py-spy" in made.hint


@pytest.mark.parametrize("away", [{}, {"n9": "timed out"}])
def test_a_rank_that_was_not_found_is_said_to_be_missing(away: dict[str, str]) -> None:
    (found,) = joined(part(*(rank(n, AT) for n in range(3))))
    made = judge_found(found, away)
    assert (made.ranks, found.told(1).missing) == ((3,), (3,))
    assert made.kind is (Hang.HOST_SILENT if away else Hang.NOT_STARTED)
    assert ("was not found on these hosts" in made.summary) is not bool(away)
    assert ("add the host that runs it" in made.hint) is not bool(away)


def test_a_rank_that_its_host_had_started_and_has_no_more_is_gone() -> None:
    (found,) = joined(part(*(rank(n, AT) for n in (0, 2, 3)), gone=(1,)))
    made = judge_found(found, {})
    assert (made.kind, made.ranks) == (Hang.FAILED, (1,))
    assert "distconsole logs" not in made.hint


def test_a_job_whose_ranks_run_on_is_not_said_to_hang() -> None:
    busy = [rank(n, AT, silent_s=0.0, stage="stepping" if n else None) for n in range(4)]
    (found,) = joined(part(*busy))
    made = judge_found(found, {})
    assert (made.kind, made.hang, made.sure) == (Hang.HEALTHY, False, Sure.CERTAIN)
    (found,) = joined(part(*(rank(n, silent_s=0.3) for n in range(4))))
    assert judge_found(found, {}).sure is Sure.LIKELY


def test_who_spins_in_one_place_is_no_hang_before_it_is_long() -> None:
    (found,) = joined(
        part(
            *(rank(n, AT, silent_s=0.0) for n in (0, 2, 3)),
            rank(1, {"at": "f d.py:3"}, silent_s=0.0),
        )
    )
    made = judge_found(found, {})
    assert (made.ranks, made.hang) == ((1,), False)


def test_spawned_ranks_go_on_behind_those_of_the_host_where_they_meet() -> None:
    counted = {"spawned": True, "size": 0}
    two = (rank(0, AT, 2), rank(1, AT, 2))
    (found,) = joined(part(*two, **counted), part(*two, **counted, leads=True))
    assert found.hosts == {0: "n2", 1: "n2", 2: "n1", 3: "n1"}
    assert found.world == 4


def test_jobs_that_mean_their_own_host_are_apart_and_our_own_come_last() -> None:
    jobs = joined(part(rank(0, AT), here=True, run="r-1"), part(rank(0, AT), here=True, size=1))
    assert [job.part.run for job in jobs] == ["", "r-1"]


def test_what_nccl_finds_is_evidence_and_blames_nobody() -> None:
    (found,) = joined(part(*(rank(n, AT) for n in range(4))), ras=("#0-0 MISMATCH: Rank 2",))
    made = judge_found(found, {})
    assert "NCCL RAS: #0-0 MISMATCH: Rank 2" in made.evidence
    assert made.ranks == ()


@pytest.mark.parametrize(
    "file",
    [
        "/tmp/distconsole-0/runs/r-1/code/train.py",
        "/home/me/distconsole/examples/train.py",
        "/home/me/distconsole_training/2026/may/train.py",
    ],
)
def test_a_script_is_its_own_in_a_folder_with_our_name(file: str) -> None:
    assert not is_library(file)


@pytest.mark.parametrize(
    "file",
    [
        "/usr/lib/python3.13t/threading.py",
        "/tmp/distconsole-0/hook-0af3/distconsole_training/process.py",
        "/tmp/distconsole-0/hook-0af3/distconsole_training/torch_hook/torch_steps.py",
        "/venv/lib/python3.11/site-packages/distconsole_training/recipes/digits.py",
    ],
)
def test_the_hook_is_a_library(file: str) -> None:
    assert is_library(file)


TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
OWN = ("step", "/home/me/train.py")
IMPORT = ("_find_and_load", "<frozen importlib._bootstrap>")


def does(*frames: tuple[str, str]) -> Does:
    return what_it_does(call_with([*frames, OWN, ("<module>", "/home/me/train.py")]))


def call_with(frames: list[tuple[str, str]]) -> Call:
    places = [{"function": function, "file": file, "line": 1} for function, file in frames]
    told = {"rank": 0, "alive": True, "threads": [{"main": True, "frames": places}]}
    return msgspec.convert(told, Call)


@pytest.mark.parametrize(
    ("frames", "meant"),
    [
        ([("<module>", f"{TORCH}/_dynamo/trace_rules.py"), IMPORT], Does.IMPORTS),
        ([("<module>", f"{TORCH}/distributed/tensor/__init__.py"), IMPORT], Does.IMPORTS),
        ([("<module>", "/usr/lib/python3.12/pdb.py"), IMPORT], Does.IMPORTS),
        ([("_compile", f"{TORCH}/_dynamo/convert_frame.py")], Does.COMPILES),
        (
            [("f", f"{TORCH}/_inductor/ir.py"), IMPORT, ("f", f"{TORCH}/_inductor/compile_fx.py")],
            Does.COMPILES,
        ),
        (
            [
                ("call", "/tmp/torchinductor_me/ab/cab.py"),
                ("__call__", f"{TORCH}/_inductor/output_code.py"),
                ("runtime_wrapper", f"{TORCH}/_functorch/_aot_autograd/runtime_wrappers.py"),
                ("_fn", f"{TORCH}/_dynamo/eval_frame.py"),
            ],
            Does.OTHER,
        ),
        ([("vmap_impl", f"{TORCH}/_functorch/vmap.py")], Does.OTHER),
        ([("_load", f"{TORCH}/serialization.py")], Does.OTHER),
        ([("_save", f"{TORCH}/serialization.py")], Does.SAVES),
        ([("load_file", "/usr/lib/python3/dist-packages/safetensors/torch.py")], Does.OTHER),
        ([("__getitem__", "/v/site-packages/h5py/_hl/dataset.py")], Does.OTHER),
        ([("create_dataset", "/v/site-packages/h5py/_hl/group.py")], Does.SAVES),
        (
            [("__call__", f"{TORCH}/_ops.py"), ("dispatch", f"{TORCH}/distributed/tensor/_dispatch.py")],
            Does.OTHER,
        ),
        (
            [("wait_tensor", f"{TORCH}/distributed/_functional_collectives.py")],
            Does.WAITS,
        ),
        ([("shutdown", "/usr/lib/python3.12/concurrent/futures/thread.py")], Does.OTHER),
        ([("shutdown", "/v/site-packages/horovod/common/basics.py")], Does.LEAVES),
        ([("interaction", "/usr/lib/python3.12/pdb.py")], Does.DEBUGS),
        ([("interaction", "/opt/lib/python3.14t/pdb.py")], Does.DEBUGS),
        ([("read", "/home/me/pdb/reader.py")], Does.OTHER),
        ([("shutdown", "/home/me/pool.py")], Does.OTHER),
    ],
)  # fmt: skip
def test_a_file_of_a_library_says_what_a_rank_does_only_by_what_runs_there(
    frames: list[tuple[str, str]], meant: Does
) -> None:
    assert does(*frames) is meant


PACKAGE = ("<module>", "/v/site-packages/package/train.py")
REDUCE = ("all_reduce", f"{TORCH}/distributed/distributed_c10d.py")
RUN = [
    IMPORT,
    ("<module>", "/v/site-packages/package/__main__.py"),
    ("_run_code", "<frozen runpy>"),
]


@pytest.mark.parametrize(
    ("frames", "meant"),
    [
        ([REDUCE, PACKAGE], Does.WAITS),
        ([("forward", f"{TORCH}/nn/modules/linear.py")] * 8 + [PACKAGE], Does.OTHER),
        ([PACKAGE], Does.IMPORTS),
        ([IMPORT, *[("<module>", f"{TORCH}/_inductor/cpp_builder.py")] * 9], Does.IMPORTS),
        ([("<module>", f"{TORCH}/nn/__init__.py"), IMPORT, PACKAGE], Does.IMPORTS),
        (
            [("f", REDUCE[1]), ("<module>", f"{TORCH}/distributed/tensor/__init__.py"), IMPORT, PACKAGE],
            Does.IMPORTS,
        ),
    ],
)  # fmt: skip
def test_a_program_without_a_file_of_its_own_may_train_inside_an_import(
    frames: list[tuple[str, str]], meant: Does
) -> None:
    assert what_it_does(call_with([*frames, *RUN])) is meant


def test_a_module_of_the_scripts_with_a_librarys_name_is_no_lock() -> None:
    assert not waits_for_lock(call_with([("take", "/home/me/queue.py")]).frames)
