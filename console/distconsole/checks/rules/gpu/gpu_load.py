"""Checks of group ``gpu`` on GPUs that something was copied to: CUDA, PCIe and NVLink at work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from distconsole.checks.engine.rule import (
    HERE,
    NotApplicable,
    RuleResults,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.gpu import GpuFacts, GpuLoadFacts, LoadedGpu, NvLink
from distconsole.checks.rules.gpu.gpu_links import (
    MOST_REPLAYS,
    Loaded,
    alone,
    find_slow,
    loaded,
    most_lanes,
    narrow,
    poor,
    slower,
)
from distconsole.checks.rules.gpu.gpus import on_gpu_hosts
from distconsole.checks.rules.wording import numbers, who
from distconsole.model.findings import Severity
from distconsole.model.requests import Level

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

MAX_LISTED = 8
HARD = ("replays", "recoveries")
"""One of these is too many, by DCGM's health checks; of CRC errors only a hundred a second matter."""
MANY_ERRORS = 100


def _skip_unmeasured(view: View) -> RuleResults:
    """Leave out the hosts where no GPU could be loaded, with the reason of the first one."""
    for name, load in view.of(GpuLoadFacts).items():
        if load.gpus and not any(gpu.measured for gpu in load.gpus):
            yield NotApplicable(_why_not(load.gpus[0]), (name,))


def _why_not(gpu: LoadedGpu) -> str:
    if gpu.error:
        return f"GPU {gpu.index}: CUDA does not work (see gpu.cuda)"
    return f"GPU {gpu.index}: {_reason(gpu)}"


def _reason(gpu: LoadedGpu) -> str:
    return gpu.skipped + (f" by {who(gpu.process)}" if gpu.process is not None else "")


@rule("gpu.cuda", "gpu", Level.STANDARD, GpuFacts, GpuLoadFacts)
@hint("The fabric manager, nvidia_uvm, a reset, a reboot.")
@on_gpu_hosts
def _cuda(view: View) -> RuleResults:
    """CUDA that does not start, or a GPU that it does not get: errors 802, 803, 999, one that hangs."""
    for name, load in view.of(GpuLoadFacts).items():
        if load.gpus and all(gpu.skipped for gpu in load.gpus):
            yield NotApplicable(_why_not(load.gpus[0]), (name,))
        errors: dict[str, list[int]] = defaultdict(list)
        for gpu in load.gpus:
            if gpu.error:
                errors[gpu.error].append(gpu.index)
        for error, gpus in errors.items():
            code = error.rpartition("(")[2].rstrip(")")
            yield fail(
                f"CUDA does not work on GPU {numbers(gpus)} of {HERE}: {error}",
                (name,),
                seen=error,
                expected="a context, and a copy of some MiB",
                hint=CUDA_HINTS.get(code, CUDA_HINT),
            )


@rule("gpu.pcie_load", "gpu", Level.STANDARD, GpuFacts, GpuLoadFacts)
@hint("Reseat the card or its riser; BIOS; leave the host out until then.")
@on_gpu_hosts
def _pcie(view: View) -> RuleResults:
    """At work: half of the lanes, an older PCIe generation, replays, copies far slower than the others'."""
    yield from _skip_unmeasured(view)
    loads = view.of(GpuLoadFacts)
    every = loaded(view.of(GpuFacts), loads)
    slow = find_slow(every, "to_device")
    for name, load in loads.items():
        mine = [each for each in every if each.host == name]
        yield from _lanes(name, mine, every)
        yield from _slots(name, mine, every)
        yield from _generation(name, mine, every)
        well = [each.gpu for each in mine if not (narrow(each.gpu) or slower(each.gpu))]
        usual = {at: right for (on, at), right in slow.items() if on == name}
        yield from _rate(name, well, usual)
        yield from _replays(name, [each.gpu for each in mine])
        if mine:
            yield from _say_left_out(name, load.gpus)


def _say_left_out(name: str, gpus: Sequence[LoadedGpu]) -> RuleResults:
    reasons: dict[str, list[int]] = defaultdict(list)
    for gpu in gpus:
        if gpu.skipped:
            reasons[_reason(gpu)].append(gpu.index)
    for reason, left in reasons.items():
        yield info(
            f"GPU {numbers(left)} of {HERE} was not measured at work: {reason}",
            (name,),
            hint="check again when nobody uses it",
        )


def _lanes(name: str, mine: Sequence[Loaded], every: list[Loaded]) -> RuleResults:
    bad = [each for each in mine if narrow(each.gpu)]
    if bad:
        odd = any(alone(each, every, "width") for each in bad)
        yield (fail if odd else warn)(
            f"GPU {numbers(each.gpu.index for each in bad)} of {HERE} uses only a part of its PCIe "
            "lanes while something is copied to it",
            (name,),
            seen=_list_gpus((g, f"x{g.width} of x{g.width_max}, {_speed(g)}") for g in _gpus(bad)),
            expected="all lanes" + (", as most GPUs of the model have" if odd else ""),
            hint=RESEAT + LEAVE_OUT,
        )


def _slots(name: str, mine: Sequence[Loaded], every: list[Loaded]) -> RuleResults:
    """What card and slot can is less than most cards of the model have: another slot."""
    usual = most_lanes(every)
    bad = [each for each in mine if (each.gpu.width_max or 0) < usual.get(each.model, 0)]
    if bad:
        yield warn(
            f"GPU {numbers(each.gpu.index for each in bad)} of {HERE} is in a slot with fewer PCIe "
            "lanes than most of its model have",
            (name,),
            seen=_list_gpus(
                (g, f"x{g.width_max} of x{usual[model]}, {_speed(g)}") for _, model, g in bad
            ),
            expected="slots alike: the slowest GPU sets the pace",
            hint="another slot, or the BIOS's bifurcation; " + LEAVE_OUT,
        )


def _generation(name: str, mine: Sequence[Loaded], every: list[Loaded]) -> RuleResults:
    bad = [each for each in mine if slower(each.gpu)]
    if bad:
        odd = any(alone(each, every, "generation") for each in bad)
        yield (fail if odd else warn)(
            f"GPU {numbers(each.gpu.index for each in bad)} of {HERE} stays at an older PCIe "
            "generation while something is copied to it",
            (name,),
            seen=_list_gpus(
                (g, f"generation {g.generation} of {g.generation_max}, {_speed(g)}")
                for g in _gpus(bad)
            ),
            expected="what card and slot can" + (", as most GPUs of the model do" if odd else ""),
            hint=FIRMWARE + LEAVE_OUT,
        )


def _rate(name: str, gpus: Sequence[LoadedGpu], usual: dict[int, float]) -> RuleResults:
    slow = [gpu for gpu in gpus if gpu.index in usual]
    if slow:
        yield warn(
            f"copies to GPU {numbers(gpu.index for gpu in slow)} of {HERE} are far slower than to the "
            "others of its kind",
            (name,),
            seen=_list_gpus(
                (gpu, f"{_speed(gpu)}, usual {_gb(usual[gpu.index])}") for gpu in slow
            ),
            expected="about the same for GPUs of a model with the same link",
            hint="what else uses the host's memory or the switch above it (nvidia-smi topo -m, top); "
            "IOMMU in passthrough (iommu=pt); numactl --hardware",
        )
    lame = {gpu.index: most for gpu in gpus if gpu not in slow and (most := poor(gpu))}
    if lame:
        yield warn(
            f"GPU {numbers(lame)} of {HERE} gets little of what its PCIe lanes carry",
            (name,),
            seen=_list_gpus(
                (g, f"{_speed(g)}, lanes {_gb(lame[g.index])}") for g in gpus if g.index in lame
            ),
            expected="about 80 %",
            hint="IOMMU in passthrough (iommu=pt) on bare metal; in a VM: pinned memory and 1 GiB pages",
        )


def _replays(name: str, gpus: Sequence[LoadedGpu]) -> RuleResults:
    bad = [gpu for gpu in gpus if (gpu.replays or 0) >= MOST_REPLAYS]
    if bad:
        yield warn(
            f"PCIe has to send again to GPU {numbers(gpu.index for gpu in bad)} of {HERE}",
            (name,),
            seen=_list_gpus(
                (gpu, f"{gpu.replays} replays in a fraction of a second") for gpu in bad
            ),
            expected=f"fewer than {MOST_REPLAYS} in a minute: the signal is bad",
            hint=RESEAT + LEAVE_OUT,
        )


@rule("gpu.nvlink_load", "gpu", Level.STANDARD, GpuFacts, GpuLoadFacts)
@hint("nvidia-smi nvlink -e; a reset, then a ticket.")
@on_gpu_hosts
def _nvlink(view: View) -> RuleResults:
    """NVLinks that drop or count errors at work, copies over them that fail or are far slower than the others'."""
    yield from _skip_unmeasured(view)
    loads = view.of(GpuLoadFacts)
    every = loaded(view.of(GpuFacts), loads)
    slow = find_slow(every, "to_peer")
    for name, load in loads.items():
        measured = [gpu for gpu in load.gpus if gpu.measured]
        if measured and not any(gpu.links for gpu in measured):
            why = "one GPU only, or the others are in use" if len(measured) == 1 else "no NVLink"
            yield NotApplicable(why, (name,))
            continue
        yield from _links(name, measured)
        refused = [gpu for gpu in measured if gpu.peer_error]
        if refused:
            yield fail(
                f"GPU {numbers(gpu.index for gpu in refused)} of {HERE} cannot copy over NVLink",
                (name,),
                seen=_list_gpus((gpu, f"to GPU {gpu.peer}: {gpu.peer_error}") for gpu in refused),
                expected="copies between GPUs that NVLink joins",
                hint=CUDA_HINT,
            )
        late = {gpu.index: gpu for gpu in measured if (name, gpu.index) in slow}
        if late:
            yield warn(
                f"GPU {numbers(late)} of {HERE} copies over NVLink far slower than the others of its kind",
                (name,),
                seen=_list_gpus(
                    (g, f"{_gb(g.to_peer or 0)} to GPU {g.peer}, usual {_gb(slow[name, at])}")
                    for at, g in late.items()
                ),
                expected="about the same for GPUs of a model with as many NVLinks",
                hint="nvidia-smi topo -m; nvidia-smi nvlink -s; NCCL_DEBUG=INFO says what NCCL takes",
            )


def _links(name: str, gpus: Sequence[LoadedGpu]) -> RuleResults:
    dropped = {gpu.index: [x.link for x in gpu.links if x.up_before and not x.up] for gpu in gpus}
    dropped = {index: links for index, links in dropped.items() if links}
    if dropped:
        yield fail(
            f"GPU {numbers(dropped)} of {HERE} lost NVLinks while something was copied",
            (name,),
            seen="; ".join(f"GPU {index}: link {numbers(at)}" for index, at in dropped.items()),
            expected="links that stay up",
            hint="drain the host; sudo nvidia-smi -r, sudo systemctl restart nvidia-fabricmanager; "
            "where it comes again the board is to be replaced",
        )
    bad = {
        gpu.index: [(link, *told) for link in gpu.links if (told := _errors(link)) is not None]
        for gpu in gpus
    }
    bad = {index: links for index, links in bad.items() if links}
    if bad:
        grades = {grade for links in bad.values() for _, grade, _ in links}
        yield (fail if Severity.FAIL in grades else warn)(
            f"NVLinks of GPU {numbers(bad)} of {HERE} have errors while something is copied",
            (name,),
            seen="; ".join(
                f"GPU {index}: "
                + ", ".join(f"link {link.link}: {words}" for link, _, words in links)
                for index, links in bad.items()
            ),
            expected="none: each one is sent again, and NCCL waits for it",
            hint="nvidia-smi nvlink -e; sudo nvidia-smi -r when nothing uses the GPUs; where it comes "
            "again: a ticket with dcgmi diag -r 3",
        )


def _errors(link: NvLink) -> tuple[Severity, str] | None:
    """Return how bad the errors of a link are, and the words; None without one."""
    counts = {
        "replays": link.replays,
        "recoveries": link.recoveries,
        "CRC errors": (link.flit_errors or 0) + (link.data_errors or 0),
    }
    found = {name: count for name, count in counts.items() if count}
    if not found:
        return None
    hard = any(name in HARD for name in found) or found.get("CRC errors", 0) >= MANY_ERRORS
    words = ", ".join(f"{count} {name}" for name, count in found.items())
    return Severity.FAIL if hard else Severity.WARN, words


def _gpus(found: Sequence[Loaded]) -> list[LoadedGpu]:
    return [each.gpu for each in found]


def _list_gpus(told: Iterable[tuple[LoadedGpu, str]]) -> str:
    return "; ".join([f"GPU {gpu.index}: {words}" for gpu, words in told][:MAX_LISTED])


def _gb(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"


def _speed(gpu: LoadedGpu) -> str:
    counted = f" (it counted {_gb(gpu.counted)})" if gpu.counted else ""
    return f"{_gb(gpu.to_device or 0)} to it{counted}, {_gb(gpu.from_device or 0)} from it"


RULES = (_cuda, _pcie, _nvlink)
