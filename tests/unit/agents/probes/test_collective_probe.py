"""The collective job over loopback, with real torch ranks; wrong values are found by their bits.
What a rank of a collective job computes, with real Open MPI where one is needed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distconsole_agent.probes.collectives import values as collective_values
from distconsole_agent.probes.collectives.by_torch import TensorValues
from distconsole_agent.probes.collectives.values import (
    Case,
    PreparedCollective,
    cases_of,
    compute_expected,
    iterations_for,
    measure,
)
from distconsole_agent.probes.collectives.worker import run_cases
from distconsole_agent.probes.scripts import worker_script
from suite.programs import free_port, run_to_end

ALL = [
    *(("all_reduce", dtype) for dtype in ("float32", "float64", "float16", "bfloat16", "int64")),
    *((op, "float32") for op in ("all_reduce_max", "broadcast", "all_gather", "reduce_scatter")),
    *((op, "int64") for op in ("all_to_all", "reduce", "send_recv", "reduce_scatter")),
]


def run(ranks: list[int], world: int, timeout: float = 30.0) -> list[dict[str, Any]]:
    """Run some ranks of a world over loopback; return of each its exit code, what it said and its errors."""
    job = {
        "seed": 7,
        "timeout_seconds": timeout,
        "cases": [
            {"op": op, "dtype": dtype, "elements": 1003, "iterations": 1} for op, dtype in ALL
        ],
    }
    words = [sys.executable, "-c", worker_script(), "100", "gloo", json.dumps(job)]
    port = str(free_port())
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            words,
            env={
                **os.environ,
                **place,
                "WORLD_SIZE": str(world),
                "RANK": str(n),
                "LOCAL_RANK": str(n),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in ranks
    ]
    ended = []
    for rank in started:
        out, error = rank.communicate(timeout=100)
        lines = (line.partition("distconsole-rank ") for line in out.splitlines())
        said = [json.loads(each) for _, mark, each in lines if mark]
        ended.append({"exit_code": rank.returncode, "said": said, "error": error})
    return ended


@pytest.mark.torch_ranks
def test_two_ranks_agree_to_the_last_bit() -> None:
    for rank, entry in enumerate(run([0, 1], 2)):
        assert entry["exit_code"] == 0, entry["error"]
        done = {(said["case"], said["dtype"]): said for said in entry["said"] if "wrong" in said}
        assert set(done) == set(ALL)
        assert {said["wrong"] for said in done.values()} == {0}
        group = next(said["group"] for said in entry["said"] if "group" in said)
        assert (group["rank"], group["world_size"]) == (rank, 2)


@pytest.mark.torch_ranks
def test_a_rank_that_waits_in_vain_ends_at_its_own_timeout() -> None:
    (entry,) = run([0], 2, timeout=2.0)
    assert entry["exit_code"] != 0
    assert entry["said"][-1]["stage"] == "imported torch"
    assert entry["error"]


@pytest.mark.parametrize("world", [2, 3, 8, 64, 256, 1000])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_every_partial_sum_is_exact_in_its_type(dtype: str, world: int) -> None:
    limit = collective_values.limit_of(dtype, world)
    counted = min(world, 256 // max(1, limit - 1)) if dtype == "bfloat16" else world
    assert counted * (limit - 1) <= 1 << collective_values.MANTISSA_BITS[dtype]


def test_inputs_differ_between_ranks_indices_and_seeds() -> None:
    def values(rank: int, seed: int) -> list[int]:
        return [
            int(collective_values.magnitudes(index, rank, seed, 1 << 20)) for index in range(200)
        ]

    assert values(0, 1) == values(0, 1)
    assert sum(a == b for a, b in zip(values(0, 1), values(1, 1), strict=True)) < 5
    assert sum(a == b for a, b in zip(values(0, 1), values(0, 2), strict=True)) < 5
    assert len(set(values(0, 1))) > 190


OPS = (
    *("all_reduce", "all_reduce_max", "broadcast", "reduce", "all_gather", "reduce_scatter"),
    *("all_to_all", "send_recv", "barrier"),
)
JOB = {
    "seed": 11,
    "timeout_seconds": 20,
    "world_size": 2,
    "cases": [
        {"op": op, "dtype": dtype, "elements": 5003, "iterations": 0}
        for dtype in ("float32", "float64", "int64", "bfloat16")
        for op in OPS[:-1]
    ],
    "sweep": {
        "ops": OPS,
        "bytes": [4, 65536],
        "dtype": "float32",
        "case_seconds": 0.001,
        "seconds": 30,
    },
}

OWN_FILE = 'exec "$@" >"$OUT/rank-${OMPI_COMM_WORLD_RANK:-0}"'
"""mpirun puts the pieces of several ranks' lines together as they come."""


def mpi_ranks(folder: Path, *launcher: str, **env: str) -> list[dict[str, Any]]:
    """Run the worker below ``launcher``; return all that its ranks said."""
    words = [sys.executable, "-c", worker_script(), "60", "mpi", json.dumps(JOB)]
    done = run_to_end(
        [*launcher, "sh", "-c", OWN_FILE, "sh", *words],
        env={
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OUT": str(folder),
            **env,
        },
    )
    assert done.returncode == 0, done.stderr
    texts = [path.read_text() for path in sorted(folder.glob("rank-*"))]
    lines = (line.partition("distconsole-rank ") for text in texts for line in text.splitlines())
    return [json.loads(said) for _, mark, said in lines if mark]


def groups(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["group"] for each in said if "group" in each]


@pytest.mark.mpi
def test_mpi_alone_verifies_every_operation_to_the_last_bit(tmp_path: Path) -> None:
    said = mpi_ranks(tmp_path, "mpirun", "-np", "2", "--oversubscribe")
    assert sorted((each["rank"], each["world_size"]) for each in groups(said)) == [(0, 2), (1, 2)]
    done = [each for each in said if "wrong" in each]
    kinds = {(each["case"], each["dtype"]) for each in done}
    assert kinds == {
        *((op, dtype) for op in OPS[:-1] for dtype in ("float32", "float64", "int64")),
        ("barrier", "float32"),
    }
    assert {each["wrong"] for each in done} == {0}
    assert all(each["verified"] for each in done if each["case"] not in ("reduce", "barrier"))
    lacking = {each["dtype"] for each in said if "unsupported" in each}
    assert lacking == {"bfloat16"}
    timed = [each for each in done if each["time_us"]]
    assert {each["case"] for each in timed} == set(OPS)


@pytest.mark.mpi
def test_the_library_of_another_mpi_than_mpiruns_says_size_1(tmp_path: Path) -> None:
    said = mpi_ranks(tmp_path, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    (group,) = groups(said)
    assert (group["rank"], group["world_size"]) == (0, 1)
    assert "/libmpi.so" in group["library"]
    assert not [each for each in said if "case" in each]
    assert said[-1]["stage"] == "done"


class Lying:
    """An engine of two ranks whose sums are wrong at one index; this is rank 1."""

    rank, world = 1, 2

    def __init__(self, torch: Any, values: TensorValues, wrong_at: int | None) -> None:
        self.device = torch.device("cpu")
        self._values, self._wrong_at = values, wrong_at

    def prepare(self, case: Case, tensor: Any) -> PreparedCollective:
        came = compute_expected(self._values, case, self.rank, self.world, 17 * 3).clone()
        if self._wrong_at is not None:
            came[self._wrong_at] += 1
        return PreparedCollective(lambda: None, lambda: came)

    def synchronize(self) -> None:
        """Nothing to wait for."""


@pytest.mark.parametrize(("wrong_at", "wrong"), [(None, 0), (0, 1), (9000, 1)])
def test_one_wrong_value_is_counted_wherever_it_is(wrong_at: int | None, wrong: int) -> None:
    torch = pytest.importorskip("torch")
    values = TensorValues(torch, 2, 7)
    engine = Lying(torch, values, wrong_at)
    for op in ("all_reduce", "send_recv", "broadcast"):
        timed = measure(engine, values, Case(op, "float32", 9001, 0), 3, 0.1)
        assert (timed.wrong, timed.verified) == (wrong, 9001)


def test_parts_for_each_rank_differ_and_so_do_those_of_the_next_case() -> None:
    torch = pytest.importorskip("torch")
    values = TensorValues(torch, 4, 7)
    case = Case("reduce_scatter", "float64", 100, 0)
    parts = [compute_expected(values, case, rank, 4, 17) for rank in range(4)]
    assert all(not torch.equal(parts[0], other) for other in parts[1:])
    assert not torch.equal(parts[0], compute_expected(values, case, 0, 4, 34))
    to_all = Case("all_to_all", "float64", 100, 0)
    assert not torch.equal(
        compute_expected(values, to_all, 0, 4, 0), compute_expected(values, to_all, 1, 4, 0)
    )
    assert compute_expected(values, Case("reduce", "float64", 100, 0), 0, 4, 0) is None
    assert torch.equal(
        compute_expected(values, Case("reduce", "float64", 100, 0), 3, 4, 0),
        sum(values.of(Case("reduce", "float64", 100, 0), rank, 0, 100, 0) for rank in range(4)),
    )


def test_a_sweep_counts_the_larger_buffer_and_repeats_nothing() -> None:
    sweep = {"ops": ["all_gather", "all_reduce", "barrier"], "bytes": [4, 64], "dtype": "int64"}
    cases = cases_of({"cases": [], "sweep": sweep}, 4)
    assert cases == [
        Case("barrier", "int64", 0, None),
        Case("all_gather", "int64", 1, None),
        Case("all_reduce", "int64", 1, None),
        Case("all_gather", "int64", 2, None),
        Case("all_reduce", "int64", 8, None),
    ]


def test_repetitions_fit_their_time_within_bounds() -> None:
    assert iterations_for(0.01, 0.1) == 10
    assert iterations_for(10.0, 0.1) == 3
    assert iterations_for(0.0, 0.1) == 100


def said_by(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line.partition(" ")[2]) for line in capfd.readouterr().out.splitlines()]


def test_an_operation_that_an_engine_lacks_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    def lacks(_engine: object, case: Case, _number: int, _seconds: float) -> Any:
        if case.op == "reduce":
            raise NotImplementedError("Horovod has no reduce")
        return SimpleNamespace(wrong=0, verified=1, seconds=None, iterations=0)

    cases = [
        {"op": op, "dtype": "float32", "elements": 3, "iterations": 0}
        for op in ("reduce", "broadcast")
    ]
    run_cases(SimpleNamespace(world=2), lacks, {"cases": cases}, 0.0)
    told = [each.get("unsupported") for each in said_by(capfd) if "case" in each]
    assert told == ["Horovod has no reduce", None]


def test_a_sweep_begins_no_case_without_time_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    now = [1000.0]

    def slow(_engine: object, case: Case, _number: int, _seconds: float) -> Any:
        now[0] += case.elements / 4
        return SimpleNamespace(wrong=0, verified=1, seconds=1.0, iterations=1)

    engine = SimpleNamespace(world=2, greatest=lambda seconds: seconds + 1.0)
    sweep = {"ops": ["all_reduce"], "bytes": [4, 16, 64], "dtype": "float32", "seconds": 11.0}
    run_cases(engine, slow, {"cases": [], "sweep": sweep}, 996.0, lambda: now[0])
    said = said_by(capfd)
    assert [each["elements"] for each in said if "case" in each] == [1, 4]
    assert said[-1]["left_out"] == [["all_reduce", "float32", 16]]


def test_ranks_that_are_not_all_there_do_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    run_cases(SimpleNamespace(world=1), lambda *_: None, {"cases": [], "world_size": 2}, 0.0)
    assert capfd.readouterr().out == ""
