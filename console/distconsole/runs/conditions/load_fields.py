"""What conditions may ask of hosts and their GPUs: rows and a table of fields. It judges nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET

from distconsole.expression.fields import Field, Fields, Kind, Value
from distconsole.expression.units import Measure
from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.runs.conditions.rank_fields import percent


@dataclass(frozen=True, slots=True)
class LoadRow:
    """A GPU and its host; of a host without one, the host alone.

    Attributes:
        host: Its name.
        node: The host's newest sample.
        gpu: The GPU's newest sample.
        connected: Whether the host answers.
        age_seconds: How old that is, as far as it is known.
        me: Names under which the operator is known on hosts.
    """

    host: str
    node: NodeSample | None = None
    gpu: GpuSample | None = None
    connected: bool = True
    age_seconds: float | None = None
    me: tuple[str, ...] = ()

    @property
    def strangers(self) -> list[list[str]]:
        """Who else uses the GPU: pid, user, command."""
        return [each.split(" ", 2) for each in self.gpu.strangers] if self.gpu else []

    @property
    def users(self) -> tuple[str, ...] | None:
        """Who uses the GPU; None without one."""
        if self.gpu is None:
            return None
        ours = self.me[:1] if self.gpu.rank is not UNSET else ()
        return (*ours, *(each[1] for each in self.strangers if len(each) > 1))


def load_rows(
    hosts: Iterable[str],
    nodes: dict[str, NodeSample],
    gpus: Iterable[GpuSample],
    me: tuple[str, ...] = (),
) -> list[LoadRow]:
    """Return the rows of ``hosts`` that all are connected; every host has one at least."""
    of_host: dict[str, list[GpuSample]] = {}
    for gpu in gpus:
        of_host.setdefault(gpu.host, []).append(gpu)
    return [
        LoadRow(host, nodes.get(host), gpu, me=me)
        for host in dict.fromkeys((*hosts, *of_host))
        for gpu in of_host.get(host, [None])
    ]


def _node(name: str) -> _Getter:
    return _Getter("node", name)


def _gpu(name: str) -> _Getter:
    return _Getter("gpu", name)


@dataclass(frozen=True, slots=True)
class _Getter:
    """Reads one figure of the sample of a host or of a GPU, if there is one and it says it."""

    sample: str
    name: str

    def __call__(self, row: LoadRow) -> Value:
        found = getattr(getattr(row, self.sample), self.name, None)
        return None if found is UNSET else found


def _sum_of(row: LoadRow, *names: str) -> float | None:
    values = [getattr(row.gpu, name, None) for name in names]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


TEXT, FLAG = Kind.TEXT, Kind.FLAG
OF_MEMORY = {Measure.SHARE: "mem.share"}
OF_HOST_MEMORY = {Measure.SHARE: "ram.share"}

LOAD_FIELDS: Fields[LoadRow] = Fields(
    "hosts and GPUs",
    (
        Field("host", lambda row: row.host, "its name", TEXT),
        Field("connected", lambda row: row.connected, "the host answers", FLAG),
        Field("age", lambda row: row.age_seconds, "since the host was heard of", unit="s"),
        Field("cpu", _node("cpu"), "use of the host's CPUs", unit="%"),
        Field("cpus", _node("cpus"), "how many CPUs the host has"),
        Field("load", _node("load1"), "the host's load over a minute"),
        Field(
            "ram",
            _node("mem_used"),
            "memory used on the host; beside a share: ram.share",
            unit="B",
            bare="GiB",
            twins=OF_HOST_MEMORY,
        ),
        Field("ram.total", _node("mem_total"), "all of it", unit="B", bare="GiB"),
        Field(
            "ram.share",
            lambda row: percent(_node("mem_used")(row), _node("mem_total")(row)),  # type: ignore[arg-type]
            "part of it that is used",
            unit="%",
        ),
        Field("net.in", _node("net_rx_s"), "the host receives", unit="B/s", bare="MB/s"),
        Field("net.out", _node("net_tx_s"), "the host sends", unit="B/s", bare="MB/s"),
        Field("disk.read", _node("disk_read_s"), "the host reads", unit="B/s", bare="MB/s"),
        Field("disk.write", _node("disk_write_s"), "the host writes", unit="B/s", bare="MB/s"),
        Field("gpu", _gpu("gpu"), "the GPU's number"),
        Field("name", _gpu("name"), "the GPU's model", TEXT),
        Field("uuid", _gpu("uuid"), "the GPU's own name", TEXT),
        Field("mig", _gpu("mig"), "the slice of the GPU", TEXT),
        Field("util", _gpu("util"), "use of the GPU", unit="%"),
        Field(
            "mem",
            _gpu("mem_used"),
            "memory used on the GPU; beside a share: mem.share",
            unit="B",
            bare="GiB",
            twins=OF_MEMORY,
        ),
        Field("mem.total", _gpu("mem_total"), "all of it", unit="B", bare="GiB"),
        Field(
            "mem.share",
            lambda row: percent(_gpu("mem_used")(row), _gpu("mem_total")(row)),  # type: ignore[arg-type]
            "part of it that is used",
            unit="%",
        ),
        Field("temp", _gpu("temp_c"), "the GPU's temperature", unit="C"),
        Field("power", _gpu("power_w"), "the GPU's power", unit="W"),
        Field("clock", _gpu("sm_clock_mhz"), "the GPU's own clock", unit="MHz"),
        Field("mem_clock", _gpu("mem_clock_mhz"), "its memory's clock", unit="MHz"),
        Field("throttle", _gpu("throttle"), "why the GPU is slowed down", TEXT),
        Field(
            "throttled",
            lambda row: None if row.gpu is None else bool(row.gpu.throttle),
            "it is",
            FLAG,
        ),
        Field("ecc", _gpu("ecc_uncorrected"), "memory errors that were not corrected"),
        Field(
            "pcie",
            lambda row: _sum_of(row, "pcie_rx_s", "pcie_tx_s"),
            "over PCIe, both ways",
            unit="B/s",
            bare="MB/s",
        ),
        Field(
            "nvlink",
            lambda row: _sum_of(row, "nvlink_rx_s", "nvlink_tx_s"),
            "over NVLink, both ways",
            unit="B/s",
            bare="MB/s",
        ),
        Field("rank", _gpu("rank"), "the rank of ours that uses the GPU"),
        Field("user", lambda row: row.users, "who uses the GPU; several may", TEXT),
        Field(
            "strangers",
            lambda row: None if row.gpu is None else len(row.gpu.strangers),
            "processes on the GPU that are no ranks of ours",
        ),
        Field(
            "command",
            lambda row: (
                None
                if row.gpu is None
                else tuple(each[2] for each in row.strangers if len(each) > 2)
            ),
            "what they run",
            TEXT,
        ),
        Field("me", lambda row: row.me, "you, beside user: user!=me", TEXT),
    ),
)
"""A host's fields are those of each of its GPUs, too."""
