"""Bandwidth of every pair in as few rounds as there are hosts: disjoint pairs, one direction at a time.

Both directions of a pair at once would put the data of one behind the acknowledgements of the other.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from distconsole.checks.facts.evidence import Outcome
from distconsole.checks.facts.network import (
    BandwidthFacts,
    NetFacts,
    ReachFacts,
    Stream,
    matrix_of,
)
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.gather.addresses import endpoints
from distconsole.checks.gather.attribution import SLOW_SHARE, Pair, usual
from distconsole.checks.gather.nodes import Gathering
from distconsole.checks.gather.reachability import Listening, close_listeners, open_listeners
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.events import PairProgress
from distconsole.model.reports import PairReport

STREAM_SECONDS = 0.5
ANSWER_SECONDS = 3.0
MAX_FULL = 32
"""Up to so many hosts every pair is measured; beyond, some random matchings."""
MATCHINGS = 5
RETESTS = 2
"""A slow pair is measured again, up to twice, before it is called slow: one lost packet costs more
than half of a short stream. Pairs that were not slow are too, right after it: what has become of them
meanwhile, on busy machines, is no fault of the pair's."""


def rounds_of(names: Sequence[str], shuffle: random.Random | None = None) -> list[list[Pair]]:
    """Return rounds of disjoint pairs in which everybody meets everybody once (circle method).

    Beyond ``MAX_FULL`` names only ``MATCHINGS`` rounds are returned, of an order that ``shuffle`` makes.
    """
    around: list[str | None] = list(names)
    if len(around) > MAX_FULL:
        (shuffle or random.SystemRandom()).shuffle(around)
    if len(around) % 2:
        around.append(None)
    rounds = []
    for _ in range(len(around) - 1):
        half = len(around) // 2
        pairs = zip(around[:half], reversed(around[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        around[1:] = [around[-1], *around[1:-1]]
    return rounds[:MATCHINGS] if len(names) > MAX_FULL else rounds


def measure(gathering: Gathering) -> Iterator[str | PairProgress]:
    """Measure; yields the name of the host that sends in each stream that has ended, and its rate."""
    chosen = endpoints(gathering.view((NetFacts, SshFacts)))
    facts = gathering.view((ReachFacts,)).of(ReachFacts)
    matrix = matrix_of(facts)
    hosts: dict[str, Host] = {
        host.name: host for host in gathering.reached() if host.name in facts
    }
    rounds = [
        [pair for pair in pairs if pair in matrix.edges and pair not in matrix.dead]
        for one_way in rounds_of(list(hosts))
        for pairs in (one_way, [(b, a) for a, b in one_way])
    ]
    needed = (len(rounds) + 4 * RETESTS) * (STREAM_SECONDS + 1.0) + 5.0
    if len(hosts) < 2 or gathering.left(needed) < needed:
        over = len(hosts) >= 2
        why = f"needs {needed:.0f} s of the budget" if over else "one host"
        outcome = Outcome.TIMED_OUT if over else Outcome.SKIPPED
        gathering.lack((BandwidthFacts,), outcome, why)
        return
    secret = secrets.token_hex(32)
    listening, _ = open_listeners(gathering, list(hosts.values()), chosen, secret, 1, 2 * needed)
    streams: dict[Pair, Stream] = {}
    try:
        for number, pairs in enumerate(rounds, start=1):
            for told in _round(gathering, hosts, pairs, listening, secret, streams):
                yield told.source
                yield _progress(gathering, told, number, len(rounds))
        controls: list[Stream] = []
        for _ in range(RETESTS):
            suspects = _suspects(streams)
            others = [pair for pair in streams if pair not in suspects]
            for pairs in _matchings(suspects):
                for told in _round(gathering, hosts, pairs, listening, secret, streams):
                    yield told.source
                    yield _progress(gathering, told, len(rounds), len(rounds))
                beside = next(_matchings(others), [])[: len(pairs)]
                for told in _round(gathering, hosts, beside, listening, secret, {}):
                    controls.append(told)
                    yield told.source
    finally:
        close_listeners(gathering, listening)
    for name in hosts:
        mine = tuple(stream for pair, stream in streams.items() if pair[0] == name)
        told_here = tuple(stream for stream in controls if stream.source == name)
        facts_here = BandwidthFacts(streams=mine, controls=told_here)
        gathering.hosts[hosts[name].name].learn(facts_here)


def _suspects(streams: dict[Pair, Stream]) -> list[Pair]:
    rates = {pair: s.gbit_s for pair, s in streams.items() if s.gbit_s is not None}
    if len(rates) < 2:
        return []
    slow = SLOW_SHARE * usual(rates, max)
    return [pair for pair, rate in rates.items() if rate < slow]


def _matchings(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Split pairs into rounds in which nobody appears twice."""
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


def _round(
    gathering: Gathering,
    hosts: dict[str, Host],
    pairs: list[Pair],
    listening: dict[str, Listening],
    secret: str,
    streams: dict[Pair, Stream],
) -> Iterator[Stream]:
    target_of = {source: target for source, target in pairs if target in listening}

    def stream(host: Host) -> dict[str, Any]:
        there = listening[target_of[host.name]]
        return {
            "address": there.endpoint.address,
            "port": there.ports[0] if there.ports else there.fixed,
            "secret": secret,
            "stream_seconds": STREAM_SECONDS,
        }

    senders = [hosts[source] for source in target_of]
    seconds = STREAM_SECONDS + ANSWER_SECONDS
    for outcome in gathering.ask_all(senders, "net.bandwidth", seconds, stream):
        pair = (outcome.host, target_of[outcome.host])
        streams[pair] = _best(streams.get(pair), pair, outcome)
        yield streams[pair]


def _progress(gathering: Gathering, stream: Stream, number: int, rounds: int) -> PairProgress:
    report = PairReport(
        source=stream.source, target=stream.target, rtt_us=None, gbit_s=stream.gbit_s
    )
    return PairProgress(
        stage="bandwidth",
        hosts=tuple(gathering.hosts),
        pairs=(report,),
        round=number,
        rounds=rounds,
    )


def _best(before: Stream | None, pair: Pair, outcome: fan.Outcome[dict[str, Any]]) -> Stream:
    rate, retransmits, error = None, 0, ""
    if isinstance(outcome, fan.Failed):
        error = outcome.error.message
    else:
        said, again = outcome.value.get("gbit_s"), outcome.value.get("retransmits")
        rate = float(said) if isinstance(said, int | float) else None
        retransmits = again if isinstance(again, int) else 0
    known = [each for each in (rate, before.gbit_s if before else None) if each is not None]
    return Stream(
        source=pair[0],
        target=pair[1],
        gbit_s=max(known) if known else None,
        samples=(before.samples if before else 0) + 1,
        retransmits=(before.retransmits if before else 0) + retransmits,
        error=error,
    )
