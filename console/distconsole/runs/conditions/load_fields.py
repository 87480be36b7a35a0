"""Fields of conditions on hosts and their GPUs: rows and a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from distconsole.expression.fields import Field, Fields, Value, ValueKind
from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.runs.conditions.rank_fields import memory_share
from distconsole.runs.figures import GPU_FIGURES, NODE_FIGURES, condition_fields


@dataclass(frozen=True, slots=True)
class LoadRow:
    """A GPU and its host, or a host without one, ``age_seconds`` old; ``me``: the operator's names on hosts."""

    host: str
    node: NodeSample | None = None
    gpu: GpuSample | None = None
    connected: bool = True
    age_seconds: float | None = None
    me: tuple[str, ...] = ()

    @property
    def strangers(self) -> list[list[str]]:
        """Other users of the GPU: pid, user, command."""
        return [each.split(" ", 2) for each in self.gpu.strangers] if self.gpu else []

    @property
    def users(self) -> tuple[str, ...] | None:
        if self.gpu is None:
            return None
        ours = self.me[:1] if self.gpu.rank is not UNSET else ()
        return (*ours, *(each[1] for each in self.strangers if len(each) > 1))

    @property
    def commands(self) -> tuple[str, ...] | None:
        """Other users' commands on the GPU; None without one."""
        if self.gpu is None:
            return None
        return tuple(each[2] for each in self.strangers if len(each) > 2)


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


def _both_ways(name: str, wire: str) -> Field[Any]:
    def get(row: LoadRow) -> Value:
        values = (getattr(row.gpu, f"{name}_{way}_s", None) for way in ("rx", "tx"))
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return Field(name, get, f"over {wire}, both ways", unit="B/s", bare="MB/s")


def _gpu(name: str, about: str, kind: ValueKind = ValueKind.NUMBER) -> Field[Any]:
    def get(row: LoadRow) -> Value:
        value: Value | UnsetType = getattr(row.gpu, name, None)
        return None if value is UNSET else value

    return Field(name, get, about, kind)


TEXT, FLAG = ValueKind.TEXT, ValueKind.FLAG

LOAD_FIELDS: Fields[LoadRow] = Fields(
    "hosts and GPUs",
    (
        Field("host", lambda row: row.host, "its name", TEXT),
        Field("connected", lambda row: row.connected, "the host answers", FLAG),
        Field("age", lambda row: row.age_seconds, "since the host last reported", unit="s"),
        Field("cpus", lambda row: getattr(row.node, "cpus", None), "number of CPUs"),
        *condition_fields(NODE_FIGURES, "node"),
        memory_share("ram.share", "node"),
        _gpu("gpu", "the GPU's number"),
        _gpu("name", "the GPU's model", TEXT),
        _gpu("uuid", "the GPU's own name", TEXT),
        _gpu("mig", "the slice of the GPU", TEXT),
        *condition_fields(GPU_FIGURES, "gpu"),
        memory_share("mem.share", "gpu"),
        _gpu("throttle", "why the GPU is slowed down", TEXT),
        Field(
            "throttled",
            lambda row: None if row.gpu is None else bool(row.gpu.throttle),
            "the GPU is slowed down",
            FLAG,
        ),
        _both_ways("pcie", "PCIe"),
        _both_ways("nvlink", "NVLink"),
        _gpu("rank", "the rank of ours that uses the GPU"),
        Field("user", lambda row: row.users, "users of the GPU", TEXT),
        Field(
            "strangers",
            lambda row: None if row.gpu is None else len(row.gpu.strangers),
            "processes on the GPU that are no ranks of ours",
        ),
        Field("command", lambda row: row.commands, "command lines of these processes", TEXT),
        Field("me", lambda row: row.me, "you, beside user: user!=me", TEXT),
    ),
)
"""A host's fields are those of each of its GPUs, too."""
