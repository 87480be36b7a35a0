"""The check of group ``gpu`` on what somebody set: power limits and clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from distconsole.checks.engine.rule import Said, hint, info, rule, warn
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.gpu import GpuLoadFacts
from distconsole.checks.facts.node import GpuFacts
from distconsole.checks.rules.gpu.gpu_health import clock_reasons, silent
from distconsole.checks.rules.gpu.gpus import gpus_by_host, on_gpu_hosts
from distconsole.checks.rules.majority import dissent, name_hosts
from distconsole.model.requests import Level

CLOCKS_SET = 0x02
"""nvmlClocksEventReasonApplicationsClocksSetting; some models have it as they are delivered."""


@rule("gpu.limits", "gpu", Level.STANDARD, GpuFacts, after=(GpuLoadFacts,))
@hint("nvidia-smi -pl, -rgc, -rac")
@on_gpu_hosts
def _limits(view: View) -> Iterator[Said]:
    """A power limit, or clocks, that somebody set on some GPUs only: stragglers."""
    facts = gpus_by_host(view)
    yield from silent(view, "power_limit_mw")
    yield from _power(facts)
    yield from _clocks(view, facts)


def _power(facts: Mapping[str, GpuFacts]) -> Iterator[Said]:
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


def _clocks(view: View, facts: Mapping[str, GpuFacts]) -> Iterator[Said]:
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


RULES = (_limits,)
