"""Checks of group ``gpu`` on how devices are and were set: clocks, power, memory errors, PCIe, the fabric."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from distconsole.checks.engine.rule import (
    HERE,
    NotApplicable,
    RuleResults,
    differ,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.gpu import FabricFacts, GpuFacts, GpuLoadFacts, LoadedGpu
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.rules.gpu.gpus import gpus_by_host, on_gpu_hosts
from distconsole.checks.rules.wording import dissent, name_hosts, numbers
from distconsole.model.requests import Level

SLOWDOWNS = {
    0x08: "the hardware slows it down",
    0x20: "it is too hot",
    0x40: "it is too hot (hardware)",
    0x80: "the power supply brakes it",
}
"""nvmlClocksEventReason bits that no healthy GPU has; a power cap under load is not among them.

Source: nvml.h; the probe asks twice, as the first comes for a moment with every change of clocks, too.
"""
FABRIC_STATES = {1: "not started", 2: "in progress"}
FABRIC_DONE = 3
MOST_SRAM_ERRORS = 4
"""Uncorrectable ones ever, beyond which NVIDIA replaces a GPU."""


def silent(view: View, *fields: str) -> RuleResults:
    """Leave out the hosts whose driver has no answer for any of their GPUs."""
    names = tuple(
        name
        for name, found in gpus_by_host(view).items()
        if all(getattr(each, field) is None for each in found.health for field in fields)
    )
    yield NotApplicable("the driver does not say", names)


def _loads_by_index(view: View) -> dict[str, dict[int, LoadedGpu]]:
    """Return by host and index the GPUs that were measured while something was copied to them."""
    return {
        name: {gpu.index: gpu for gpu in load.gpus if gpu.measured}
        for name, load in view.of(GpuLoadFacts).items()
    }


def clock_reasons(view: View) -> dict[str, dict[int, int]]:
    """Return by host and index why clocks are held back, at rest or at work."""
    loaded = _loads_by_index(view)
    found: dict[str, dict[int, int]] = {}
    for name, facts in gpus_by_host(view).items():
        rest = {each.index: each.clock_reasons or 0 for each in facts.health}
        work = {index: gpu.clock_reasons for index, gpu in loaded.get(name, {}).items()}
        found[name] = {index: reasons | work.get(index, 0) for index, reasons in rest.items()}
    return found


@rule("gpu.throttle", "gpu", Level.STANDARD, GpuFacts, after=(GpuLoadFacts,))
@hint("nvidia-smi -q -d PERFORMANCE")
@on_gpu_hosts
def _throttle(view: View) -> RuleResults:
    """GPUs that heat or power holds back, at rest or while something is copied: stragglers."""
    yield from silent(view, "clock_reasons")
    held = clock_reasons(view)
    for name, found in gpus_by_host(view).items():
        slow = {
            index: [why for bit, why in SLOWDOWNS.items() if reasons & bit]
            for index, reasons in held[name].items()
        }
        slow = {index: reasons for index, reasons in slow.items() if reasons}
        if slow:
            temperatures = {each.index: each.temperature_c for each in found.health}
            reasons = sorted({why for each in slow.values() for why in each})
            yield warn(
                f"GPU {numbers(slow)} of {name} runs slower than it could: {', '.join(reasons)}",
                (name,),
                seen="; ".join(
                    f"GPU {index}: {', '.join(why)}, {temperatures[index]} C"
                    for index, why in list(slow.items())[:8]
                ),
                expected="full clocks: one slow GPU makes all ranks wait",
                hint="nvidia-smi -q -d PERFORMANCE,TEMPERATURE; fans and inlet air, power cables and caps",
            )


@rule("gpu.memory_errors", "gpu", Level.STANDARD, GpuFacts)
@hint("A reset, or a new GPU.")
@on_gpu_hosts
def _memory_errors(view: View) -> RuleResults:
    """Uncorrectable memory errors, now or too many ever, rows that wait for a reset, memory beyond repair."""
    yield from silent(view, "remap_pending", "remap_failed", "uncorrected")
    for name, found in gpus_by_host(view).items():
        failed = [each.index for each in found.health if each.remap_failed]
        pending = [each.index for each in found.health if each.remap_pending]
        errors = {each.index: each.uncorrected for each in found.health if each.uncorrected}
        worn = {
            each.index: each.sram_uncorrected
            for each in found.health
            if (each.sram_uncorrected or 0) > MOST_SRAM_ERRORS
        }
        if worn:
            yield fail(
                f"GPU {numbers(worn)} of {name} had too many uncorrectable errors in its SRAM",
                (name,),
                seen="; ".join(f"GPU {index}: {count} ever" for index, count in worn.items()),
                expected=f"at most {MOST_SRAM_ERRORS}, in all its life",
                hint="drain the host and have the GPU replaced",
            )
        if failed:
            yield fail(
                f"GPU {numbers(failed)} of {name} has bad memory that cannot be replaced by spare rows",
                (name,),
                seen="remapped_rows.failure: yes",
                hint="drain the host and have the GPU replaced",
            )
        if pending:
            yield warn(
                f"GPU {numbers(pending)} of {name} waits for a reset to replace bad memory",
                (name,),
                seen="remapped_rows.pending: yes",
                expected="no; jobs are safe meanwhile, as the driver leaves that memory out",
                hint=f"on {name}, when nothing uses it: sudo nvidia-smi -r -i "
                + ",".join(map(str, pending)),
            )
        if errors:
            yield warn(
                f"GPU {numbers(errors)} of {name} had uncorrectable memory errors since its last reset",
                (name,),
                seen="; ".join(f"GPU {index}: {count}" for index, count in errors.items()),
                expected="0",
                hint="sudo nvidia-smi -r; where they come again: dcgmi diag -r 3",
            )


@rule("gpu.pcie", "gpu", Level.STANDARD, GpuFacts, after=(GpuLoadFacts,))
@hint("Reseat the card; BIOS.")
@on_gpu_hosts
def _pcie(view: View) -> RuleResults:
    """At rest: a card that came up with half of its lanes, slots of an older generation on one host.

    At rest some GPUs use fewer lanes: where it was measured at work, gpu.pcie_load judges them.
    """
    yield from silent(view, "pcie_width", "pcie_generation_max")
    found = gpus_by_host(view)
    loaded = _loads_by_index(view)
    for name, facts in found.items():
        narrow = {
            each.index: (each.pcie_width, each.pcie_width_max)
            for each in facts.health
            if each.pcie_width
            and each.pcie_width_max
            and each.pcie_width < each.pcie_width_max
            and each.index not in loaded.get(name, {})
        }
        if narrow:
            yield warn(
                f"GPU {numbers(narrow)} of {name} uses only a part of its PCIe lanes (at rest)",
                (name,),
                seen="; ".join(f"GPU {i}: x{now} of x{most}" for i, (now, most) in narrow.items()),
                expected="all lanes: copies to and from it take twice as long with half of them",
                hint="reseat the card or the riser; lspci -vv shows LnkSta against LnkCap",
            )
    yield from differ(
        warn,
        "PCIe generation",
        {
            name: max(known)
            for name, facts in found.items()
            if (known := [h.pcie_generation_max for h in facts.health if h.pcie_generation_max])
        },
        hint="a BIOS setting",
    )


@rule("gpu.nvlink", "gpu", Level.STANDARD, GpuFacts)
@hint("nvidia-smi nvlink -s")
@on_gpu_hosts
def _nvlink(view: View) -> RuleResults:
    """NVLinks that are down on some GPUs: collectives at the speed of PCIe.

    Cards without a bridge have links that are down; what most GPUs of a kind have is right.
    """
    found = gpus_by_host(view)
    usual: dict[str, Counter[int]] = defaultdict(Counter)
    for facts in found.values():
        models = facts.models
        for each in facts.health:
            usual[models.get(each.index, "")][each.links_up] += 1
    if not any(up for counts in usual.values() for up in counts):
        yield NotApplicable("no NVLink", tuple(found))
        return
    for name, facts in found.items():
        fewer, models = {}, facts.models
        for each in facts.health:
            counts = usual[models.get(each.index, "")]
            right, hosts_with = counts.most_common(1)[0]
            if each.links_up < right and 2 * hosts_with > counts.total():
                fewer[each.index] = (each.links_up, right)
        if fewer:
            yield fail(
                f"GPU {numbers(fewer)} of {name} has NVLinks that are down",
                (name,),
                seen="; ".join(f"GPU {i}: {up} of {right} up" for i, (up, right) in fewer.items()),
                expected="as many as the other GPUs of the kind",
                hint="nvidia-smi nvlink -s; sudo systemctl restart nvidia-fabricmanager, then a reset",
            )


@rule("gpu.fabric", "gpu", Level.STANDARD, GpuFacts, FabricFacts)
@hint("systemctl enable --now nvidia-fabricmanager")
@on_gpu_hosts
def _fabric(view: View) -> RuleResults:
    """NVSwitches without a fabric manager: CUDA error 802, `system not yet initialized`."""
    fabric = view.of(FabricFacts)
    for name, facts in gpus_by_host(view).items():
        states = {
            each.index: FABRIC_STATES[each.fabric_state]
            for each in facts.health
            if each.fabric_state in FABRIC_STATES
        }
        states |= {
            each.index: f"failed with error {each.fabric_status}"
            for each in facts.health
            if each.fabric_state == FABRIC_DONE and each.fabric_status
        }
        if fabric[name].switches and fabric[name].fabric_manager is False:
            yield fail(
                f"NVSwitches, and no fabric manager runs on {HERE}",
                (name,),
                seen=f"{fabric[name].switches} x /dev/nvidia-nvswitch, no nv-fabricmanager",
                expected="a fabric manager of the driver's version; else CUDA fails with error 802",
                hint=f"sudo apt install nvidia-fabricmanager-{(facts.driver or 'VERSION').split('.')[0]}; "
                "sudo systemctl enable --now nvidia-fabricmanager",
            )
        elif states:
            yield fail(
                f"GPU {numbers(states)} of {name} has not joined the NVLink fabric",
                (name,),
                seen="; ".join(f"GPU {index}: {state}" for index, state in states.items()),
                expected="completed; else CUDA fails with error 802",
                hint="sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
            )
        elif not fabric[name].switches and all(h.fabric_state in (None, 0) for h in facts.health):
            yield NotApplicable("no NVSwitch", (name,))


@rule("gpu.persistence", "gpu", Level.QUICK, GpuFacts)
@hint("nvidia-persistenced")
@on_gpu_hosts
def _persistence(view: View) -> RuleResults:
    """Persistence mode off on some hosts: their ranks start seconds later."""
    unknown = tuple(
        name
        for name, facts in gpus_by_host(view).items()
        if any(gpu.persistence is None for gpu in facts.gpus)
    )
    yield NotApplicable("the driver does not say", unknown)
    modes = {
        name: "on" if all(gpu.persistence for gpu in facts.gpus) else "off"
        for name, facts in gpus_by_host(view).items()
        if facts.gpus and name not in unknown
    }
    yield from differ(
        info,
        "persistence mode",
        modes,
        expected="on everywhere: else the driver starts anew with each job, for seconds",
        hint="sudo systemctl enable --now nvidia-persistenced; or: sudo nvidia-smi -pm 1",
    )


@rule("gpu.shared", "gpu", Level.QUICK, GpuFacts, NetFacts, SshFacts)
@hint("docker run --gpus device=…")
@on_gpu_hosts
def _find_shared(view: View) -> RuleResults:
    """Containers of one machine that were given the same GPUs: `Duplicate GPU detected`."""
    machine_of = machines(view)
    owners: dict[str, list[str]] = defaultdict(list)
    for name, facts in gpus_by_host(view).items():
        for gpu in facts.gpus:
            if gpu.uuid:
                owners[gpu.uuid].append(name)
    by_hosts: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for uuid, names in owners.items():
        if len({machine_of[name] for name in names}) > 1:
            by_hosts[tuple(names)].append(uuid)
    for hosts, uuids in by_hosts.items():
        yield fail(
            f"{name_hosts(hosts)} have the same {len(uuids)} GPUs: they are containers of one machine",
            hosts,
            seen=f"UUID {', '.join(uuids[:4])} on each",
            expected="GPUs of its own for each host; NCCL refuses two ranks on one",
            hint="give each container its own: docker run --gpus device=0,1, or CUDA_VISIBLE_DEVICES",
        )


CLOCKS_SET = 0x02
"""nvmlClocksEventReasonApplicationsClocksSetting; some models have it as they are delivered."""


@rule("gpu.limits", "gpu", Level.STANDARD, GpuFacts, after=(GpuLoadFacts,))
@hint("nvidia-smi -pl, -rgc, -rac")
@on_gpu_hosts
def _limits(view: View) -> RuleResults:
    """A power limit, or clocks, that somebody set on some GPUs only: stragglers."""
    facts = gpus_by_host(view)
    yield from silent(view, "power_limit_mw")
    yield from _power(facts)
    yield from _clocks(view, facts)


def _power(facts: Mapping[str, GpuFacts]) -> RuleResults:
    """Power limits are compared among GPUs of a model; one that all have is somebody's will."""
    by_model: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    capped: dict[str, str] = {}
    for name, found in facts.items():
        models = found.models
        for each in found.health:
            limit, usual = each.power_limit_mw, each.power_default_mw
            if limit:
                by_model[models.get(each.index, "")][name].add(limit)
            if limit and usual and limit < usual:
                capped[name] = f"{_watts(limit)} of {_watts(usual)}"
    differs = False
    for limits in by_model.values():
        split = dissent(
            {name: " and ".join(map(_watts, sorted(each))) for name, each in limits.items()}
        )
        if split is not None:
            differs = True
            yield warn(
                split.told("a power limit of"),
                split.minority,
                expected="the same for GPUs of a model: the slowest one sets the pace",
                hint="nvidia-smi -q -d POWER; sudo nvidia-smi -pl WATTS, as on the others",
            )
    if capped and not differs:
        yield info(
            f"the GPUs of {name_hosts(list(capped))} may not use their full power",
            tuple(capped),
            seen="; ".join(f"{name}: {words}" for name, words in list(capped.items())[:8]),
            hint="sudo nvidia-smi -pl WATTS, where it is not meant",
        )


def _clocks(view: View, facts: Mapping[str, GpuFacts]) -> RuleResults:
    """Clocks that somebody set count where fewer than half of a model's GPUs have it."""
    by_model: dict[str, list[tuple[str, int, bool]]] = defaultdict(list)
    for name, reasons in clock_reasons(view).items():
        models = facts[name].models
        for index, bits in reasons.items():
            by_model[models.get(index, "")].append((name, index, bool(bits & CLOCKS_SET)))
    for gpus in by_model.values():
        held = [(name, index) for name, index, is_set in gpus if is_set]
        if held and 2 * len(held) < len(gpus):
            hosts = tuple(dict.fromkeys(name for name, _ in held))
            yield warn(
                f"somebody set the clocks of {len(held)} of {len(gpus)} GPUs, on {name_hosts(hosts)}",
                hosts,
                seen="; ".join(f"{name}: GPU {index}" for name, index in held[:8]),
                expected="the same for GPUs of a model: the slowest one sets the pace",
                hint="sudo nvidia-smi -rgc; sudo nvidia-smi -rac",
            )


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.0f} W"


RULES = (
    _find_shared,
    _persistence,
    _throttle,
    _memory_errors,
    _pcie,
    _nvlink,
    _fabric,
    _limits,
)
