"""Checks of group ``net`` on links: RDMA ports and their counters, round trips, bandwidth between hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import (
    HostView,
    hint,
    host_rule,
    only_where,
    rule,
    unless_alone,
)
from distconsole.checks.facts.evidence import Outcome, View, by_key
from distconsole.checks.facts.gpu import FabricFacts, GpuFacts, RdmaPort
from distconsole.checks.facts.network import BandwidthFacts, ReachFacts, TimedStream
from distconsole.checks.gather.attribution import SLOW_SHARE, Pair, blame, usual
from distconsole.checks.rules.wording import dissent, list_some, name_hosts, these_have
from distconsole.model.names import count_text, join_some
from distconsole.model.requests import Level

ACTIVE = "ACTIVE"
SYMBOL_ERRORS = 1000
"""Since the adapter started; a good cable has few (IMB counts them against time)."""
SLOW_RTT_US = 20_000.0
SLOW_FACTOR = 20.0


def _name(port: RdmaPort) -> str:
    return f"{port.device}:{port.port}"


def _is_active(facts: FabricFacts) -> bool:
    return any(port.state == ACTIVE for port in facts.ports)


_unless_adapter = only_where(lambda host: host.of(FabricFacts).ports, "no RDMA adapter")
_unless_both = only_where(
    lambda host: _is_active(host.of(FabricFacts)) and host.of(GpuFacts).present,
    "no RDMA adapter next to a GPU",
)


@hint("ibstat; a cable, a transceiver, the subnet manager.")
@rule("ib.state", "net", Level.QUICK, FabricFacts)
def _state(view: View) -> RuleResults:
    """An InfiniBand or RoCE port that is down, or slower than on the other hosts."""
    # A second port without a cable is down everywhere; one that is up on its peers has failed.
    facts = view.of(FabricFacts)
    without = tuple(name for name, found in facts.items() if not found.ports)
    if len(without) == len(facts):
        yield NotApplicable("no RDMA adapter", without)
        return
    if without:
        yield warn(
            f"{these_have(without)} no RDMA adapter, other hosts have",
            without,
            expected="the same adapters on every host, or NCCL_IB_DISABLE=1 on all",
            hint="lspci | grep -i mellanox; sudo modprobe mlx5_ib",
        )
    ports = [(_name(port), (name, port)) for name, f in facts.items() for port in f.ports]
    for name, found in facts.items():
        if found.ports and not _is_active(found):
            yield fail(
                f"no RDMA port of {HERE} is active",
                (name,),
                seen=join_some(f"{_name(p)} {p.state} ({p.physical})" for p in found.ports),
                expected=ACTIVE,
                hint="ibstat; a cable, a switch port, a subnet manager that does not run (state INIT)",
            )
    for port_name, of_hosts in by_key(ports).items():
        yield from _compare_port(port_name, dict(of_hosts), facts)


def _compare_port(
    port_name: str, ports: Mapping[str, RdmaPort], facts: Mapping[str, FabricFacts]
) -> RuleResults:
    rates = {name: port.rate_gbit for name, port in ports.items() if port.state == ACTIVE}
    for name, port in ports.items() if rates else ():
        if name not in rates and _is_active(facts[name]):
            yield fail(
                f"{port_name} is not active on {HERE}, on {count_text(len(rates), 'other host')} it is",
                (name,),
                seen=f"{port.state} ({port.physical})",
                expected=ACTIVE,
                hint=f"ibstat {port_name.partition(':')[0]}; a cable or a switch port",
            )
    if dissent(rates) is not None:
        slow = min(rate for rate in rates.values() if rate is not None)
        names = [name for name, rate in rates.items() if rate == slow]
        yield warn(
            f"{port_name} runs at {slow:g} Gbit/s on {name_hosts(names)}, faster on others",
            names,
            seen=join_some(f"{name}: {rate} Gbit/s" for name, rate in rates.items()),
            expected="the same rate on every host",
            hint="clean or reseat the transceiver; the switch port's setting",
        )


@hint("perfquery; clean or replace the cable.")
@host_rule("ib.errors", "net", Level.STANDARD, FabricFacts, unless=_unless_adapter)
def _errors(host: HostView) -> RuleResults:
    """Links that count symbol errors or had to recover."""
    bad = {
        _name(port): join_some(f"{key} {value}" for key, value in port.counters.items() if value)
        for port in host.of(FabricFacts).ports
        if port.counters.get("symbol_error", 0) > SYMBOL_ERRORS
        or port.counters.get("link_error_recovery", 0) > 0
    }
    if bad:
        yield info(
            f"{', '.join(bad)} of {HERE} counted errors of the link",
            seen=join_some((f"{name}: {counts}" for name, counts in bad.items()), separator="; "),
            expected="hardly any; what counts is whether they grow: perfquery before and after a run",
            hint="clean or replace the cable",
        )


@hint("modprobe nvidia_peermem")
@rule("ib.peer_memory", "net", Level.STANDARD, FabricFacts, GpuFacts, unless=_unless_both)
def _peer_memory(view: View) -> RuleResults:
    """RDMA that cannot reach GPU memory on some hosts (nvidia_peermem)."""
    facts = view.of(FabricFacts)
    lacking = [name for name, found in facts.items() if not found.peer_memory]
    if lacking and len(lacking) < len(facts):
        yield warn(
            f"the kernel module nvidia_peermem is not loaded on {name_hosts(lacking)}, on others it is",
            lacking,
            seen="no /sys/module/nvidia_peermem",
            expected="the same on every host: else they copy through the processor's memory",
            hint="sudo modprobe nvidia_peermem",
        )
    elif lacking:
        yield info(
            "nvidia_peermem is not loaded: NCCL reaches GPU memory by DMA-BUF, or through the processor",
            lacking,
            hint="NCCL_DEBUG=INFO says GPU Direct RDMA Enabled, or: sudo modprobe nvidia_peermem",
        )


@hint("Look at the NIC, at power saving and at the way that packets take.")
@rule("net.rtt", "net", Level.STANDARD, ReachFacts, unless=unless_alone)
def _rtt(view: View) -> RuleResults:
    """A host or a link with round trips far above the others'."""
    times = {
        (edge.source, edge.target): edge.rtt_us
        for found in view.of(ReachFacts).values()
        for edge in found.edges
        if edge.rtt_us is not None
    }
    if len(times) < 2:
        return
    middle = usual(times, min)
    most = max(SLOW_RTT_US, SLOW_FACTOR * middle)
    slow = [p for p, t in times.items() if t > most and view.expectation(p[0]).rtt_us is None]
    found = blame(times, slow)
    expected = f"about {middle / 1000:.2f} ms, as between the others"
    for host in () if found.everyone else found.hosts:
        yield warn(
            f"round trips of {host.host} take long",
            (host.host,),
            seen=join_some(f"{a} -> {b}: {times[a, b] / 1000:.1f} ms" for a, b in host.pairs),
            expected=expected,
            hint=f"on {host.host}: ethtool NIC; power saving, a busy host, a long way",
        )
    for pair in (*found.links, *found.one_way):
        summary = f"a round trip from {pair[0]} to {pair[1]} takes {times[pair] / 1000:.1f} ms"
        yield warn(summary, pair, expected=expected)


@hint("ethtool NIC; another cable.")
@rule("net.bw_pair", "net", Level.FULL, BandwidthFacts, unless=unless_alone)
def _bandwidth(view: View) -> RuleResults:
    """A NIC that came up at 100 Mbit, a shaped or a lossy link; sender and receiver told apart."""
    facts = view.of(BandwidthFacts).values()
    streams = {(each.source, each.target): each for found in facts for each in found.streams}
    rates = {pair: s.gbit_s for pair, s in streams.items() if s.gbit_s is not None}
    for name, own in by_key((stream.source, stream) for stream in streams.values()).items():
        if all(stream.gbit_s is None for stream in own):
            why = f"nothing that it sent was measured: {own[0].error or 'too little arrived'}"
            yield NotApplicable(why, (name,), Outcome.COULD_NOT_RUN)
    if len(rates) < 2:
        return
    beside = [s.gbit_s for found in facts for s in found.controls if s.gbit_s is not None]
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
            seen=_list_rates(streams, host.pairs),
            expected="what the others reach",
            hint=f"the fault is at {host.host}, not at the switch; on it: ethtool NIC; tc -s qdisc",
        )
    for source, target in (*found.links, *found.one_way):
        yield warn(
            f"{source} to {target}: {rates[source, target]:.3g} Gbit/s, {normal:.3g} is usual",
            (source, target),
            seen=_list_rates(streams, [(source, target), (target, source)]),
            hint=f"the link or the switch port between {source} and {target}",
        )


def _list_rates(streams: Mapping[Pair, TimedStream], pairs: Sequence[Pair]) -> str:
    lines = [
        f"{s.source} -> {s.target}: {s.gbit_s or 0:.3g} Gbit/s, the best of {s.samples}"
        + (f", {s.retransmits} retransmits" if s.retransmits else "")
        for s in (streams[pair] for pair in pairs if pair in streams)
    ]
    return list_some(lines)
