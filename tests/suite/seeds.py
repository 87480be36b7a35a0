"""Seeds of a test that draws its case by chance: some are always tried, the others with the permutations."""

from typing import Any

import pytest


def seeds(count: int, always: int = 1) -> list[Any]:
    """Return the first ``count`` seeds, of which those behind the first ``always`` are marked campaign."""
    later = [pytest.param(seed, marks=pytest.mark.campaign) for seed in range(always, count)]
    return [*range(always), *later]
