"""Bandwidth of every pair in as few rounds as there are hosts: disjoint pairs, one direction at a time.

Both directions of a pair at once would put the data of one behind the acknowledgements of the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from distconsole.checks.facts.evidence import Outcome
from distconsole.checks.facts.network import (
    BandwidthFacts,
    NetFacts,
    ReachFacts,
    TimedStream,
    matrix_of,
)
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.gather.addresses import endpoints
from distconsole.checks.gather.attribution import SLOW_SHARE, Pair, usual
from distconsole.checks.gather.context import CheckContext
from distconsole.checks.gather.listeners import Listeners
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.events import PairProgress
from distconsole.model.reports import PairReport

STREAM_SECONDS = 0.5
ANSWER_SECONDS = 3.0
MAX_FULL = 32
"""Up to this many hosts every pair is measured; beyond, some random matchings."""
MATCHINGS = 5
RETESTS = 2
"""A slow pair is measured again, up to twice, before it is called slow: one lost packet costs more
than half of a short stream. Pairs that were not slow are too, right after it: what has become of them
meanwhile, on busy machines, is no fault of the pair's."""


def rounds_of(names: Sequence[str]) -> list[list[Pair]]:
    """Return rounds of disjoint pairs until all have met (circle method); beyond ``MAX_FULL`` some random ones."""
    around: list[str | None] = list(names)
    if len(around) > MAX_FULL:
        random.SystemRandom().shuffle(around)
    if len(around) % 2:
        around.append(None)
    rounds = []
    for _ in range(len(around) - 1):
        half = len(around) // 2
        pairs = zip(around[:half], reversed(around[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        around[1:] = [around[-1], *around[1:-1]]
    return rounds[:MATCHINGS] if len(names) > MAX_FULL else rounds


def measure(context: CheckContext) -> Iterator[str | PairProgress]:
    """Measure; yields the name of the host that sends in each stream that has ended, and its rate."""
    chosen = endpoints(context.view((NetFacts, SshFacts)))
    view = context.view((ReachFacts,))
    facts, matrix = view.of(ReachFacts), matrix_of(view)
    hosts: dict[str, Host] = {host.name: host for host in context.reached() if host.name in facts}
    rounds = [
        [pair for pair in pairs if pair in matrix.edges and pair not in matrix.dead]
        for one_way in rounds_of(list(hosts))
        for pairs in (one_way, [(b, a) for a, b in one_way])
    ]
    needed = (len(rounds) + 4 * RETESTS) * (STREAM_SECONDS + 1.0) + 5.0
    if len(hosts) < 2 or context.left(needed) < needed:
        over = len(hosts) >= 2
        why = f"needs {needed:.0f} s of the budget" if over else "one host"
        outcome = Outcome.TIMED_OUT if over else Outcome.SKIPPED
        context.mark_missing((BandwidthFacts,), outcome, why)
        return
    there = {name: chosen[name] for name in hosts if name in chosen}
    with Listeners(context, there, 1, 2 * needed) as listeners:
        measuring = _Measuring(context, hosts, listeners, len(rounds))
        for number, pairs in enumerate(rounds, start=1):
            yield from measuring.stream(pairs, number)
        for _ in range(RETESTS):
            yield from measuring.repeat_suspects()
    for name, host in hosts.items():
        mine = tuple(each for each in measuring.streams.values() if each.source == name)
        beside = tuple(each for each in measuring.controls if each.source == name)
        context.hosts[host.name].add_facts(BandwidthFacts(streams=mine, controls=beside))


@dataclass(slots=True)
class _Measuring:
    """The streams so far; ``controls`` are those of pairs that were not slow, beside suspects."""

    context: CheckContext
    hosts: Mapping[str, Host]
    listeners: Listeners
    rounds: int
    streams: dict[Pair, TimedStream] = field(default_factory=dict)
    controls: list[TimedStream] = field(default_factory=list)

    def stream(self, pairs: list[Pair], number: int) -> Iterator[str | PairProgress]:
        """Measure disjoint pairs at once; tell each sender, and its rate."""
        for stream in self._send(pairs):
            pair = stream.source, stream.target
            self.streams[pair] = _best(self.streams.get(pair), stream)
            yield stream.source
            yield _progress(self.context, self.streams[pair], number, self.rounds)

    def repeat_suspects(self) -> Iterator[str | PairProgress]:
        rates = {pair: s.gbit_s for pair, s in self.streams.items() if s.gbit_s is not None}
        slow = SLOW_SHARE * usual(rates, max) if len(rates) > 1 else 0.0
        suspects = [pair for pair, rate in rates.items() if rate < slow]
        others = [pair for pair in self.streams if pair not in suspects]
        for pairs in _matchings(suspects):
            yield from self.stream(pairs, self.rounds)
            beside = next(_matchings(others), [])[: len(pairs)]
            for stream in self._send(beside):
                self.controls.append(stream)
                yield stream.source

    def _send(self, pairs: list[Pair]) -> Iterator[TimedStream]:
        listening = self.listeners.listening
        target_of = {source: target for source, target in pairs if target in listening}

        def stream(host: Host) -> dict[str, Any]:
            there = listening[target_of[host.name]]
            return {
                "address": there.endpoint.address,
                "port": there.ports[-1],
                "stream_seconds": STREAM_SECONDS,
            }

        senders = [self.hosts[source] for source in target_of]
        seconds = STREAM_SECONDS + ANSWER_SECONDS
        for outcome in self.listeners.ask(senders, "net.bandwidth", seconds, stream):
            yield _read_stream(outcome, target_of[outcome.host])


def _matchings(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Split pairs into rounds in which each host appears once at most."""
    left = list(pairs)
    while left:
        busy: set[str] = set()
        together = []
        for pair in left:
            if not busy & set(pair):
                together.append(pair)
                busy |= set(pair)
        left = [pair for pair in left if pair not in together]
        yield together


def _progress(
    context: CheckContext, stream: TimedStream, number: int, rounds: int
) -> PairProgress:
    report = PairReport(
        source=stream.source, target=stream.target, rtt_us=None, gbit_s=stream.gbit_s
    )
    return PairProgress(
        stage="bandwidth", hosts=tuple(context.hosts), pairs=(report,), round=number, rounds=rounds
    )


def _read_stream(outcome: fan.Outcome[dict[str, Any]], target: str) -> TimedStream:
    if isinstance(outcome, fan.Failed):
        why = outcome.error.message
        return TimedStream(source=outcome.host, target=target, gbit_s=None, error=why)
    rate, again = outcome.value.get("gbit_s"), outcome.value.get("retransmits")
    return TimedStream(
        source=outcome.host,
        target=target,
        gbit_s=float(rate) if isinstance(rate, int | float) else None,
        retransmits=again if isinstance(again, int) else 0,
    )


def _best(before: TimedStream | None, stream: TimedStream) -> TimedStream:
    if before is None:
        return stream
    known = [each.gbit_s for each in (before, stream) if each.gbit_s is not None]
    return msgspec.structs.replace(
        stream,
        gbit_s=max(known, default=None),
        samples=before.samples + 1,
        retransmits=before.retransmits + stream.retransmits,
    )
