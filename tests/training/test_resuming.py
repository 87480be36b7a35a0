"""A job that goes on with other ranks goes on as if nothing had happened; so does its evaluation."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Starter

pytestmark = pytest.mark.torch_ranks

WHOLE = 30
"""Steps of the whole job: three epochs of ten."""


def test_two_one_three_ranks_are_one_job(starter: Starter, scripts: Path, tmp_path: Path) -> None:
    script = scripts / "resuming.py"
    (alone,) = starter.ranks(script, 1, str(tmp_path / "alone"), str(WHOLE))
    folder = str(tmp_path / "kept")
    two = starter.ranks(script, 2, folder, "7")
    (one,) = starter.ranks(script, 1, folder, "15")
    three = starter.ranks(script, 3, folder, str(WHOLE))

    assert [said["resumed"] for said in (*two, one, *three)] == [0, 0, 7, 15, 15, 15]
    assert two[0]["place"] == {"epoch": 0, "trained": 84, "samples": 120}
    assert one["place"] == {"epoch": 1, "trained": 60, "samples": 120}
    assert three[0]["place"] == {"epoch": 3, "trained": 0, "samples": 120}
    assert [said["path"] for said in (two[0], one, three[0])] == [
        "step-000000007.pt",
        "step-000000015.pt",
        "step-000000030.pt",
    ]
    assert sorted(path.name for path in Path(folder).iterdir()) == [
        "step-000000015.pt",
        "step-000000030.pt",
    ]

    read = together(two) + together([one]) + together(three)
    assert read == together([alone])
    for said in three:
        assert said["lr"] == pytest.approx(alone["lr"], rel=1e-12)
        assert said["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=2e-6)
    assert two[0]["weights"] == two[1]["weights"]

    assert one["python"] != two[0]["next"]  # two ranks became one: nobody's numbers are repeated
    assert len({said["python"] for said in three}) == 3
    exact_over_any_world(alone, [*two, one, *three])


def exact_over_any_world(alone: dict[str, Any], others: list[dict[str, Any]]) -> None:
    assert alone["found"]["samples"] == 103
    assert 0 < alone["found"]["right"] < 103
    assert alone["few"]["samples"] == 5
    for said in others:
        assert said["found"] == alone["found"]  # loss and all, to the last digit
        assert said["few"] == alone["few"]
        assert said["mode"] == alone["mode"]


def together(ranks: list[dict[str, Any]]) -> list[list[float]]:
    """Return what all ranks read in each step, by the first number of each sample."""
    return [
        sorted(chain.from_iterable(parts))
        for parts in zip(*(said["order"] for said in ranks), strict=True)
    ]
