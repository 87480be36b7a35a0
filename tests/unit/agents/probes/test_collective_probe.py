"""The collective job over loopback, with real torch ranks; wrong values are found by their bits."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent import probes
from distconsole_agent.probes.collectives import values as collective_values
from distconsole_agent.probes.errors import ProbeError
from fakes.shims import wait_until

ALL = [
    *(("all_reduce", dtype) for dtype in ("float32", "float64", "float16", "bfloat16", "int64")),
    *((op, "float32") for op in ("all_reduce_max", "broadcast", "all_gather", "reduce_scatter")),
    *((op, "int64") for op in ("all_to_all", "reduce", "send_recv", "reduce_scatter")),
]


def run(
    ranks: list[int], world: int, timeout: float = 30.0, seconds: float = 100.0, **more: str
) -> list[Any]:
    port = probes.run("port.free", {"address": "127.0.0.1"}, 5.0)["port"]
    job = {
        "seed": 7,
        "timeout_seconds": timeout,
        "cases": [
            {"op": op, "dtype": dtype, "elements": 1003, "iterations": 1} for op, dtype in ALL
        ],
    }
    args = {
        "ranks": ranks,
        "world_size": world,
        "master_address": "127.0.0.1",
        "master_port": port,
        "interface": "lo",
        "backend": "gloo",
        "job": job,
        "python": sys.executable,
        **more,
    }
    entries: list[Any] = probes.run("coll", args, seconds)["ranks"]
    return entries


@pytest.mark.torch_ranks
def test_two_ranks_agree_to_the_last_bit() -> None:
    entries = run([0, 1], 2)
    for rank, entry in enumerate(entries):
        assert (entry["rank"], entry["exit_code"]) == (rank, 0), entry["error"]
        done = {(said["case"], said["dtype"]): said for said in entry["said"] if "wrong" in said}
        assert set(done) == set(ALL)
        assert {said["wrong"] for said in done.values()} == {0}
        group = next(said["group"] for said in entry["said"] if "group" in said)
        assert (group["rank"], group["world_size"]) == (rank, 2)


@pytest.mark.torch_ranks
def test_a_rank_that_waits_in_vain_ends_at_its_own_timeout() -> None:
    (entry,) = run([0], 2, timeout=2.0)
    assert entry["exit_code"] not in (0, None)
    assert entry["said"][-1]["stage"] == "imported torch"
    assert entry["error"]


@pytest.mark.torch_ranks
def test_a_rank_that_hangs_is_killed_at_the_deadline() -> None:
    (entry,) = run([0], 2, timeout=600.0, seconds=8.0)
    assert entry["exit_code"] is None


def test_an_interpreter_that_is_missing_is_a_rank_that_failed() -> None:
    args = {
        "ranks": [0],
        "world_size": 1,
        "master_address": "127.0.0.1",
        "master_port": 1,
        "python": "/no/such/python",
    }
    (entry,) = probes.run("coll", args, 5.0)["ranks"]
    assert entry["exit_code"] == 127
    assert "/no/such/python" in entry["error"][0]


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


@pytest.mark.torch_ranks
def test_a_rank_that_failed_takes_the_others_of_its_node_with_it(tmp_path: Path) -> None:
    began = time.monotonic()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('gone')\n")
    setup = f"[ $RANK != 1 ] || export PYTHONPATH={tmp_path}"
    first, second = run([0, 1], 2, timeout=80.0, setup=setup)
    assert (first["exit_code"], second["exit_code"]) == (None, 1)
    assert "gone" in second["error"][-1]
    assert time.monotonic() - began < 40


@pytest.mark.torch_ranks
def test_ranks_are_stopped_by_their_token(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run, [0], 2, timeout=80.0, token="ours", setup=f"touch {begun}")
        wait_until("a rank", begun.exists)
        assert probes.run("coll.stop", {"token": "ours"}, 5.0)["stopping"]
        (entry,) = running.result(timeout=30)
    assert entry["exit_code"] is None
    assert not probes.run("coll.stop", {"token": "ours"}, 5.0)["stopping"]


def test_ranks_that_were_stopped_before_they_began_do_not_begin(tmp_path: Path) -> None:
    assert not probes.run("coll.stop", {"token": "early"}, 5.0)["stopping"]
    with pytest.raises(ProbeError, match="given up before it began"):
        run([0], 2, timeout=1.0, seconds=2.0, token="early", setup=f"touch {tmp_path / 'begun'}")
    assert not (tmp_path / "begun").exists()
