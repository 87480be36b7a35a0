"""Which world a spec plans, and what a rank's own words about its world become."""

from __future__ import annotations

from typing import Any

import pytest

from distconsole_agent.journal.rank_states import world_of
from distconsole_training.records import ALONE, PHASE, PHASES
from fakes.specs import run_spec

NAN = float("nan")


@pytest.mark.parametrize(
    ("spec", "planned"),
    [
        ({"launcher": "torch", "world_size": 4, "env": {"WORLD_SIZE": "4"}}, 4),
        ({"launcher": "torchrun", "world_size": 4, "env": {}}, 4),
        ({"launcher": "mpi", "world_size": 4}, 4),
        ({"launcher": "slurm", "world_size": 4, "env": {"WORLD_SIZE": "4"}}, 4),
        ({"launcher": "slurm", "world_size": 2, "env": {"NODE_RANK": "0"}}, None),
        ({"launcher": "single", "world_size": 2, "env": {"NODE_RANK": "0"}}, None),
        ({"launcher": "torchrun", "world_size": 4, "min_nodes": 1}, None),
        ({}, None),
    ],
)
def test_a_world_is_planned_where_neither_script_nor_engine_makes_it(
    spec: dict[str, Any], planned: int | None
) -> None:
    assert run_spec(**spec).planned_world == planned


def record(phase: str, samples: int = 0, value: float = NAN, flags: int = 0) -> Any:
    return (1, 0, 5, PHASE, flags, PHASES.index(phase), samples, *[NAN] * 5, value)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (record("rendezvous", 4, 3.0), {"world": 4, "group_rank": 3, "planned": 2}),
        (record("init_process_group"), {"world": None, "group_rank": None, "planned": 2}),
        (
            record("rendezvous", 2**32 - 1, 1e300),
            {"world": None, "group_rank": None, "planned": 2},
        ),
        (record("rendezvous", 2, -5.0), {"world": 2, "group_rank": None, "planned": 2}),
        (record("first_step", flags=ALONE), {"alone": True}),
        (record("first_step"), {}),
        (record("import_torch", 4, 1.0, ALONE), {}),
    ],
)
def test_what_a_rank_says_of_its_world_stays_within_bounds(
    said: Any, meant: dict[str, Any]
) -> None:
    assert world_of(said, 2) == meant
