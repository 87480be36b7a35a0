"""Checks of the ways that NCCL and Open MPI really took, by their own words in the check's jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, only_where, rule
from distconsole.checks.facts.evidence import View, by_key
from distconsole.checks.facts.gpu import FabricFacts, RdmaPort
from distconsole.checks.facts.jobs import CollFacts, MpiCollFacts, Took
from distconsole.checks.gather.transports import pairs_of, took_of
from distconsole.checks.rules.network.links import ACTIVE
from distconsole.checks.rules.wording import name_hosts
from distconsole.model.findings import Cure
from distconsole.model.names import join_some
from distconsole.model.requests import Level

STEERING = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_DISABLE")
ACS_HINT = (
    "turn ACS off on the PCIe bridges (setpci, or the BIOS), and boot with iommu=pt: "
    "NCCL's troubleshooting guide, PCI Access Control Services"
)


def _ports(view: View, host: str) -> list[RdmaPort]:
    facts = view.of(FabricFacts).get(host)
    return [port for port in facts.ports if port.state == ACTIVE] if facts is not None else []


def _nccl_of(view: View) -> dict[str, list[Took]]:
    ways = took_of(view, CollFacts)
    return by_key((each.host, each.took) for each in ways if each.took.engine == "NCCL")


def _told(host: HostView) -> list[Took]:
    return _nccl_of(host.view).get(str(host), [])


_unless_nccl = only_where(_told, "no rank of the check reported NCCL's transport")


def _tcp_pairs(
    view: View, kind: type[CollFacts], way: str
) -> dict[tuple[str, str], dict[str, int]]:
    """Return the pairs of hosts that go by TCP though both have an RDMA port that is active."""
    return {
        pair: via
        for pair, via in pairs_of(took_of(view, kind)).items()
        if pair[0] != pair[1] and way in via and all(_ports(view, host) for host in pair)
    }


def _list_ports(view: View, hosts: list[str]) -> str:
    return join_some(
        f"{host}: {', '.join(f'{p.device}:{p.port} {p.rate_gbit or 0:g} Gbit/s' for p in _ports(view, host))}"
        for host in hosts
    )


@hint("libibverbs and its providers where the ranks run; unset NCCL_IB_DISABLE; NCCL_IB_HCA.")
@rule("nccl.network", "coll", Level.STANDARD, CollFacts, FabricFacts, unless=_unless_nccl)
def _network(view: View) -> RuleResults:
    """NCCL on TCP sockets though InfiniBand is there; a host that uses fewer adapters (rails) than the others."""
    slow = _tcp_pairs(view, CollFacts, "NET/Socket")
    if slow:
        hosts = list(dict.fromkeys(host for pair in slow for host in pair))
        told = [took for host in hosts for took in _nccl_of(view).get(host, [])]
        chosen = {name: took.set[name] for took in told for name in STEERING if name in took.set}
        why = (
            "it found no device: libibverbs1 and ibverbs-providers have to be where the ranks run"
        )
        if chosen:
            why = "set is " + ", ".join(f"{name}={value}" for name, value in chosen.items())
        elif not any(took.no_device for took in told):
            why = "its lines beginning with NET/IB and NET/Plugin say why: NCCL_DEBUG=INFO"
        yield warn(
            f"NCCL goes by TCP sockets between {name_hosts(hosts)}, though InfiniBand is there",
            hosts,
            seen=f"NET/Socket between {join_some(f'{a} and {b}' for a, b in slow)}; {_list_ports(view, hosts)}",
            expected="NET/IB, ten times as fast and more",
            hint=f"{why}; in a container: --device=/dev/infiniband --ulimit memlock=-1",
            cure=Cure(env={"NCCL_IB_DISABLE": "0"}) if "NCCL_IB_DISABLE" in chosen else None,
        )
    yield from _missing_rails(view)


def _missing_rails(view: View) -> RuleResults:
    used = {
        host: {name for took in told for name in took.devices}
        for host, told in _nccl_of(view).items()
    }
    most = max(used.values(), key=len, default=set())
    for host, devices in used.items():
        if devices and len(devices) < len(most):
            facts = view.of(FabricFacts)[host]
            states = {f"{port.device}:{port.port}": port.state for port in facts.ports}
            gone = sorted(name.partition("/")[0] for name in most - devices)
            lost = [f"{name} {states.get(name, 'not there')}" for name in gone]
            yield warn(
                f"NCCL uses {len(devices)} network adapters on {host}, {len(most)} on other hosts",
                (host,),
                seen=f"{', '.join(sorted(devices))}; not {join_some(lost)}",
                expected="the same number on every host: a ring is as fast as its slowest rail",
                hint="ibstat; a port that is down, a device that the container was not given, NCCL_IB_HCA",
            )


@hint("modprobe nvidia_peermem, or DMA-BUF; NCCL_NET_GDR_LEVEL.")
@host_rule("nccl.gpudirect", "coll", Level.STANDARD, CollFacts, FabricFacts, unless=_unless_nccl)
def _gpudirect(host: HostView) -> RuleResults:
    """InfiniBand without GPUDirect RDMA: everything is copied through the processor's memory."""
    told = _told(host)
    ways = {way for took in told for *_, way, _ in took.pairs if way.startswith("NET/IB")}
    without = [way for way in ways if not way.endswith("/GDRDMA")]
    if not ways:
        yield NotApplicable("NCCL took no InfiniBand")
    elif without:
        reasons = dict.fromkeys(each for took in told for each in took.without_gdr)
        far = any("distance" in each for each in reasons)
        level = next(
            (t.set["NCCL_NET_GDR_LEVEL"] for t in told if "NCCL_NET_GDR_LEVEL" in t.set), ""
        )
        part = "some channels" if len(without) < len(ways) else "all channels"
        yield warn(
            f"GPUDirect RDMA is off on {HERE} for {part} between hosts",
            seen=join_some((*sorted(ways), *(f"disabled for {each}" for each in reasons))),
            expected="…/GDRDMA: else every message goes through the processor's memory",
            hint=f"NCCL_NET_GDR_LEVEL={level} is set" if level
            else "GPU and adapter hang at different processors: NCCL_NET_GDR_LEVEL=SYS, if that is faster"
            if far
            else "sudo modprobe nvidia_peermem; or an open kernel driver with DMA-BUF; in a VM, ATS and ACS",
        )  # fmt: skip


@hint("NCCL_IB_GID_INDEX: the index of a RoCE v2 address that is routed, as show_gids lists them.")
@host_rule("nccl.gid", "coll", Level.STANDARD, CollFacts, FabricFacts, unless=_unless_nccl)
def _gid(host: HostView) -> RuleResults:
    """RoCE by an address that no router passes on (link-local), or by RoCE v1: connections that time out."""
    told = _told(host)
    if not any(name.endswith("/RoCE") for took in told for name in took.devices):
        yield NotApplicable("NCCL took no RoCE")
        return
    ports = {f"{port.device}:{port.port}": port for port in host.of(FabricFacts).ports}
    bad: dict[str, tuple[str, RdmaPort | None]] = {}
    for took in told:
        for device, index, local in took.gids:
            name = took.devices[device] if device < len(took.devices) else ""
            port = ports.get(name.partition("/")[0])
            entry = port.gids.get(str(index), "") if port is not None else ""
            if name.endswith("/RoCE") and (local or "RoCE v1" in entry):
                kind = "a link-local address" if local else "RoCE v1"
                number = f"index {index}" if index >= 0 else "the index that NCCL chose"
                bad[name] = (f"{kind} ({number})", port)
    if bad:
        better = next((i for _, port in bad.values() if port for i in _routed(port.gids)), None)
        yield warn(
            f"NCCL reaches others from {HERE} by {next(iter(bad.values()))[0]}",
            seen=join_some(f"{name}: {what}" for name, (what, _) in bad.items()),
            expected="a RoCE v2 address of the network that the hosts share",
            hint=f"export NCCL_IB_GID_INDEX={better}" if better else
            "give the interface an IP address; show_gids lists what there is",
            cure=Cure(env={"NCCL_IB_GID_INDEX": better}) if better else None,
        )  # fmt: skip


def _routed(gids: Mapping[str, str]) -> Iterator[str]:
    """Yield the indices of RoCE v2 addresses that are not link-local, those of IPv4 first."""
    good = {i: text for i, text in gids.items() if "v2" in text and not text.startswith("fe80")}
    yield from sorted(good, key=lambda index: (":ffff:" not in good[index], int(index)))


@hint("ACS off and iommu=pt for GPUDirect; else what the line says.")
@host_rule("nccl.warnings", "coll", Level.STANDARD, CollFacts, unless=_unless_nccl)
def _warnings(host: HostView) -> RuleResults:
    """What NCCL itself warned of in the check's job: P2P that is off, ACS, IOMMU, queue pairs that fail."""
    said = list(dict.fromkeys(line for took in _told(host) for line in took.trouble))
    if said:
        text = " ".join(said)
        acs = any(word in text for word in ("iommu", "ACS", "status=12", "error 12", "error 4"))
        yield warn(
            f"NCCL on {HERE} says: {said[0]}",
            seen="\n".join(said),
            hint=ACS_HINT if acs else
            "P2P between GPUs is off: nvidia-smi topo -p2p r; ACS, IOMMU, or a container without IPC"
            if "P2P" in text else "",
        )  # fmt: skip


@hint("Open MPI with UCX: pml ucx; UCX_NET_DEVICES.")
@rule("mpi.network", "coll", Level.STANDARD, MpiCollFacts, FabricFacts)
def _mpi_network(view: View) -> RuleResults:
    """Open MPI's messages on TCP though InfiniBand is there."""
    slow = _tcp_pairs(view, MpiCollFacts, "tcp")
    hosts = list(dict.fromkeys(host for pair in slow for host in pair))
    if hosts:
        pml = {each.took.network for each in took_of(view, MpiCollFacts) if each.took.network}
        yield info(
            f"Open MPI goes by TCP between {name_hosts(hosts)}, though InfiniBand is there",
            hosts,
            seen=f"btl tcp, pml {', '.join(sorted(pml))}; {_list_ports(view, hosts)}",
            expected="pml ucx; it matters where gradients go by MPI",
            hint="an Open MPI that is built with UCX; export OMPI_MCA_pml=ucx",
        )
