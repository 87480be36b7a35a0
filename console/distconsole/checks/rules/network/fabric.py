"""Checks of group ``net`` on RDMA adapters: ports, rates and what their counters say."""

from __future__ import annotations

from collections import defaultdict

from distconsole.checks.engine.rule import (
    NotApplicable,
    RuleResults,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.gpu import FabricFacts, GpuFacts, RdmaPort
from distconsole.checks.rules.wording import dissent, name_hosts, these_have
from distconsole.model.requests import Level

ACTIVE = "ACTIVE"
SYMBOL_ERRORS = 1000
"""Since the adapter started; a good cable has few (IMB counts them against time)."""


def _name(port: RdmaPort) -> str:
    return f"{port.device}:{port.port}"


@rule("ib.state", "net", Level.QUICK, FabricFacts)
@hint("ibstat; a cable, a transceiver, the subnet manager.")
def _state(view: View) -> RuleResults:
    """An InfiniBand or RoCE port that is down, or slower than on the other hosts.

    A second port without a cable is down everywhere; one that is up on its peers has failed.
    """
    facts = view.of(FabricFacts)
    without = tuple(name for name, found in facts.items() if not found.ports)
    if len(without) == len(facts):
        yield NotApplicable("no RDMA adapter", without)
        return
    states: dict[str, dict[str, RdmaPort]] = defaultdict(dict)
    for name, found in facts.items():
        for port in found.ports:
            states[_name(port)][name] = port
    if without:
        yield warn(
            f"{these_have(without)} no RDMA adapter, other hosts have",
            without,
            expected="the same adapters on every host, or NCCL_IB_DISABLE=1 on all",
            hint="lspci | grep -i mellanox; sudo modprobe mlx5_ib",
        )
    for name, found in facts.items():
        if found.ports and not any(port.state == ACTIVE for port in found.ports):
            yield fail(
                f"no RDMA port of {name} is active",
                (name,),
                seen=", ".join(f"{_name(p)} {p.state} ({p.physical})" for p in found.ports[:8]),
                expected=ACTIVE,
                hint="ibstat; a cable, a switch port, a subnet manager that does not run (state INIT)",
            )
    for port_name, by_host in states.items():
        yield from _one_port(port_name, by_host, facts)


def _one_port(
    port_name: str, by_host: dict[str, RdmaPort], facts: dict[str, FabricFacts]
) -> RuleResults:
    up = [name for name, port in by_host.items() if port.state == ACTIVE]
    down = [
        name
        for name, port in by_host.items()
        if port.state != ACTIVE and any(each.state == ACTIVE for each in facts[name].ports)
    ]
    if up and down:
        yield fail(
            f"{port_name} is not active on {name_hosts(down)}, on {len(up)} other hosts it is",
            down,
            seen=", ".join(
                f"{name}: {by_host[name].state} ({by_host[name].physical})" for name in down[:8]
            ),
            expected=ACTIVE,
            hint=f"ibstat {port_name.partition(':')[0]}; a cable or a switch port",
        )
    split = dissent({name: by_host[name].rate_gbit for name in up})
    if split is not None:
        slow = min(rate for rate, _ in split.groups if rate is not None)
        names = [name for name in up if by_host[name].rate_gbit == slow]
        yield warn(
            f"{port_name} runs at {slow:g} Gbit/s on {name_hosts(names)}, faster on others",
            names,
            seen=", ".join(f"{name}: {by_host[name].rate_gbit} Gbit/s" for name in up[:8]),
            expected="the same rate on every host",
            hint="clean or reseat the transceiver; the switch port's setting",
        )


@rule("ib.errors", "net", Level.STANDARD, FabricFacts)
@hint("perfquery; clean or replace the cable.")
def _errors(view: View) -> RuleResults:
    """Links that count symbol errors or had to recover."""
    facts = view.of(FabricFacts)
    without = tuple(name for name, found in facts.items() if not found.ports)
    yield NotApplicable("no RDMA adapter", without)
    for name, found in facts.items():
        bad = [
            port
            for port in found.ports
            if port.counters.get("symbol_error", 0) > SYMBOL_ERRORS
            or port.counters.get("link_error_recovery", 0) > 0
        ]
        if bad:
            yield info(
                f"{', '.join(map(_name, bad))} of {name} counted errors of the link",
                (name,),
                seen="; ".join(
                    f"{_name(port)}: "
                    + ", ".join(f"{key} {value}" for key, value in port.counters.items() if value)
                    for port in bad[:8]
                ),
                expected="hardly any; what counts is whether they grow: perfquery before and after a run",
                hint="clean or replace the cable",
            )


@rule("ib.peer_memory", "net", Level.STANDARD, FabricFacts, GpuFacts)
@hint("modprobe nvidia_peermem")
def _peer_memory(view: View) -> RuleResults:
    """RDMA that cannot reach GPU memory on some hosts (nvidia_peermem)."""
    gpus = view.of(GpuFacts)
    both, lacking = [], []
    for name, found in view.of(FabricFacts).items():
        if not any(port.state == ACTIVE for port in found.ports) or not gpus[name].present:
            yield NotApplicable("no RDMA adapter next to a GPU", (name,))
            continue
        both.append(name)
        if not found.peer_memory:
            lacking.append(name)
    if lacking and len(lacking) < len(both):
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


RULES = (_state, _errors, _peer_memory)
