"""Checks of group ``gpu`` on how devices are and were set: clocks, power, memory errors, PCIe, the fabric."""

from __future__ import annotations

from collections import defaultdict

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, Unless, hint, host_rule, judge_each, rule
from distconsole.checks.facts.evidence import View, by_key
from distconsole.checks.facts.gpu import FabricFacts, GpuFacts
from distconsole.checks.rules.gpu.gpus import NO_ANSWER, find_gpus, find_usual, unless_gpu
from distconsole.checks.rules.wording import MAX_LISTED, differ, name_hosts
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
CLOCKS_SET = 0x02
"""nvmlClocksEventReasonApplicationsClocksSetting; some models have it as they are delivered."""
FABRIC_STATES = {1: "not started", 2: "in progress"}
FABRIC_DONE = 3
MOST_SRAM_ERRORS = 4
"""Uncorrectable ones ever, beyond which NVIDIA replaces a GPU."""


def unless_silent(*fields: str) -> Unless:
    """Leave out hosts without GPUs, and those whose driver has no answer for any of them."""

    def unless(host: HostView) -> NotApplicable | None:
        health = host.of(GpuFacts).health
        says = any(getattr(each, field) is not None for each in health for field in fields)
        return unless_gpu(host) or (None if says else NotApplicable(NO_ANSWER))

    return unless


@hint("nvidia-smi -q -d PERFORMANCE")
@host_rule(
    *("gpu.throttle", "gpu", Level.STANDARD, GpuFacts), unless=unless_silent("clock_reasons")
)
def _throttle(host: HostView) -> RuleResults:
    """GPUs that heat or power holds back: stragglers."""
    health = host.of(GpuFacts).health
    temperatures = {each.index: each.temperature_c for each in health}
    slow = {
        each.index: [why for bit, why in SLOWDOWNS.items() if (each.clock_reasons or 0) & bit]
        for each in health
    }
    every = sorted({why for reasons in slow.values() for why in reasons})
    yield from find_gpus(
        warn,
        {i: f"{', '.join(why)}, {temperatures[i]} C" for i, why in slow.items() if why},
        f"{{}} runs slower than it could: {', '.join(every)}",
        expected="full clocks: one slow GPU makes all ranks wait",
        hint="nvidia-smi -q -d PERFORMANCE,TEMPERATURE; fans and inlet air, power cables and caps",
    )


@hint("A reset, or a new GPU.")
@host_rule(
    *("gpu.memory_errors", "gpu", Level.STANDARD, GpuFacts),
    unless=unless_silent("remap_pending", "remap_failed", "uncorrected", "sram_uncorrected"),
)
def _memory_errors(host: HostView) -> RuleResults:
    """Uncorrectable memory errors, now or too many ever, rows that wait for a reset, memory beyond repair."""
    health = host.of(GpuFacts).health
    worn = {each.index: each.sram_uncorrected or 0 for each in health}
    yield from find_gpus(
        fail,
        {i: f"{count} ever" for i, count in worn.items() if count > MOST_SRAM_ERRORS},
        "{} had too many uncorrectable errors in its SRAM",
        expected=f"at most {MOST_SRAM_ERRORS}, in all its life",
        hint="drain the host and have the GPU replaced",
    )
    yield from find_gpus(
        fail,
        [each.index for each in health if each.remap_failed],
        "{} has bad memory that cannot be replaced by spare rows",
        seen="remapped_rows.failure: yes",
        hint="drain the host and have the GPU replaced",
    )
    pending = [each.index for each in health if each.remap_pending]
    yield from find_gpus(
        warn,
        pending,
        "{} waits for a reset to replace bad memory",
        seen="remapped_rows.pending: yes",
        expected="no; jobs are safe meanwhile, as the driver leaves that memory out",
        hint=f"on {HERE}, when nothing uses it: sudo nvidia-smi -r -i {','.join(map(str, pending))}",
    )
    yield from find_gpus(
        warn,
        {each.index: str(each.uncorrected) for each in health if each.uncorrected},
        "{} had uncorrectable memory errors since its last reset",
        expected="0",
        hint="sudo nvidia-smi -r; where they come again: dcgmi diag -r 3",
    )


@hint("Reseat the card; BIOS.")
@rule(
    *("gpu.pcie", "gpu", Level.STANDARD, GpuFacts),
    unless=unless_silent("pcie_width", "pcie_generation_max"),
)
def _pcie(view: View) -> RuleResults:
    """At rest: a card that came up with half of its lanes, slots of an older generation on one host."""
    yield from judge_each(_lanes)(view)
    facts = view.of(GpuFacts).items()
    generations = {
        name: max((each.pcie_generation_max or 0 for each in found.health), default=0)
        for name, found in facts
    }
    known = {name: each for name, each in generations.items() if each}
    yield from differ(warn, "PCIe generation", known, hint="a BIOS setting")


def _lanes(host: HostView) -> RuleResults:
    yield from find_gpus(
        warn,
        {
            each.index: f"x{each.pcie_width} of x{each.pcie_width_max}"
            for each in host.of(GpuFacts).health
            if 0 < (each.pcie_width or 0) < (each.pcie_width_max or 0)
        },
        "{} uses only a part of its PCIe lanes (at rest)",
        expected="all lanes: copies to and from it take twice as long with half of them",
        hint="reseat the card or the riser; lspci -vv shows LnkSta against LnkCap",
    )


@hint("nvidia-smi nvlink -s")
@rule("gpu.nvlink", "gpu", Level.STANDARD, GpuFacts, unless=unless_gpu)
def _nvlink(view: View) -> RuleResults:
    """NVLinks that are down on some GPUs: collectives at the speed of PCIe."""
    # Cards without a bridge have links that are down: what most GPUs of a model have is right.
    every = view.of(GpuFacts)
    links = [(f.models.get(e.index, ""), e.links_up) for f in every.values() for e in f.health]
    right = find_usual(links)
    if not any(up for _, up in links):
        yield NotApplicable("no NVLink", tuple(every))
        return

    def judge(host: HostView) -> RuleResults:
        facts = host.of(GpuFacts)
        wanted = {index: right.get(model, 0) for index, model in facts.models.items()}
        yield from find_gpus(
            fail,
            {
                each.index: f"{each.links_up} of {wanted[each.index]} up"
                for each in facts.health
                if each.links_up < wanted.get(each.index, right.get("", 0))
            },
            "{} has NVLinks that are down",
            expected="as many as the other GPUs of the kind",
            hint="nvidia-smi nvlink -s; sudo systemctl restart nvidia-fabricmanager, then a reset",
        )

    yield from judge_each(judge)(view)


@hint("systemctl enable --now nvidia-fabricmanager")
@host_rule("gpu.fabric", "gpu", Level.STANDARD, GpuFacts, FabricFacts, unless=unless_gpu)
def _fabric(host: HostView) -> RuleResults:
    """NVSwitches without a fabric manager: CUDA error 802, `system not yet initialized`."""
    facts, fabric = host.of(GpuFacts), host.of(FabricFacts)
    states = {
        each.index: f"failed with error {each.fabric_status}"
        if each.fabric_state == FABRIC_DONE
        else FABRIC_STATES[each.fabric_state]
        for each in facts.health
        if each.fabric_state in FABRIC_STATES
        or (each.fabric_state == FABRIC_DONE and each.fabric_status)
    }
    if fabric.switches and fabric.fabric_manager is False:
        yield fail(
            f"NVSwitches, and no fabric manager runs on {HERE}",
            seen=f"{fabric.switches} x /dev/nvidia-nvswitch, no nv-fabricmanager",
            expected="a fabric manager of the driver's version; else CUDA fails with error 802",
            hint=f"sudo apt install nvidia-fabricmanager-{(facts.driver or 'VERSION').split('.')[0]}; "
            "sudo systemctl enable --now nvidia-fabricmanager",
        )
        return
    yield from find_gpus(
        fail,
        states,
        "{} has not joined the NVLink fabric",
        expected="completed; else CUDA fails with error 802",
        hint="sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
    )
    if not fabric.switches and all(each.fabric_state in (None, 0) for each in facts.health):
        yield NotApplicable("no NVSwitch")


@hint("nvidia-smi -pl, -rgc, -rac")
@rule(*("gpu.limits", "gpu", Level.STANDARD, GpuFacts), unless=unless_silent("power_limit_mw"))
def _limits(view: View) -> RuleResults:
    """A power limit, or clocks, that somebody set on some GPUs only: stragglers."""
    yield from _compare_power(view)
    yield from _compare_clocks(view)


def _compare_power(view: View) -> RuleResults:
    """Compare power limits among GPUs of a model; a limit that all have is intended."""
    by_model: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    capped: dict[str, str] = {}
    for name, found in view.of(GpuFacts).items():
        for each in found.health:
            limit, usual = each.power_limit_mw, each.power_default_mw
            if limit:
                by_model[found.models.get(each.index, "")][name].add(limit)
            if limit and usual and limit < usual:
                capped[name] = f"{_watts(limit)} of {_watts(usual)}"
    unlike = [
        finding
        for limits in by_model.values()
        for finding in differ(
            warn,
            "a power limit of",
            {name: " and ".join(map(_watts, sorted(each))) for name, each in limits.items()},
            expected="the same for GPUs of a model: the slowest one sets the pace",
            hint="nvidia-smi -q -d POWER; sudo nvidia-smi -pl WATTS, as on the others",
        )
    ]
    yield from unlike
    for name, words in capped.items() if not unlike else ():
        yield info(
            f"the GPUs of {HERE} may not use their full power",
            (name,),
            seen=words,
            hint="sudo nvidia-smi -pl WATTS, where it is not meant",
        )


def _compare_clocks(view: View) -> RuleResults:
    """Report fixed clocks if fewer than half of a model's GPUs have them."""
    by_model = by_key(
        (
            facts.models.get(each.index, ""),
            (name, each.index, bool((each.clock_reasons or 0) & CLOCKS_SET)),
        )
        for name, facts in view.of(GpuFacts).items()
        for each in facts.health
    )
    for gpus in by_model.values():
        held = [(name, index) for name, index, is_set in gpus if is_set]
        if held and 2 * len(held) < len(gpus):
            hosts = tuple(dict.fromkeys(name for name, _ in held))
            yield warn(
                f"somebody set the clocks of {len(held)} of {len(gpus)} GPUs, on {name_hosts(hosts)}",
                hosts,
                seen="; ".join(f"{name}: GPU {index}" for name, index in held[:MAX_LISTED]),
                expected="the same for GPUs of a model: the slowest one sets the pace",
                hint="sudo nvidia-smi -rgc; sudo nvidia-smi -rac",
            )


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.0f} W"
