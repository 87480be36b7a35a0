"""The keys of ``[expect]`` and what their values mean: versions, sizes, limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from distconsole.config.schema import Key, Kind, plain
from distconsole.model.expectation import CollectiveExpectation, Expectation
from distconsole.model.requests import CollectiveName

PACKAGES, COLLECTIVES = "packages", "collectives"

EXPECT_KEYS: dict[str, Key] = {
    **dict.fromkeys(
        ("python", "torch", "cuda", "nccl", "horovod", "mpi", "driver"), plain(Kind.VERSION)
    ),
    "gpus": plain(Kind.COUNT),
    "gpu_model": plain(Kind.TEXT),
    "gpu_memory": plain(Kind.SIZE),
    "cpus": plain(Kind.POSITIVE),
    "memory": plain(Kind.SIZE),
    "shm": plain(Kind.SIZE),
    "disk_free": plain(Kind.SIZE),
    "nofile": plain(Kind.LIMIT),
    "memlock": plain(Kind.LIMIT),
    "pair_gbit_s": plain(Kind.NUMBER),
    "rtt_us": plain(Kind.NUMBER),
}
"""Of ``[expect]``, ``[clusters.NAME.expect]`` and ``[hosts.NAME.expect]``, beside the two tables."""

PACKAGE_KEY = plain(Kind.VERSION)

COLLECTIVE_KEYS: dict[str, Key] = {
    "op": plain(Kind.TEXT, choices=tuple(name.value for name in CollectiveName)),
    "bytes": plain(Kind.SIZE),
    "launcher": plain(Kind.TEXT, choices=("torch", "horovod", "mpi")),
    "busbw_gbs": plain(Kind.NUMBER),
    "time_us": plain(Kind.NUMBER),
}
"""Of each of ``[[expect.collectives]]``."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)


def size_of(value: object) -> float | None:
    """Return the bytes of ``8GiB``, ``64K`` or a number; None if it is no size. All are powers of 1024."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if value >= 0 else None
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    power = " KMGT".index(found[2].upper() or " ")
    return float(found[1]) * float(1024**power)


def number_of(value: object) -> float | None:
    """Return a number above 0; None if it is none."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if real and isinstance(value, int | float) and 0 < value < 1e12 else None


def limit_of(value: object) -> float | None:
    """As ``size_of``; ``unlimited`` is infinity."""
    return math.inf if value == "unlimited" else size_of(value)


def specifier_of(value: object) -> str | None:
    """Return a version specifier; None if it is none. A bare version means all that begin with it."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - rarely needed

    if not isinstance(value, str) or not value.strip():
        return None
    text = value.strip()
    tries = (f"=={text.removesuffix('.*')}.*", f"=={text}") if text[0].isdigit() else (text,)
    for each in tries:
        with suppress(InvalidSpecifier):
            SpecifierSet(each)
            return each
    return None


def expectation(
    values: Mapping[str, Any],
    packages: Mapping[str, str],
    collectives: tuple[Mapping[str, Any], ...],
) -> Expectation:
    each = tuple(
        CollectiveExpectation(**{**entry, "bytes": int(entry["bytes"])})
        if "bytes" in entry
        else CollectiveExpectation(**entry)
        for entry in collectives
    )
    return Expectation(**values, packages=dict(packages), collectives=each)
