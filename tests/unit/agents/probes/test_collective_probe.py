"""The collective job over loopback, with real torch ranks; wrong values are found by their bits."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from distconsole_agent.probes.collectives import values as collective_values
from distconsole_agent.probes.scripts import worker_script

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
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-c", worker_script(), "100", "gloo", json.dumps(job)]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
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
