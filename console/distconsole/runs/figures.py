"""The figures of hosts, GPUs and steps, with their names in conditions, tables and gauges, each declared once."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from distconsole.expression.fields import Field, Value
from distconsole.expression.units import UNITS, Measure


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        field: Its name in events and in exported tables.
        unit: Of its value.
        name: In conditions; empty if they do not have it.
        gauge: In Prometheus, behind the prefix of its subject, in the base unit; empty if not exported.
        bare: The unit of a plain number beside it in a condition; empty for ``unit``.
        share: The field of conditions that replaces it beside a share.
        label: The heading of its column; empty for ``name``.
        together: How the figures of several GPUs make one: ``mean``, ``sum`` or ``max``; empty if they do not.
        curve: Whether trackers and TensorBoard get it as a curve.
    """

    field: str
    about: str
    unit: str = ""
    name: str = ""
    gauge: str = ""
    bare: str = ""
    share: str = ""
    label: str = ""
    together: str = ""
    curve: bool = False

    @property
    def heading(self) -> str:
        return self.label or self.name

    def value(self, source: object) -> Value:
        """Return its value in a sample or a rank's view; None if unknown."""
        value: Value = getattr(source, self.field, None)
        return (
            value
            if value is not None
            else getattr(getattr(source, "window", None), self.field, None)
        )

    def base_value(self, source: object) -> float | None:
        """Return it in seconds, bytes, Hz, as a ratio."""
        value = self.value(source)
        if not isinstance(value, int | float):
            return None
        return value / 100 if self.unit == "%" else value * UNITS[self.unit].factor

    def joined(self, sources: Iterable[object]) -> float | None:
        """Return the figure of several GPUs as of one; None if it is known of none."""
        values = [value for each in sources if isinstance(value := self.value(each), int | float)]
        if not values:
            return None
        if self.together == "mean":
            return fmean(values)
        return sum(values) if self.together == "sum" else max(values)

    def condition_field(self, attribute: str) -> Field[Any]:
        """Return the field for conditions on rows that have its source as ``attribute``."""
        twins = {Measure.SHARE: self.share} if self.share else {}
        return Field(
            self.name,
            lambda row: self.value(getattr(row, attribute)),
            self.about,
            unit=self.unit,
            bare=self.bare,
            twins=twins,
        )


NODE_FIGURES = (
    Figure("cpu", "use of the host's CPUs", "%", "cpu", "cpu_ratio", label="cpu%"),
    Figure(
        "mem_used", "memory used on the host; beside a share: ram.share", "B", "ram",
        "memory_used_bytes", "GiB", "ram.share",
    ),
    Figure("mem_total", "total memory of the host", "B", "ram.total", "memory_total_bytes", "GiB"),
    Figure("net_rx_s", "the host receives", "B/s", "net.in", "network_receive_bytes_per_second", "MB/s", label="net in/s"),
    Figure("net_tx_s", "the host sends", "B/s", "net.out", "network_transmit_bytes_per_second", "MB/s", label="out/s"),
    Figure("disk_read_s", "the host reads", "B/s", "disk.read", "disk_read_bytes_per_second", "MB/s"),
    Figure(
        "disk_write_s", "the host writes", "B/s", "disk.write", "disk_written_bytes_per_second", "MB/s",
        label="disk w/s",
    ),
    Figure("load1", "the host's load over a minute", "", "load", "load1"),
    Figure("swap_in_s", "read back from swap", "B/s", "swap.in", bare="MB/s"),
    Figure("disk_wait", "time in which something waited for a disk", "%", "disk.wait"),
    Figure("net_errors_s", "errors and drops of its interfaces, a second", "", "net.errors"),
    Figure("net_resent_s", "TCP segments sent again, a second", "", "net.resent"),
    Figure("cpu_mhz", "highest clock of its processors", "MHz"),
)  # fmt: skip

GPU_FIGURES = (
    Figure("util", "GPU use", "%", "util", "utilization_ratio", label="util%", together="mean", curve=True),
    Figure(
        "mem_used", "memory used on the GPU; beside a share: mem.share", "B", "mem",
        "memory_used_bytes", "GiB", "mem.share", label="memory", together="sum", curve=True,
    ),
    Figure("mem_total", "total memory of the GPU", "B", "mem.total", "memory_total_bytes", "GiB", together="sum"),
    Figure("temp_c", "the GPU's temperature", "C", "temp", "temperature_celsius", together="max"),
    Figure("power_w", "the GPU's power", "W", "power", "power_watts", together="sum", curve=True),
    Figure("sm_clock_mhz", "the GPU's own clock", "MHz", "clock", "sm_clock_hertz", label="MHz", together="mean"),
    Figure("mem_clock_mhz", "its memory's clock", "MHz", "mem_clock", "memory_clock_hertz"),
    Figure("ecc_uncorrected", "memory errors that were not corrected", "", "ecc", "ecc_uncorrected", together="sum"),
    Figure("pcie_rx_s", "received over PCIe", "B/s"),
    Figure("pcie_tx_s", "sent over PCIe", "B/s"),
    Figure("nvlink_rx_s", "received over NVLink", "B/s"),
    Figure("nvlink_tx_s", "sent over NVLink", "B/s"),
)  # fmt: skip

STEP_FIGURES = (
    Figure("step_ms_mean", "mean step, last window", "ms", "step_ms", "step_seconds"),
    Figure(
        "step_ms_p95", "95th percentile of steps, last window", "ms", "step_ms.p95", "step_p95_seconds"
    ),
    Figure("step_ms_run", "mean step of the whole run", "ms", "step_ms.run"),
    Figure(
        "step_ms_p95_run", "the windows' 95th percentiles, averaged over the whole run", "ms",
        "step_ms.p95_run",
    ),
    Figure(
        "data_ms", "waiting for data, a step; beside a share: data.share", "ms", "data_ms",
        "data_seconds", share="data.share",
    ),
    Figure("forward_ms", "forward, a step", "ms", "forward_ms", "forward_seconds"),
    Figure("backward_ms", "backward, a step", "ms", "backward_ms", "backward_seconds"),
    Figure("optimizer_ms", "optimizer, a step", "ms", "optimizer_ms", "optimizer_seconds"),
)  # fmt: skip

NODE = {figure.name: figure for figure in NODE_FIGURES if figure.name}
GPU = {figure.name: figure for figure in GPU_FIGURES if figure.name}
"""By their names in conditions."""
PARTS = {
    "data_ms": "data wait",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "optimizer_ms": "optimizer",
}
"""The parts of a step, as people call them."""
RANK_GPU_FIGURES = tuple(GPU[name] for name in ("util", "mem", "mem.total", "temp", "power"))
"""Those that conditions on ranks have of a rank's GPU."""


def condition_fields(figures: tuple[Figure, ...], attribute: str) -> list[Field[Any]]:
    return [figure.condition_field(attribute) for figure in figures if figure.name]


LESS = re.compile(r"loss|err|perplex|ppl")
"""A name with one of these is better when it is less, whatever else it has."""
MORE = re.compile(
    r"acc|(?:^|[^a-z0-9])(?:auc|auroc|bleu|f1|map|m?iou|precision|psnr|r2|recall|reward|rouge|score|ssim|top[-_]?[15])"
    r"(?:[^a-z0-9]|$)"
)


def better_way(name: str) -> str:
    """Return ``less`` or ``more``, whichever is better for a metric of this name; empty if unknown (a learning rate)."""
    lowered = name.lower()
    return "less" if LESS.search(lowered) else "more" if MORE.search(lowered) else ""


def more_is_better(name: str) -> bool:
    return better_way(name) == "more"


def best_word(name: str) -> str:
    """Return what ``take_best`` keeps of a metric of this name."""
    return "best" if better_way(name) else "lowest"


def take_best(best: dict[str, float], name: str, value: float) -> None:
    """Put ``value`` into ``best`` if it is better than the present value; NaN is left out."""
    if math.isfinite(value):
        better = max if more_is_better(name) else min
        best[name] = better(best.get(name, value), value)
