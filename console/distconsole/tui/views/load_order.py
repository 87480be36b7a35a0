"""Which hosts and GPUs the cluster screen shows, in which order and groups. It draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from distconsole.expression import Condition, Field, Value
from distconsole.model.events import GpuSample
from distconsole.monitor.load_fields import LoadRow

Number = TypeVar("Number", int, float)

UNKNOWN = "-"
"""What a group is called whose rows do not say."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What is asked of the cluster screen.

    Attributes:
        condition: Only what matches; None shows all.
        by: The field that is sorted by; None leaves hosts and GPUs in their order.
        downwards: The largest first.
        group: The field that GPUs are grouped by; None groups nothing.
    """

    condition: Condition[LoadRow] | None = None
    by: Field[LoadRow] | None = None
    downwards: bool = False
    group: Field[LoadRow] | None = None

    @property
    def words(self) -> str:
        """It in words; nothing where everything is shown as it comes."""
        parts = []
        if self.condition is not None:
            parts.append(f"filter {self.condition.text}")
        if self.by is not None:
            parts.append(f"by {self.by.name} {'▾' if self.downwards else '▴'}")
        if self.group is not None:
            parts.append(f"grouped by {self.group.name}")
        return "  ".join(parts)

    def shown(self, rows: Sequence[LoadRow]) -> list[LoadRow]:
        """Return those of ``rows`` that match, in order; what is unknown stands last."""
        left = list(rows) if self.condition is None else self.condition.matching(rows)
        by = self.by
        if by is None:
            return left
        known = [row for row in left if _place(by.get(row)) is not None]
        unknown = [row for row in left if _place(by.get(row)) is None]
        known.sort(key=lambda row: _place(by.get(row)) or (0.0, ""), reverse=self.downwards)
        return known + unknown

    def grouped(self, rows: Sequence[LoadRow]) -> list[tuple[str, list[LoadRow]]]:
        """Return the GPUs of ``rows`` by group, groups in the order of their first; one without a name if not asked."""
        gpus = [row for row in rows if row.gpu is not None]
        if self.group is None:
            return [("", gpus)]
        groups: dict[str, list[LoadRow]] = {}
        for row in gpus:
            groups.setdefault(_group_name(self.group.get(row)), []).append(row)
        return list(groups.items())


def _place(value: Value) -> tuple[float, str] | None:
    match value:
        case None:
            return None
        case bool() | int() | float():
            return float(value), ""
        case tuple():
            return 0.0, ",".join(value)
        case str():
            return 0.0, value


def _group_name(value: Value) -> str:
    match value:
        case None | () | "":
            return UNKNOWN
        case tuple():
            return ",".join(dict.fromkeys(value))
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


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
