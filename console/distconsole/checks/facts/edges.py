"""What became of the connections between hosts, by pair, as rules judge it and as the report tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from distconsole.checks.facts.network import Edge, ReachFacts
from distconsole.checks.gather.attribution import Pair
from distconsole.model.reports import PairReport

SILENT = "silent"
"""The error of a connection that came about and was not answered (``connecting`` on the node)."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """What the edges say of pairs: dead (no port answers), some dead ports, only small messages.

    A connection that came about, and whose listener then said nothing in time, tells nothing of the
    network: it counts nowhere, and a pair that has no other is ``unsure``.
    """

    tried: tuple[Pair, ...]
    dead: dict[Pair, tuple[Edge, ...]]
    partial: dict[Pair, tuple[Edge, ...]]
    small_only: dict[Pair, tuple[Edge, ...]]
    edges: dict[Pair, tuple[Edge, ...]]
    unsure: tuple[Pair, ...] = ()


def matrix_of(facts: Mapping[str, ReachFacts]) -> Matrix:
    """Sort the edges by pair; edges to hosts that could not listen were not tried."""
    pairs: dict[Pair, list[Edge]] = {}
    for found in facts.values():
        for edge in found.edges:
            pairs.setdefault((edge.source, edge.target), []).append(edge)
    told = {pair: [e for e in found if e.error != SILENT] for pair, found in pairs.items()}
    edges = {pair: tuple(found) for pair, found in told.items() if found}
    dead = {pair: found for pair, found in edges.items() if not any(edge.ok for edge in found)}
    partial = {
        pair: found
        for pair, found in edges.items()
        if pair not in dead and not all(edge.ok for edge in found)
    }
    small_only = {
        pair: found
        for pair, found in edges.items()
        if any(edge.bulk is False for edge in found) and not any(edge.bulk for edge in found)
    }
    unsure = tuple(pair for pair in pairs if pair not in edges)
    return Matrix(tuple(edges), dead, partial, small_only, edges, unsure)


def pair_reports(
    edges: Iterable[Edge], rates: Mapping[Pair, float | None] | None = None
) -> Iterator[PairReport]:
    """Yield one report a pair.

    Args:
        edges: The connections that were tried, several a pair.
        rates: Gbit/s of the pairs that were measured.
    """
    by_pair: dict[Pair, list[Edge]] = {}
    for edge in edges:
        by_pair.setdefault((edge.source, edge.target), []).append(edge)
    for (source, target), tried in by_pair.items():
        times = [edge.rtt_us for edge in tried if edge.rtt_us is not None]
        lost = [edge for edge in tried if not edge.ok]
        bulk = [edge.bulk for edge in tried if edge.bulk is not None]
        small = "small messages pass and large ones do not" if bulk and not any(bulk) else ""
        yield PairReport(
            source=source,
            target=target,
            rtt_us=min(times) if times else None,
            gbit_s=(rates or {}).get((source, target)),
            reachable=not lost,
            error=f"{len(lost)} of {len(tried)} ports: {lost[0].error}" if lost else small,
        )
