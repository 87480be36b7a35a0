"""A group of GPUs on the cluster screen, as if it was one. It draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from distconsole.model.run_events import GpuSample
from distconsole.runs.conditions.load_fields import LoadRow

Number = TypeVar("Number", int, float)


def head_of(name: str, rows: Sequence[LoadRow]) -> GpuSample:
    """Return a group as if it was one GPU: means of use, sums of memory and power, the hottest."""
    gpus = [row.gpu for row in rows if row.gpu is not None]
    return replace(
        gpus[0],
        host=name,
        gpu=len(gpus),
        name="",
        util=_mean([gpu.util for gpu in gpus]),
        mem_used=_sum([gpu.mem_used for gpu in gpus]),
        mem_total=_sum([gpu.mem_total for gpu in gpus]),
        temp_c=max((gpu.temp_c for gpu in gpus if gpu.temp_c is not None), default=None),
        power_w=_sum([gpu.power_w for gpu in gpus]),
        sm_clock_mhz=_mean([gpu.sm_clock_mhz for gpu in gpus]),
        ecc_uncorrected=_sum([gpu.ecc_uncorrected for gpu in gpus]),
        nvlink_rx_s=None,
        mig=None,
        throttle=(),
        strangers=(),
        rank=UNSET,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
