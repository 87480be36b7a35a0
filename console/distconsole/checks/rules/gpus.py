"""Checks of group ``gpu``: what NVML tells of devices and driver, compared between hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distconsole.checks.evidence import View
from distconsole.checks.facts import Gpu, GpuFacts
from distconsole.checks.majority import dissent, named
from distconsole.checks.rule import Judge, Rule, Said, Unjudged, fail, info, warn
from distconsole.checks.wording import who
from distconsole.model.requests import Level

MIB = 1024 * 1024
HELD_BYTES = 512 * MIB
"""More than the driver itself keeps on an idle GPU."""


def on_gpu_hosts(judge: Judge) -> Judge:
    """Leave out, by name, the hosts where there is nothing to judge."""

    def judged(view: View) -> Iterator[Said]:
        facts = view.of(GpuFacts)
        none = not any(found.present for found in facts.values())
        without = tuple(name for name, found in facts.items() if not found.present)
        if without:
            yield Unjudged(without, "no GPU")
        if not none:
            yield from judge(view)

    return judged


def with_gpus(view: View) -> dict[str, GpuFacts]:
    """Return the facts of the hosts that have GPUs and a driver that answers."""
    return {name: found for name, found in view.of(GpuFacts).items() if found.present}


def _visible(view: View) -> Iterator[Said]:
    """The driver must answer where there is one, and on all hosts where it does on some."""
    facts = view.of(GpuFacts)
    some = any(found.present for found in facts.values())
    for name, found in facts.items():
        if found.present:
            continue
        if found.kernel_module or found.devices or (found.error and some):
            yield fail(
                "gpu.driver_answers",
                f"the NVIDIA driver on {name} does not answer: {found.error or 'no library'}",
                (name,),
                seen=f"kernel module {found.kernel_module or 'not loaded'}, "
                f"{found.devices} device files",
                expected="a driver whose library and kernel module agree",
                hint="after an update of the driver: reboot, or `sudo rmmod nvidia_uvm nvidia_drm "
                "nvidia_modeset nvidia && sudo modprobe nvidia`",
            )
        elif some:
            yield warn("gpu.driver_answers", f"{name} has no GPU, other hosts have", (name,))
        else:
            yield Unjudged((name,), "no GPU")


def _count(view: View) -> Iterator[Said]:
    facts = with_gpus(view)
    for name, found in facts.items():
        for gpu in found.broken:
            yield fail(
                "gpu.count",
                f"GPU {gpu.index} of {name} cannot be opened: {gpu.error}",
                (name,),
                hint="sudo dmesg | grep -i xid; a GPU that fell off the bus needs a reboot",
            )
    split = dissent(
        {name: found.count for name, found in facts.items() if view.expectation(name).gpus is None}
    )
    if split is not None:
        yield warn(
            "gpu.count",
            split.told("GPUs:"),
            split.minority,
            expected="as many on every host",
            hint="nvidia-smi -L; slots per host where it is meant: HOST:SLOTS",
        )


def _driver(view: View) -> Iterator[Said]:
    facts = with_gpus(view)
    split = dissent({name: found.driver or "unknown" for name, found in facts.items()})
    if split is not None:
        yield warn(
            "gpu.driver",
            split.told("driver"),
            split.minority,
            expected="the same driver on every host",
            hint="sudo apt-mark hold 'nvidia-*' keeps unattended updates away",
        )
    for name, found in facts.items():
        if found.kernel_module and found.driver and found.kernel_module != found.driver:
            yield fail(
                "gpu.driver",
                f"{name}: kernel module {found.kernel_module}, library {found.driver}",
                (name,),
                hint="reboot the host",
            )


def _model(view: View) -> Iterator[Said]:
    facts = with_gpus(view)
    kinds = {
        name: ", ".join(sorted({gpu.name or "unknown" for gpu in found.gpus}))
        for name, found in facts.items()
    }
    split = dissent(kinds)
    if split is not None:
        yield info("gpu.model", split.told("GPUs:"), split.minority)


def _modes(view: View) -> Iterator[Said]:
    facts = with_gpus(view)
    for what, values in (
        ("ECC", {name: tuple(gpu.ecc for gpu in f.gpus) for name, f in facts.items()}),
        ("MIG", {name: tuple(gpu.mig for gpu in f.gpus) for name, f in facts.items()}),
    ):
        split = dissent(
            {name: tuple(sorted({v or 0 for v in value})) for name, value in values.items()}
        )
        if split is not None:
            yield warn("gpu.modes", f"{what} differs on {named(split.minority)}", split.minority)
    for name, found in facts.items():
        exclusive = [gpu.index for gpu in found.gpus if gpu.compute_mode not in (None, 0)]
        if exclusive:
            yield warn(
                "gpu.modes",
                f"GPUs {', '.join(map(str, exclusive))} of {name} take one process only",
                (name,),
                hint="sudo nvidia-smi -c DEFAULT",
            )


def _clean(view: View) -> Iterator[Said]:
    for name, found in with_gpus(view).items():
        held = [gpu for gpu in found.gpus if gpu.processes and (gpu.mem_used or 0) > HELD_BYTES]
        if held:
            yield warn(
                "gpu.clean",
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


_NEEDS = (GpuFacts,)

RULES: tuple[Rule, ...] = (
    Rule(
        "gpu.driver_answers",
        "gpu",
        Level.QUICK,
        _NEEDS,
        "`Driver/library version mismatch` after an update, a driver that hangs, one host without GPUs.",
        "Reboot, or load the new kernel module.",
        _visible,
    ),
    Rule(
        "gpu.count",
        "gpu",
        Level.QUICK,
        _NEEDS,
        "A GPU that fell off the bus; hosts with fewer GPUs than the others.",
        "nvidia-smi -L; dmesg | grep -i xid",
        on_gpu_hosts(_count),
    ),
    Rule(
        "gpu.driver",
        "gpu",
        Level.QUICK,
        _NEEDS,
        "One host with another driver, or with a kernel module that is not the library's.",
        "Bring all hosts to one driver.",
        on_gpu_hosts(_driver),
    ),
    Rule(
        "gpu.model",
        "gpu",
        Level.QUICK,
        _NEEDS,
        "Mixed models: the slowest one sets the pace.",
        "Place the job on equal GPUs.",
        on_gpu_hosts(_model),
    ),
    Rule(
        "gpu.modes",
        "gpu",
        Level.QUICK,
        _NEEDS,
        "ECC, MIG or exclusive mode on some hosts only.",
        "nvidia-smi -e, -mig, -c",
        on_gpu_hosts(_modes),
    ),
    Rule(
        "gpu.clean",
        "gpu",
        Level.QUICK,
        _NEEDS,
        "Memory held by leftovers of an earlier job, or by somebody else.",
        "Stop what holds it.",
        on_gpu_hosts(_clean),
    ),
)
