"""What is known of directed pairs of hosts, as the report and the progress of a check tell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from distconsole.checks.facts.network import Edge
from distconsole.checks.gather.attribution import Pair
from distconsole.model.reports import PairReport


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
