"""Checks of group ``gpu``: what NVML tells of devices and driver, compared between hosts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps

from distconsole.checks.engine.rule import (
    Judge,
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
from distconsole.checks.facts.gpu import Gpu, GpuFacts
from distconsole.checks.rules.wording import dissent, name_hosts, numbers, size, who
from distconsole.model.requests import Level

MIB = 1024 * 1024
HELD_BYTES = 512 * MIB
"""More than the driver itself keeps on an idle GPU."""

ALIKE = 1.08
"""Sizes within it are one: drivers keep some, and ECC on GDDR takes a sixteenth."""
PROHIBITED = 2
"""nvmlComputeMode_t; of the others 0 is the default, 1 and 3 let one process in."""


def on_gpu_hosts(judge: Judge) -> Judge:
    """Leave out, by name, the hosts where there is nothing to judge."""

    @wraps(judge)
    def judged(view: View) -> RuleResults:
        facts = view.of(GpuFacts)
        none = not any(found.present for found in facts.values())
        without = tuple(name for name, found in facts.items() if not found.present)
        yield NotApplicable("no GPU", without)
        if not none:
            yield from judge(view)

    return judged


def gpus_by_host(view: View) -> dict[str, GpuFacts]:
    """Return the facts of the hosts that have GPUs and a driver that answers."""
    return {name: found for name, found in view.of(GpuFacts).items() if found.present}


@rule("gpu.driver_answers", "gpu", Level.QUICK, GpuFacts)
@hint("Reboot, or load the new kernel module.")
def _visible(view: View) -> RuleResults:
    """`Driver/library version mismatch` after an update, a driver that hangs, one host without GPUs.

    The driver must answer where there is one, and on all hosts where it does on some.
    """
    facts = view.of(GpuFacts)
    some = any(found.present for found in facts.values())
    for name, found in facts.items():
        if found.present:
            continue
        if found.kernel_module or found.devices or (found.error and some):
            yield fail(
                f"the NVIDIA driver on {name} does not answer: {found.error or 'no library'}",
                (name,),
                seen=f"kernel module {found.kernel_module or 'not loaded'}, "
                f"{found.devices} device files",
                expected="a driver whose library and kernel module agree",
                hint="after an update of the driver: reboot, or `sudo rmmod nvidia_uvm nvidia_drm "
                "nvidia_modeset nvidia && sudo modprobe nvidia`",
            )
        elif some:
            yield warn(f"{name} has no GPU, other hosts have", (name,))
        else:
            yield NotApplicable("no GPU", (name,))


@rule("gpu.count", "gpu", Level.QUICK, GpuFacts)
@hint("nvidia-smi -L; dmesg | grep -i xid")
@on_gpu_hosts
def _count(view: View) -> RuleResults:
    """A GPU that fell off the bus; hosts with fewer GPUs than the others."""
    facts = gpus_by_host(view)
    for name, found in facts.items():
        for gpu in found.broken:
            yield fail(
                f"GPU {gpu.index} of {name} cannot be opened: {gpu.error}",
                (name,),
                hint="sudo dmesg | grep -i xid; a GPU that fell off the bus needs a reboot",
            )
    yield from differ(
        warn,
        "GPUs:",
        {
            name: found.count
            for name, found in facts.items()
            if view.expectation(name).gpus is None
        },
        expected="as many on every host",
        hint="nvidia-smi -L; slots per host where it is meant: HOST:SLOTS",
    )


@rule("gpu.driver", "gpu", Level.QUICK, GpuFacts)
@hint("Bring all hosts to one driver.")
@on_gpu_hosts
def _driver(view: View) -> RuleResults:
    """One host with another driver, or with a kernel module that is not the library's."""
    facts = gpus_by_host(view)
    yield from differ(
        warn,
        "driver",
        {name: found.driver or "unknown" for name, found in facts.items()},
        expected="the same driver on every host",
        hint="sudo apt-mark hold 'nvidia-*' keeps unattended updates away",
    )
    for name, found in facts.items():
        if found.kernel_module and found.driver and found.kernel_module != found.driver:
            yield fail(
                f"{name}: kernel module {found.kernel_module}, library {found.driver}",
                (name,),
                hint="reboot the host",
            )


@rule("gpu.model", "gpu", Level.QUICK, GpuFacts)
@hint("Place the job on equal GPUs.")
@on_gpu_hosts
def _model(view: View) -> RuleResults:
    """Mixed models: the slowest one sets the pace."""
    facts = gpus_by_host(view)
    kinds = {
        name: ", ".join(sorted({gpu.name or "unknown" for gpu in found.gpus}))
        for name, found in facts.items()
    }
    yield from differ(info, "GPUs:", kinds)


@rule("gpu.memory", "gpu", Level.QUICK, GpuFacts)
@hint("A batch for the smallest, or equal GPUs.")
@on_gpu_hosts
def _memory(view: View) -> RuleResults:
    """GPUs, or MIG instances, with less memory than the others': out of memory there first.

    What a rank gets: of a GPU, or of an instance where MIG is on.
    """
    facts = {
        name: found
        for name, found in gpus_by_host(view).items()
        if view.expectation(name).gpu_memory is None
    }
    sizes = {name: _sizes(found) for name, found in facts.items()}
    unknown = tuple(name for name, each in sizes.items() if not each)
    yield NotApplicable("the driver does not say", unknown)
    steps = _steps({one for each in sizes.values() for _, one in each})
    told = {
        name: " and ".join(
            dict.fromkeys(f"{kind}{size(steps[one])}" for kind, one in sorted(each, key=_bytes))
        )
        for name, each in sizes.items()
        if each
    }
    yield from differ(
        warn,
        "GPU memory of",
        told,
        expected="the same on every host: the smallest one is where a batch fails first",
        hint="a batch for the smallest, or leave these hosts out; nvidia-smi -L shows MIG instances",
    )


def _sizes(found: GpuFacts) -> set[tuple[str, int]]:
    whole = {("", gpu.mem_total) for gpu in found.gpus if gpu.mem_total and not gpu.instances}
    return whole | {("MIG ", each) for gpu in found.gpus for each in gpu.instances}


def _bytes(told: tuple[str, int]) -> int:
    return told[1]


def _steps(sizes: set[int]) -> dict[int, int]:
    """Return for each size the smallest one that counts as the same."""
    found: dict[int, int] = {}
    least = 0
    for each in sorted(sizes):
        least = each if each > ALIKE * least else least
        found[each] = least
    return found


@rule("gpu.modes", "gpu", Level.QUICK, GpuFacts)
@hint("nvidia-smi -e, -mig, -c")
@on_gpu_hosts
def _modes(view: View) -> RuleResults:
    """ECC or MIG on some hosts or GPUs only, or after the next reset; exclusive or prohibited mode."""
    facts = gpus_by_host(view)
    for what, values in (
        ("ECC", {name: tuple(gpu.ecc for gpu in f.gpus) for name, f in facts.items()}),
        ("MIG", {name: tuple(gpu.mig for gpu in f.gpus) for name, f in facts.items()}),
    ):
        split = dissent(
            {name: tuple(sorted({v or 0 for v in value})) for name, value in values.items()}
        )
        if split is not None:
            yield warn(f"{what} differs on {name_hosts(split.minority)}", split.minority)
    for name, found in facts.items():
        yield from _modes_of(name, found.gpus)


def _modes_of(name: str, gpus: Sequence[Gpu]) -> RuleResults:
    closed = [gpu.index for gpu in gpus if gpu.compute_mode == PROHIBITED]
    if closed:
        yield fail(
            f"GPU {numbers(closed)} of {name} lets nobody compute",
            (name,),
            seen="compute mode prohibited",
            hint=f"sudo nvidia-smi -c DEFAULT -i {','.join(map(str, closed))}",
        )
    exclusive = [gpu.index for gpu in gpus if gpu.compute_mode not in (None, 0, PROHIBITED)]
    if exclusive:
        yield warn(
            f"GPUs {', '.join(map(str, exclusive))} of {name} take one process only",
            (name,),
            hint="sudo nvidia-smi -c DEFAULT",
        )
    split = [gpu.index for gpu in gpus if gpu.mig]
    if split and len(split) < len(gpus):
        yield warn(
            f"MIG is on for GPU {numbers(split)} of {name} and off for the others",
            (name,),
            expected="one or the other: a process sees one MIG instance, and then no other GPU",
            hint=f"sudo nvidia-smi -mig 0 -i {','.join(map(str, split))}, and a reset",
        )
    for what, waiting in (
        ("ECC", [gpu.index for gpu in gpus if gpu.ecc_next not in (None, gpu.ecc)]),
        ("MIG", [gpu.index for gpu in gpus if gpu.mig_next not in (None, gpu.mig)]),
    ):
        if waiting:
            yield info(
                f"{what} of GPU {numbers(waiting)} of {name} changes with the next reset or reboot",
                (name,),
                hint=f"sudo nvidia-smi -r -i {','.join(map(str, waiting))}, when nothing uses it",
            )


@rule("gpu.clean", "gpu", Level.QUICK, GpuFacts)
@hint("Stop what holds it.")
@on_gpu_hosts
def _clean(view: View) -> RuleResults:
    """Memory held by leftovers of an earlier job, or by somebody else."""
    for name, found in gpus_by_host(view).items():
        held = [gpu for gpu in found.gpus if gpu.processes and (gpu.mem_used or 0) > HELD_BYTES]
        if held:
            yield warn(
                f"{len(held)} of {found.count} GPUs of {name} are in use",
                (name,),
                seen="; ".join(
                    f"GPU {gpu.index}: {(gpu.mem_used or 0) // MIB} MiB, "
                    + ", ".join(map(who, gpu.processes[:4]))
                    for gpu in held
                ),
                hint=f"leftovers of a job of yours: on {name}: kill {_pids(held)}",
            )


def _pids(gpus: Sequence[Gpu]) -> str:
    return " ".join(sorted({str(p.pid) for gpu in gpus for p in gpu.processes if p.pid}))


RULES = (_visible, _count, _driver, _model, _memory, _modes, _clean)
