"""The ways between ranks that the engines of short jobs took, by their own words; Open MPI's and UCX's are read here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.jobs import CollFacts, MpiCollFacts, Took
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import convert
from distconsole.model.reports import WayReport

MPI_SAYS_ITS_WAYS = {
    "OMPI_MCA_pml_base_verbose": "10",
    "OMPI_MCA_btl_base_verbose": "20",
    "UCX_LOG_LEVEL": "info",
    "UCX_LOG_FILE": "stderr",
}
"""What makes the ranks of mpirun say it, in lines that ``split_mpi_words`` takes out of their errors."""

MAX_WORDS = 2000
_WORD = re.compile(
    r"\[[^\]\s]+:\d+\] (?:mca: |select: |selected |check:select|btl: ?tcp|\S*ucx\S*\.c:\d+ )"
    r"|\[[\d.]+\] \[\S+\] .*? UCX +(?:INFO|DIAG) "
)
_PML = re.compile(r"\] selected (\w+) best priority")
_BTL = re.compile(r"bml: Using (\w+) btl for send to \[\[\d+,\d+\],(\d{1,7})\]")
_PATH = re.compile(r"btl:tcp: path from (\S+) to (\S+):")
_UCX = re.compile(r"UCX +INFO .*?(?:ep_cfg\[\d+\]: |cfg#\d+ ).*")
_LANES = re.compile(r"\b(?:tag|am|rma|amo|stream)\(([^)]*)\)")


def split_mpi_words(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    words = [line for line in lines if _WORD.match(line)]
    return words[:MAX_WORDS], [line for line in lines if not _WORD.match(line)]


def read_mpi_words(lines: Iterable[str], rank: int) -> dict[str, Any] | None:
    """Return the transports that ``rank`` reported; None if it reported none."""
    pml = ""
    pairs: dict[tuple[int, int, str, int], None] = {}
    sockets: dict[tuple[str, str], None] = {}
    lanes: dict[str, None] = {}
    for line in lines:
        if found := _PML.search(line):
            pml = found[1]
        elif found := _BTL.search(line):
            pairs[rank, int(found[2]), found[1], 0] = None
        elif found := _PATH.search(line):
            sockets[found[1], found[2]] = None
        elif _UCX.search(line):
            lanes.update(dict.fromkeys(" ".join(_LANES.findall(line)).split()))
    if not (pml or pairs or lanes):
        return None
    return {
        "engine": "UCX" if lanes else "Open MPI",
        "network": pml,
        "pairs": [list(key) for key in pairs if key[1] != rank],
        "devices": list(lanes),
        "sockets": [list(pair) for pair in sockets],
    }


@dataclass(frozen=True, slots=True)
class RankWays:
    """Transports of a rank's engine."""

    host: str
    rank: int
    took: Took


def took_of(view: View, kind: type[CollFacts]) -> list[RankWays]:
    """Return the reports of a job's ranks; malformed ones are left out."""
    return [
        RankWays(host, rank.rank, took)
        for host, facts in view.of(kind).items()
        for rank in facts.ranks
        for said in rank.said
        if "took" in said and (took := _read(said["took"])) is not None
    ]


def _read(said: object) -> Took | None:
    try:
        return convert(Took, said)
    except ValueError:
        return None


def pairs_of(ways: Sequence[RankWays]) -> dict[tuple[str, str], dict[str, int]]:
    host_of = {each.rank: each.host for each in ways}
    found: dict[tuple[str, str], dict[str, int]] = {}
    for each in ways:
        for source, target, way, channels in each.took.pairs:
            if source in host_of and target in host_of and source != target:
                via = found.setdefault((host_of[source], host_of[target]), {})
                via[way] = max(via.get(way, 0), channels)
    return found


def ways_taken(view: View) -> tuple[WayReport, ...]:
    """Return the transports between each two hosts by job, as ``check --json`` gives them."""
    found: list[WayReport] = []
    for kind in (CollFacts, MpiCollFacts):
        ways = took_of(view, kind)
        for (source, target), via in pairs_of(ways).items():
            own = [each.took for each in ways if each.host == source]
            devices = dict.fromkeys(
                name for took in own for name in (took.devices or took.interfaces)
            )
            channels = max(via.values())
            found.append(
                WayReport(
                    engine=own[0].engine if own else "",
                    source=source,
                    target=target,
                    via=tuple(via),
                    channels=channels,
                    devices=tuple(devices) if source != target else (),
                )
            )
        found += _ways_without_pairs(view, ways)
    return tuple(found)


def _ways_without_pairs(view: View, ways: Sequence[RankWays]) -> Iterator[WayReport]:
    """Yield Gloo's ways, known by the addresses of its connections, and UCX's, which names no peer."""
    owners = {
        entry.address: (name, entry.iface)
        for name, facts in view.of(NetFacts).items()
        for entry in facts.addresses
        if not entry.loopback
    }
    seen: dict[tuple[str, str, str], dict[str, None]] = {}
    for each in ways:
        if each.took.engine == "UCX":
            via = tuple(dict.fromkeys(each.took.devices))
            yield WayReport(engine="UCX", source=each.host, target="", via=via)
        for here, there in each.took.sockets if each.took.engine == "Gloo" else ():
            _, nic = owners.get(here, ("", here))
            target, _ = owners.get(there, (each.host, "") if here == there else (there, ""))
            seen.setdefault((each.host, target, "TCP"), {})[nic] = None
    for (source, target, via_tcp), nics in seen.items():
        yield WayReport(
            engine="Gloo", source=source, target=target, via=(via_tcp,), devices=tuple(nics)
        )
