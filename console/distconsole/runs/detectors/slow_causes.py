"""Why a rank is slow, by figures of its host, its GPU or its process at that time; compared with the others'.

``SIGNS`` is the table of known causes, a row each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import nan
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from msgspec import structs

from distconsole.model.run_events import GpuSample, NodeSample, RunFinding, Window
from distconsole.runs.detectors.conclusions import XID
from distconsole.runs.detectors.ranks import RanksSeen

Sample: TypeAlias = NodeSample | GpuSample | RunFinding

TELLING_SECONDS = 15.0
"""Seconds after which a report is too old to explain a slow rank."""
CLOCK_SHARE = 0.9
"""Clocks below this share of the others' are slow."""
WAITING_PERCENT = 5.0
"""Waiting for a processor or a disk is a cause if it exceeds that of the others by this share."""
FULL_PERCENT, MORE_PERCENT = 95.0, 15.0
"""Processors or memory count as full from here on, if those of the others are less so by the second number."""
BUSY_PERCENT, IDLE_CPUS = 80.0, 2.0
"""Workers that each use this share of a processor are too few, if this share of the processors is idle."""
SWAP_BYTES_S, ERRORS_S, RESENT_S, TIMES = 1e6, 1.0, 20.0, 5.0
"""Least rate a second, and least ratio to the usual one, of a cause."""
RESENT_SHARE, PACKET_BYTES = 0.005, 1500
"""A host that resends a smaller share of its packets merely sends fast: so do healthy hosts under load."""
LOADED_PERCENT = 10.0
"""A GPU that is used less may have turned its PCIe generation down to save power."""


class SlowCause(NamedTuple):
    """The cause of a slow rank: a word for programs, words to read, and the remedy."""

    kind: str
    text: str
    hint: str


class Seen(NamedTuple):
    """Reports about a rank at one moment; None without one."""

    gpu: GpuSample | None
    window: Window | None
    node: NodeSample | None


class Sign(NamedTuple):
    """A figure that is a cause if it differs from the median of the others'."""

    kind: str
    of: Callable[[Seen], Any]
    """Subject of the figure; empty where it is unknown."""
    figure: Callable[[Any], Any]
    """A number, or a word."""
    is_odd: Callable[[Any, Any], bool]
    """Compares the rank's value with the usual one, which is NaN without reports of others: then no comparison holds."""
    text: Callable[[Any, Any, Any], str]
    hint: str
    """``{host}`` is the slow rank's."""


_gpu, _window, _node = attrgetter("gpu"), attrgetter("window"), attrgetter("node")


def _workers(seen: Seen) -> tuple[int, float, float] | None:
    return seen.window.workers if seen.window else None


def _short_of_workers(seen: Seen) -> tuple[int, NodeSample] | None:
    workers, node = _workers(seen), seen.node
    if workers is None or node is None or workers[1] < BUSY_PERCENT:
        return None
    return (workers[0], node) if _idle_cpus(node) >= IDLE_CPUS else None


def _idle_cpus(node: NodeSample) -> float:
    return (node.cpus or 0) * (100.0 - (100.0 if node.cpu is None else node.cpu)) / 100


def _name(gpu: GpuSample) -> str:
    return f"GPU {gpu.gpu} of {gpu.host}"


def _generation(gpu: GpuSample) -> float | None:
    """Return the share of the highest generation; None at rest."""
    if not gpu.pcie or not all(gpu.pcie) or (gpu.util or 0.0) < LOADED_PERCENT:
        return None
    return gpu.pcie[2] / gpu.pcie[3]


def _memory(node: NodeSample) -> float | None:
    if node.mem_used is None or not node.mem_total:
        return None
    return 100.0 * node.mem_used / node.mem_total


def _resent(node: NodeSample) -> float | None:
    """Return the segments that are sent again a second; 0 if they are a small share of all that the host sends."""
    resent, sent = node.net_resent_s, node.net_tx_s
    few = sent is not None and (resent or 0.0) * PACKET_BYTES < RESENT_SHARE * sent
    return 0.0 if few else resent


def _slower(own: float, usual: float) -> bool:
    return 0 < own < CLOCK_SHARE * usual


def _waiting(own: float, usual: float) -> bool:
    return own >= usual + WAITING_PERCENT


def _full(own: float, usual: float) -> bool:
    return own >= max(FULL_PERCENT, usual + MORE_PERCENT) and usual >= 0


def _rising(least: float) -> Callable[[float, float], bool]:
    return lambda own, usual: own >= least and own >= TIMES * usual


_LOOK_AT_DISK = (
    "look at the file systems of its data and checkpoints on {host}: iostat -x 1, nfsiostat, df"
)
_LOOK_AT_PCIE = (
    "have the GPU, its riser or its slot looked at: nvidia-smi -q -d PCIE, lspci -vv on {host}"
)
_LOOK_AT_USE = "look which processes use it: top on {host}"

SIGNS = (
    Sign("xid", _gpu, lambda gpu: gpu.xid, lambda own, _: own > 0,
         lambda gpu, own, _: f"the driver reports Xid {own:.0f} of {_name(gpu)}",
         "sudo dmesg | grep -i xid on {host} says more; look the number up in NVIDIA's Xid catalog"),
    Sign("gpu_shared", _gpu, lambda gpu: len(gpu.strangers), lambda own, _: own > 0,
         lambda gpu, *_: f"{_name(gpu)} is shared with pid {gpu.strangers[0]}",
         "end it, or give the rank another GPU"),
    Sign("ecc", _gpu, lambda gpu: gpu.ecc_uncorrected, lambda own, usual: own > 0 and not usual > 0,
         lambda gpu, own, _: f"{_name(gpu)} counts {own:,.0f} uncorrected memory errors",
         "leave the host out, and have the GPU replaced"),
    Sign("pcie", _gpu, lambda gpu: gpu.pcie[0] / gpu.pcie[1] if gpu.pcie and all(gpu.pcie) else None, _slower,
         lambda gpu, *_: f"{_name(gpu)} uses {gpu.pcie[0]} of its {gpu.pcie[1]} PCIe lanes",
         _LOOK_AT_PCIE),
    Sign("pcie", _gpu, _generation, _slower,
         lambda gpu, *_: f"{_name(gpu)} runs PCIe of generation {gpu.pcie[2]} where {gpu.pcie[3]} is possible",
         _LOOK_AT_PCIE),
    Sign("clocks", _gpu, lambda gpu: gpu.sm_clock_mhz, _slower,
         lambda gpu, own, usual: f"{_name(gpu)} runs at {own:,.0f} MHz where {usual:,.0f} is usual",
         "nvidia-smi -q -d CLOCK on {host}; nvidia-smi -rgc"),
    Sign("swap", _node, lambda node: node.swap_in_s, _rising(SWAP_BYTES_S),
         lambda node, own, usual: f"{node.host} reads {own / 1e6:,.1f} MB/s back from swap, the others {usual / 1e6:,.1f}",
         "its memory is too small for what runs there: fewer or smaller workers and batches; free -h on {host}"),
    Sign("disk", _window, lambda window: window.disk_wait, _waiting,
         lambda _, own, usual: f"it waits for a disk {own:.0f} % of the time, the others {usual:.0f} %",
         _LOOK_AT_DISK),
    Sign("disk", _workers, lambda workers: workers[2], lambda own, usual: own >= max(50.0, usual + 25.0),
         lambda workers, own, _: f"{own:.0f} % of its {workers[0]} DataLoader workers wait for a disk",
         _LOOK_AT_DISK),
    Sign("processors", _window, lambda window: window.cpu_wait, _waiting,
         lambda _, own, usual: f"it waits for a processor {own:.0f} % of the time, the others {usual:.0f} %",
         "another process runs on its processors: top on {host}, sorted by CPU; taskset"),
    Sign("memory", _node, _memory, _full,
         lambda node, own, usual: f"the memory of {node.host} is {own:.0f} % in use, the others' {usual:.0f} %",
         _LOOK_AT_USE),
    Sign("processors", _node, lambda node: node.cpu, _full,
         lambda node, own, usual: f"the processors of {node.host} are {own:.0f} % in use, the others' {usual:.0f} %",
         _LOOK_AT_USE),
    Sign("workers", _short_of_workers, lambda found: found[0], lambda own, _: own > 0,
         lambda found, own, _: f"its {own:.0f} DataLoader worker{'s use' if own > 1 else ' uses'} a processor"
         f"{' each' if own > 1 else ''}, and {_idle_cpus(found[1]):.0f} of {found[1].cpus} of {found[1].host} are idle",
         "give the DataLoader more workers (num_workers), or less work for each sample"),
    Sign("disk", _node, lambda node: node.disk_wait, lambda own, usual: own >= usual + MORE_PERCENT,
         lambda node, own, usual: f"something on {node.host} waits for a disk {own:.0f} % of the time, on the others {usual:.0f} %",
         _LOOK_AT_DISK),
    Sign("network", _node, lambda node: node.net_errors_s, _rising(ERRORS_S),
         lambda node, own, usual: f"the network of {node.host} has {own:,.0f} errors and drops a second, the others' {usual:,.0f}",
         "ip -s link and ethtool -S on {host}; have the cable, the port and the switch looked at; distconsole check"),
    Sign("network", _node, _resent, _rising(RESENT_S),
         lambda node, own, usual: f"{node.host} sends {own:,.0f} TCP segments again a second, the others {usual:,.0f}",
         "nstat -az TcpRetransSegs and ip -s link on {host}; distconsole check measures what each pair of hosts carries"),
    Sign("cpu_clock", _node, lambda node: node.cpu_mhz, _slower,
         lambda node, own, usual: f"the processors of {node.host} run at {own:,.0f} MHz at most, the others' at {usual:,.0f}"
         + (f" ({node.cpu_model})" if node.cpu_model else ""),
         "another model, or a limit: lscpu and cpupower frequency-info on {host}"),
    Sign("cpu_model", _node, lambda node: node.cpu_model, lambda own, usual: isinstance(usual, str) and own != usual,
         lambda node, own, usual: f"the processors of {node.host} are {own}, the others' {usual}",
         "compare them by a test of the script on one host each: distconsole bench"),
)  # fmt: skip
"""In the order in which they are tried: the most specific and the smallest first."""
LASTING = ("cpu_clock", "cpu_model")
"""Kinds that do not come and go while a run lasts."""


class Load:
    """The newest words of hosts and GPUs, and the errors of those that ranks use."""

    def __init__(self, ranks: RanksSeen) -> None:
        self._ranks = ranks
        self._nodes: dict[str, NodeSample] = {}
        self._gpus: dict[int, GpuSample] = {}

    def taken(self, events: Iterator[Sample]) -> Iterator[Sample]:
        """Yield ``events`` and new findings; keep samples."""
        for event in events:
            if isinstance(event, NodeSample):
                self._nodes[event.host] = event
                self._ranks.sampled[event.host] = event.t
            elif isinstance(event, GpuSample) and isinstance(event.rank, int):
                before = self._gpus.get(event.rank)
                xid = before.xid if before else None
                if event.xid and event.xid != xid:
                    yield self._xid_finding(event, event.rank)
                # A GPU reports an error for some seconds, and its effect lasts.
                lasts = xid and not event.xid
                self._gpus[event.rank] = structs.replace(event, xid=xid) if lasts else event
            yield event

    def _xid_finding(self, gpu: GpuSample, rank: int) -> RunFinding:
        what = f"the driver reports Xid {gpu.xid} of {_name(gpu)}, which rank {rank} uses"
        hint = SIGNS[0].hint.replace("{host}", gpu.host)
        return self._ranks.finding(gpu.t, XID, what, (rank,), hosts=(gpu.host,), hint=hint)

    def cause_by_host(self, windows: Mapping[int, Window], t: float) -> SlowCause | None:
        """Return the difference between the ranks of one host and the others now; None without one.

        Different processors are none: they have always been so.
        """
        hosts: dict[str, list[int]] = {}
        for rank, window in sorted(windows.items()):
            hosts.setdefault(window.host, []).append(rank)
        found = (self.cause_of(ranks, windows, t) for ranks in hosts.values())
        return next((each for each in found if each and each.kind not in LASTING), None)

    def cause_of(
        self, ranks: Collection[int], windows: Mapping[int, Window], t: float
    ) -> SlowCause | None:
        """Return why ``ranks`` are slow, at ``t`` (UNIX seconds); None if they do not differ from the others."""
        gpus = {rank: gpu for rank, gpu in self._gpus.items() if abs(t - gpu.t) <= TELLING_SECONDS}
        nodes = {host: n for host, n in self._nodes.items() if abs(t - n.t) <= TELLING_SECONDS}
        seen = {
            rank: Seen(gpus.get(rank), window, nodes.get(window.host))
            for rank, window in windows.items()
        }
        mine = [seen.pop(rank) for rank in ranks if rank in seen]
        hosts = {windows[rank].host for rank in ranks if rank in windows}
        elsewhere = [Seen(None, None, node) for host, node in nodes.items() if host not in hosts]
        found = (
            _by(sign, mine, elsewhere if sign.of is _node else seen.values()) for sign in SIGNS
        )
        return _of_throttling(mine, seen.values()) or next(filter(None, found), None)


def _by(sign: Sign, mine: Iterable[Seen], others: Iterable[Seen]) -> SlowCause | None:
    """Return the cause that ``sign`` shows of one of ``mine``; of ranks' own waiting, of all of them."""
    figures = [figure for _, figure in _figures(sign, others)]
    usual: Any = nan
    if figures and isinstance(figures[0], str):
        usual = figures[0] if len(set(figures)) == 1 else nan  # the word that all share
    elif figures:
        usual = median(figures)
    known = list(_figures(sign, mine))
    odd = [(it, own) for it, own in known if sign.is_odd(own, usual)]
    if not odd or (sign.of is _window and len(odd) < len(known)):
        return None
    it, own = odd[0]
    host = next((each.window.host for each in mine if each.window and sign.of(each) == it), "it")
    return SlowCause(sign.kind, sign.text(it, own, usual), sign.hint.replace("{host}", host))


def _figures(sign: Sign, seen: Iterable[Seen]) -> Iterator[tuple[Any, Any]]:
    for each in seen:
        it = sign.of(each)
        figure = None if it is None else sign.figure(it)
        if figure is not None:
            yield it, figure


def _of_throttling(mine: Iterable[Seen], others: Iterable[Seen]) -> SlowCause | None:
    usual = {reason for each in others if each.gpu for reason in each.gpu.throttle}
    for gpu in (each.gpu for each in mine if each.gpu):
        own = ", ".join(reason for reason in gpu.throttle if reason not in usual)
        if own:
            heat = f" at {gpu.temp_c:.0f} °C" if gpu.temp_c is not None else ""
            look = f"look at its cooling and power: nvidia-smi -q -d PERFORMANCE on {gpu.host}"
            return SlowCause("throttled", f"{_name(gpu)} is held back ({own}){heat}", look)
    return None
