"""Checks of group ``net`` on how fast connections are; what is usual is taken from the hosts themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from distconsole.checks.engine.rule import RuleResults, hint, rule, warn
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import BandwidthFacts, ReachFacts, Stream
from distconsole.checks.gather.attribution import SLOW_SHARE, Pair, blame, usual
from distconsole.checks.rules.network.network import alone
from distconsole.model.requests import Level

SLOW_RTT_US = 20_000.0
SLOW_FACTOR = 20.0
MAX_LISTED = 8


@rule("net.rtt", "net", Level.STANDARD, ReachFacts)
@hint("Look at the NIC, at power saving and at the way that packets take.")
def _rtt(view: View) -> RuleResults:
    """A host or a link with round trips far above the others'."""
    yield from alone(view)
    times = {
        (edge.source, edge.target): edge.rtt_us
        for found in view.of(ReachFacts).values()
        for edge in found.edges
        if edge.rtt_us is not None
    }
    if len(times) < 2:
        return
    middle = usual(times, min)
    slow = {
        p: t
        for p, t in times.items()
        if t > max(SLOW_RTT_US, SLOW_FACTOR * middle) and view.expectation(p[0]).rtt_us is None
    }
    found = blame(times, slow)
    for host in () if found.everyone else found.hosts:
        yield warn(
            f"round trips of {host.host} take long",
            (host.host,),
            seen=", ".join(f"{a} -> {b}: {times[a, b] / 1000:.1f} ms" for a, b in host.pairs[:8]),
            expected=f"about {middle / 1000:.2f} ms, as between the others",
            hint=f"on {host.host}: ethtool NIC; power saving, a busy host, a long way",
        )
    for pair in (*found.links, *found.one_way):
        yield warn(
            f"a round trip from {pair[0]} to {pair[1]} takes {times[pair] / 1000:.1f} ms",
            pair,
            expected=f"about {middle / 1000:.2f} ms",
        )


@rule("net.bw_pair", "net", Level.FULL, BandwidthFacts)
@hint("ethtool NIC; another cable.")
def _bandwidth(view: View) -> RuleResults:
    """A NIC that came up at 100 Mbit, a shaped or a lossy link; sender and receiver told apart."""
    facts = view.of(BandwidthFacts)
    streams: dict[Pair, Stream] = {
        (stream.source, stream.target): stream
        for found in facts.values()
        for stream in found.streams
    }
    yield from alone(view)
    rates = {pair: s.gbit_s for pair, s in streams.items() if s.gbit_s is not None}
    if len(rates) < 2:
        return
    beside = [s.gbit_s for found in facts.values() for s in found.controls if s.gbit_s is not None]
    normal = min([usual(rates, max), *([median(beside)] if beside else [])])
    slow = [
        pair
        for pair, rate in rates.items()
        if rate < SLOW_SHARE * normal and view.expectation(pair[0]).pair_gbit_s is None
    ]
    found = blame(rates, slow)
    for host in found.hosts:
        verb = {"both": "sends and receives", "into": "receives", "out of": "sends"}
        rate = max(rates[pair] for pair in host.pairs)
        yield warn(
            f"{host.host} {verb[host.direction.value]} at {rate:.3g} Gbit/s, {normal:.3g} is usual",
            (host.host,),
            seen=_rates(streams, host.pairs),
            expected="what the others reach",
            hint=f"the fault is at {host.host}, not at the switch; on it: ethtool NIC; tc -s qdisc",
        )
    for source, target in (*found.links, *found.one_way):
        yield warn(
            f"{source} to {target}: {rates[source, target]:.3g} Gbit/s, {normal:.3g} is usual",
            (source, target),
            seen=_rates(streams, [(source, target), (target, source)]),
            hint=f"the link or the switch port between {source} and {target}",
        )


def _rates(streams: Mapping[Pair, Stream], pairs: Sequence[Pair]) -> str:
    known = [streams[pair] for pair in pairs[:MAX_LISTED] if pair in streams]
    return "\n".join(
        f"{s.source} -> {s.target}: {s.gbit_s or 0:.3g} Gbit/s, the best of {s.samples}"
        + (f", {s.retransmits} retransmits" if s.retransmits else "")
        for s in known
    )


RULES = (_rtt, _bandwidth)
