"""Checks of group ``gpu`` on GPUs that something was copied to: CUDA, PCIe and NVLink at work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, judge_each, rule
from distconsole.checks.facts.evidence import View, by_key
from distconsole.checks.facts.gpu import GpuFacts, GpuLoadFacts, LoadedGpu, NvLink
from distconsole.checks.rules.gpu.gpus import find_gpus, find_usual, unless_gpu
from distconsole.checks.rules.wording import numbers, who
from distconsole.model.requests import Level

SLOW_SHARE = 0.6
"""Of the median of GPUs of the kind; two on one switch that shares its lanes are above half."""

LANE_BYTES = {1: 250e6, 2: 500e6, 3: 985e6, 4: 1969e6, 5: 3938e6, 6: 7563e6}
"""A second, of one PCIe lane by generation, after its encoding."""

POOR_SHARE = 0.25
"""Share of what the lanes can carry: less is a fault even if all GPUs have it."""

MOST_REPLAYS = 8
"""In a minute, by DCGM's dcgm_gpu_hardware_limits.h; ours have less than a second."""

MANY_ERRORS = 100
"""Of CRC; one replay or recovery is too many, by DCGM's health checks."""

CUDA_HINTS = {
    "802": "sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
    "803": "the driver was updated: reboot the host",
    "804": "take CUDA's compat folder out of LD_LIBRARY_PATH, or update the driver",
    "999": "sudo modprobe nvidia_uvm; where that does not help: reboot the host",
}
CUDA_HINT = (
    "sudo dmesg | grep -iE 'xid|nvrm'; sudo nvidia-smi -r when nothing uses it; else reboot"
)
RESEAT = "reseat the card or its riser, lspci -vv shows LnkSta against LnkCap; "
LEAVE_OUT = "leave the host out of runs over several hosts until then"
FIRMWARE = "the BIOS: the slot's link speed, ASPM off; a riser made for that generation; "


class Loaded(NamedTuple):
    """A GPU that copies went to: whose, its model, and how it was."""

    host: str
    model: str
    gpu: LoadedGpu

    @property
    def place(self) -> tuple[str, int]:
        return self.host, self.gpu.index


def gpus_at_work(facts: Mapping[str, GpuFacts], loads: Mapping[str, GpuLoadFacts]) -> list[Loaded]:
    models = {name: found.models for name, found in facts.items()}
    return [
        Loaded(host, models.get(host, {}).get(gpu.index, ""), gpu)
        for host, load in loads.items()
        for gpu in load.gpus
        if gpu.measured
    ]


def _carries(gpu: LoadedGpu) -> float:
    """Return the capacity of its lanes in one direction, in bytes a second; 0 if unknown."""
    return LANE_BYTES.get(gpu.generation or 0, 0.0) * (gpu.width or 0)


def _disproves_link(gpu: LoadedGpu) -> bool:
    """Whether more was copied than the reported link can carry, as in virtual machines."""
    return 0 < _carries(gpu) < max(gpu.to_device or 0, gpu.from_device or 0)


def _is_narrow(gpu: LoadedGpu) -> bool:
    return 0 < (gpu.width or 0) < (gpu.width_max or 0) and not _disproves_link(gpu)


def _is_older(gpu: LoadedGpu) -> bool:
    return 0 < (gpu.generation or 0) < (gpu.generation_max or 0) and not _disproves_link(gpu)


def _is_poor(gpu: LoadedGpu) -> bool:
    """Whether copies reach hardly any of what its lanes carry."""
    return gpu.to_device is not None and gpu.to_device < POOR_SHARE * _carries(gpu)


def _is_odd(one: Loaded, every: Sequence[Loaded], field: str) -> bool:
    values = Counter(getattr(each.gpu, field) for each in every if each.model == one.model)
    return 2 * values[getattr(one.gpu, field)] < values.total()


def _find_slow(every: Sequence[Loaded], field: str) -> dict[tuple[str, int], float]:
    """Return the usual rate (median of its model with that link) of each GPU (host, index) far below it."""
    kinds = by_key(
        ((each.model, gpu.width, gpu.generation, field == "to_peer" and gpu.links_up), each)
        for each in every
        if getattr(gpu := each.gpu, field)
    )
    slow: dict[tuple[str, int], float] = {}
    for alike in kinds.values():
        usual = median(getattr(each.gpu, field) for each in alike)
        slow |= {e.place: usual for e in alike if getattr(e.gpu, field) < SLOW_SHARE * usual}
    return slow


def suspects(
    facts: Mapping[str, GpuFacts], loads: Mapping[str, GpuLoadFacts]
) -> dict[str, list[str]]:
    """Return by host the UUIDs of GPUs that are to be measured once more before they are accused."""
    every = gpus_at_work(facts, loads)
    slow = _find_slow(every, "to_device")
    found = []
    for each in every:
        gpu = each.gpu
        doubtful = _is_narrow(gpu) or _is_older(gpu) or _is_poor(gpu) or each.place in slow
        if gpu.uuid and (doubtful or (gpu.replays or 0) >= MOST_REPLAYS):
            found.append((each.host, gpu.uuid))
    return by_key(found)


def _unless_load(host: HostView) -> NotApplicable | None:
    gpus = host.of(GpuLoadFacts).gpus
    if unless_gpu(host) or not gpus or any(gpu.measured for gpu in gpus):
        return unless_gpu(host)
    why = "CUDA does not work (see gpu.cuda)" if gpus[0].error else _skip_reason(gpus[0])
    return NotApplicable(f"GPU {gpus[0].index}: {why}")


def _skip_reason(gpu: LoadedGpu) -> str:
    return gpu.skipped + (f" by {who(gpu.process)}" if gpu.process is not None else "")


@hint("The fabric manager, nvidia_uvm, a reset, a reboot.")
@host_rule("gpu.cuda", "gpu", Level.STANDARD, GpuFacts, GpuLoadFacts, unless=unless_gpu)
def _cuda(host: HostView) -> RuleResults:
    """CUDA that does not start, or a GPU that it does not get: errors 802, 803, 999, one that hangs."""
    gpus = host.of(GpuLoadFacts).gpus
    if gpus and all(gpu.skipped for gpu in gpus):
        yield NotApplicable(f"GPU {gpus[0].index}: {_skip_reason(gpus[0])}")
    for error in dict.fromkeys(gpu.error for gpu in gpus if gpu.error):
        yield from find_gpus(
            fail,
            [gpu.index for gpu in gpus if gpu.error == error],
            "CUDA does not work on {}: " + error,
            seen=error,
            expected="a context, and a copy of some MiB",
            hint=CUDA_HINTS.get(error.rpartition("(")[2].rstrip(")"), CUDA_HINT),
        )


@hint("Reseat the card or its riser; BIOS; leave the host out until then.")
@rule(*("gpu.pcie_load", "gpu", Level.STANDARD, GpuFacts, GpuLoadFacts), unless=_unless_load)
def _pcie(view: View) -> RuleResults:
    """At work: half of the lanes, an older PCIe generation, replays, copies far slower than the others'."""
    every = gpus_at_work(view.of(GpuFacts), view.of(GpuLoadFacts))
    slow = _find_slow(every, "to_device")

    def judge(host: HostView) -> RuleResults:
        mine = [each for each in every if each.host == str(host)]
        yield from _check_links(mine, every)
        yield from _check_rates(mine, slow)
        left_out = [gpu for gpu in host.of(GpuLoadFacts).gpus if mine and gpu.skipped]
        for reason, left in by_key((_skip_reason(gpu), gpu.index) for gpu in left_out).items():
            yield info(
                f"GPU {numbers(left)} of {HERE} was not measured at work: {reason}",
                hint="check again when nobody uses it",
            )

    yield from judge_each(judge)(view)


def _check_links(mine: Sequence[Loaded], every: Sequence[Loaded]) -> RuleResults:
    narrow = [each for each in mine if _is_narrow(each.gpu)]
    odd = any(_is_odd(each, every, "width") for each in narrow)
    yield from find_gpus(
        fail if odd else warn,
        {g.index: f"x{g.width} of x{g.width_max}, {_speed(g)}" for _, _, g in narrow},
        "{} uses only a part of its PCIe lanes while something is copied to it",
        expected="all lanes" + (", as most GPUs of the model have" if odd else ""),
        hint=RESEAT + LEAVE_OUT,
    )
    lanes = find_usual((each.model, each.gpu.width_max or 0) for each in every)
    yield from find_gpus(
        warn,
        {
            g.index: f"x{g.width_max} of x{lanes[model]}, {_speed(g)}"
            for _, model, g in mine
            if model in lanes and (g.width_max or 0) < lanes[model]
        },
        "{} is in a slot with fewer PCIe lanes than most of its model have",
        expected="slots alike: the slowest GPU sets the pace",
        hint="another slot, or the BIOS's bifurcation; " + LEAVE_OUT,
    )
    older = [each for each in mine if _is_older(each.gpu)]
    odd = any(_is_odd(each, every, "generation") for each in older)
    yield from find_gpus(
        fail if odd else warn,
        {
            g.index: f"generation {g.generation} of {g.generation_max}, {_speed(g)}"
            for _, _, g in older
        },
        "{} stays at an older PCIe generation while something is copied to it",
        expected="what card and slot can" + (", as most GPUs of the model do" if odd else ""),
        hint=FIRMWARE + LEAVE_OUT,
    )


def _check_rates(mine: Sequence[Loaded], slow: Mapping[tuple[str, int], float]) -> RuleResults:
    well = [each for each in mine if not (_is_narrow(each.gpu) or _is_older(each.gpu))]
    usual = {each.gpu.index: slow[each.place] for each in well if each.place in slow}
    gpus = {each.gpu.index: each.gpu for each in mine}
    yield from find_gpus(
        warn,
        {i: f"{_speed(gpus[i])}, usual {_gb(rate)}" for i, rate in usual.items()},
        "copies to {} are far slower than to the others of its kind",
        expected="about the same for GPUs of a model with the same link",
        hint="what else uses the host's memory or the switch above it (nvidia-smi topo -m, top); "
        "IOMMU in passthrough (iommu=pt); numactl --hardware",
    )
    yield from find_gpus(
        warn,
        {
            g.index: f"{_speed(g)}, lanes {_gb(_carries(g))}"
            for _, _, g in well
            if g.index not in usual and _is_poor(g)
        },
        "{} gets little of what its PCIe lanes carry",
        expected="about 80 %",
        hint="IOMMU in passthrough (iommu=pt) on bare metal; in a VM: pinned memory and 1 GiB pages",
    )
    replays = {index: gpu.replays or 0 for index, gpu in gpus.items()}
    yield from find_gpus(
        warn,
        {
            index: f"{count} replays in a fraction of a second"
            for index, count in replays.items()
            if count >= MOST_REPLAYS
        },
        "PCIe has to send again to {}",
        expected=f"fewer than {MOST_REPLAYS} in a minute: the signal is bad",
        hint=RESEAT + LEAVE_OUT,
    )


@hint("nvidia-smi nvlink -e; a reset, then a ticket.")
@rule(*("gpu.nvlink_load", "gpu", Level.STANDARD, GpuFacts, GpuLoadFacts), unless=_unless_load)
def _nvlink(view: View) -> RuleResults:
    """NVLinks that drop or count errors at work, copies over them that fail or are far slower than the others'."""
    slow = _find_slow(gpus_at_work(view.of(GpuFacts), view.of(GpuLoadFacts)), "to_peer")

    def judge(host: HostView) -> RuleResults:
        gpus = [gpu for gpu in host.of(GpuLoadFacts).gpus if gpu.measured]
        if gpus and not any(gpu.links for gpu in gpus):
            one = len(gpus) == 1
            yield NotApplicable("one GPU only, or the others are in use" if one else "no NVLink")
            return
        yield from _check_nvlinks(gpus)
        yield from find_gpus(
            fail,
            {g.index: f"to GPU {g.peer}: {g.peer_error}" for g in gpus if g.peer_error},
            "{} cannot copy over NVLink",
            expected="copies between GPUs that NVLink joins",
            hint=CUDA_HINT,
        )
        usual = {gpu.index: slow.get((str(host), gpu.index)) for gpu in gpus}
        yield from find_gpus(
            warn,
            {
                g.index: f"{_gb(g.to_peer or 0)} to GPU {g.peer}, usual {_gb(rate)}"
                for g in gpus
                if (rate := usual[g.index]) is not None
            },
            "{} copies over NVLink far slower than the others of its kind",
            expected="about the same for GPUs of a model with as many NVLinks",
            hint="nvidia-smi topo -m; nvidia-smi nvlink -s; NCCL_DEBUG=INFO says what NCCL takes",
        )

    yield from judge_each(judge)(view)


def _check_nvlinks(gpus: Sequence[LoadedGpu]) -> RuleResults:
    dropped = {g.index: [x.link for x in g.links if x.up_before and not x.up] for g in gpus}
    yield from find_gpus(
        fail,
        {index: f"link {numbers(links)}" for index, links in dropped.items() if links},
        "{} lost NVLinks while something was copied",
        expected="links that stay up",
        hint="drain the host; sudo nvidia-smi -r, sudo systemctl restart nvidia-fabricmanager; "
        "where it comes again the board is to be replaced",
    )
    errors: dict[int, list[str]] = {}
    for index, link in ((gpu.index, link) for gpu in gpus for link in gpu.links):
        crc = _crc_errors(link)
        counts = {"replays": link.replays, "recoveries": link.recoveries, "CRC errors": crc}
        if words := ", ".join(f"{count} {name}" for name, count in counts.items() if count):
            errors.setdefault(index, []).append(f"link {link.link}: {words}")
    links = [link for gpu in gpus for link in gpu.links]
    hard = any(x.replays or x.recoveries or _crc_errors(x) >= MANY_ERRORS for x in links)
    yield from find_gpus(
        fail if hard else warn,
        {index: ", ".join(words) for index, words in errors.items()},
        "NVLinks of {} have errors while something is copied",
        expected="none: each one is sent again, and NCCL waits for it",
        hint="nvidia-smi nvlink -e; sudo nvidia-smi -r when nothing uses the GPUs; where it comes "
        "again: a ticket with dcgmi diag -r 3",
    )


def _crc_errors(link: NvLink) -> int:
    return (link.flit_errors or 0) + (link.data_errors or 0)


def _gb(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"


def _speed(gpu: LoadedGpu) -> str:
    counted = f" (it counted {_gb(gpu.counted)})" if gpu.counted else ""
    return f"{_gb(gpu.to_device or 0)} to it{counted}, {_gb(gpu.from_device or 0)} from it"
