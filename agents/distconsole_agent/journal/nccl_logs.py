"""Reads NCCL's logs in a run's folder (``run --nccl-debug``): its transports on this node, as notes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.supervisor import notes
from distconsole_agent.system.kernel_files import entries_of, first_line_of, read_foreign

if TYPE_CHECKING:
    from distconsole_agent.probes.collectives.engine_words import NcclWords

FILES = "{run_dir}/nccl-"
"""How the value of NCCL_DEBUG_FILE begins that the console gives the ranks."""

CHECK = "run.nccl"
QUIET_SECONDS = 3.0
"""After this long without a new line the transports are settled: a first collective makes them."""

MAX_FILES, MAX_READ, MAX_TOLD = 256, 1 << 18, 4
INFINIBAND = "/sys/class/infiniband"


class NcclLogs:
    """The files of the processes on this node, read as they grow."""

    def __init__(self, folder: str, spec: RunSpec) -> None:
        self._folder = folder
        self._on = spec.env.get("NCCL_DEBUG_FILE", "").startswith(FILES)
        self._read: dict[str, tuple[int, NcclWords]] = {}
        self._grew_at: float | None = None
        self._told: list[str] = []

    def take(self, now: float, *, final: bool = False) -> list[notes.RunNote]:
        """Read new lines; return a note once the transports are settled, or at the run's end."""
        names = [name for name in entries_of(self._folder) if name.startswith("nccl-")]
        for name in names[:MAX_FILES] if self._on else ():
            if self._take_file(name):
                self._grew_at = now
        if self._grew_at is None or not (final or now - self._grew_at >= QUIET_SECONDS):
            return []
        self._grew_at = None
        said = [found for _, words in self._read.values() if (found := words.facts()) is not None]
        note = describe_ways(said, active_ports()) if said else None
        if note is None or note.summary in self._told or len(self._told) >= MAX_TOLD:
            return []
        self._told.append(note.summary)
        return [note]

    def _take_file(self, name: str) -> bool:
        # Only here: with all probes.
        from distconsole_agent.probes.collectives.engine_words import NcclWords

        offset, words = self._read.get(name, (0, NcclWords()))
        try:
            text = read_foreign(os.path.join(self._folder, name), MAX_READ, offset)
        except OSError:
            return False
        words.take(text.decode("utf-8", "replace"))
        self._read[name] = (offset + len(text), words)
        return bool(text)


def active_ports(root: str = INFINIBAND) -> list[str]:
    """Return the RDMA ports of this node that work, as NCCL names them."""
    return [
        f"{device}:{port}"
        for device in entries_of(root)
        for port in entries_of(f"{root}/{device}/ports")
        if (first_line_of(f"{root}/{device}/ports/{port}/state") or "").endswith("ACTIVE")
    ]


def describe_ways(said: list[dict[str, Any]], ports: list[str]) -> notes.RunNote | None:
    """Return a note on the transports of a node's processes; None while they logged none."""
    ways = sorted({pair[2] for facts in said for pair in facts["pairs"]})
    if not ways:
        return None
    between = [way for way in ways if way.startswith("NET/")]
    within = [way for way in ways if way not in between]
    names = sorted({name for facts in said for name in facts["devices"] or facts["interfaces"]})
    over = f" over {', '.join(names[:8])}" if names else ""
    parts = [f"{', '.join(between)} between hosts{over}"] if between else []
    parts += [f"{', '.join(within)} within"] if within else []
    channels = max(int(facts.get("channels", 0)) for facts in said)
    parts += [f"{channels} channels"] if channels else []
    version = next((f" {facts['version']}" for facts in said if "version" in facts), "")
    summary = f"NCCL{version} goes by {'; '.join(parts)}"
    trouble = [
        line
        for facts in said
        for line in (
            *facts.get("trouble", ()),
            *[f"GPUDirect RDMA is off for {each}" for each in facts.get("without_gdr", ())],
        )
    ]
    seen = "\n".join(list(dict.fromkeys(trouble))[:8])
    if "NET/Socket" in between and ports:
        hint = f"InfiniBand is there ({', '.join(ports[:4])}): `check --only nccl` says why not"
        return notes.warn(CHECK, f"{summary}, though InfiniBand is there", hint, seen=seen)
    if "NET/IB" in between:
        hint = "GPUDirect RDMA is off for some channels: `check --only nccl` says why"
        return notes.warn(CHECK, f"{summary}, without GPUDirect RDMA", hint, seen=seen)
    return notes.info(CHECK, summary, seen=seen)
