"""Checks of group ``gpu``: NVML's view of devices and driver, compared between hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from distconsole.checks.engine.results import (
    HERE,
    Grade,
    NotApplicable,
    RuleResults,
    fail,
    info,
    warn,
)
from distconsole.checks.engine.rule import HostView, hint, host_rule, judge_each, only_where, rule
from distconsole.checks.facts.evidence import View, by_key
from distconsole.checks.facts.gpu import AMD, GpuFacts
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.rules.wording import MIB, differ, name_hosts, numbers, size, who
from distconsole.model.names import join_some
from distconsole.model.requests import Level

HELD_BYTES = 512 * MIB
"""More than the driver itself keeps on an idle GPU."""

ALIKE = 1.08
"""Sizes within it are one: drivers keep some, and ECC on GDDR takes a sixteenth."""
PROHIBITED = 2
"""nvmlComputeMode_t; of the others 0 is the default, 1 and 3 let one process in."""
NO_ANSWER = "the driver does not say"

unless_gpu = only_where(lambda host: host.of(GpuFacts).present, "no GPU")
"""Leaves out hosts that have no GPU, or no driver that answers."""


def find_gpus(
    grade: Grade, gpus: Mapping[int, str] | Sequence[int], summary: str, **words: str
) -> RuleResults:
    """Yield the finding on GPUs of a host, if any: evidence by index, or indices; ``{}`` names them."""
    if isinstance(gpus, Mapping):
        words = {
            "seen": join_some((f"GPU {i}: {what}" for i, what in gpus.items()), separator="; "),
            **words,
        }
    if gpus:
        yield grade(summary.replace("{}", f"GPU {numbers(gpus)} of {HERE}"), **words)


def find_usual(values: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return by model the value that more than half of its GPUs have."""
    usual = {}
    for model, every in by_key(values).items():
        value, count = Counter(every).most_common(1)[0]
        if 2 * count > len(every):
            usual[model] = value
    return usual


@hint("Reboot, or load the new kernel module.")
@rule("gpu.driver_answers", "gpu", Level.QUICK, GpuFacts)
def _visible(view: View) -> RuleResults:
    """`Driver/library version mismatch` after an update, a driver that hangs, one host without GPUs."""
    facts = view.of(GpuFacts)
    some = any(found.present for found in facts.values())
    for name, found in facts.items():
        if found.present:
            continue
        if found.vendor == AMD and found.kfd:
            yield warn(
                f"AMD's GPUs on {HERE} cannot be looked at: {found.error}",
                (name,),
                seen="/dev/kfd is there",
                hint="apt-get install amd-smi-lib, or dnf: libamd_smi.so of ROCm, in /opt/rocm/lib",
            )
        elif found.kernel_module or found.devices or (found.error and some):
            yield fail(
                f"the NVIDIA driver on {HERE} does not answer: {found.error or 'no library'}",
                (name,),
                seen=f"kernel module {found.kernel_module or 'not loaded'}, "
                f"{found.devices} device files",
                expected="a driver whose library and kernel module agree",
                hint="after an update of the driver: reboot, or `sudo rmmod nvidia_uvm nvidia_drm "
                "nvidia_modeset nvidia && sudo modprobe nvidia`",
            )
        elif some:
            yield warn(f"there is no GPU on {HERE}, on other hosts there is", (name,))
        else:
            yield NotApplicable("no GPU", (name,))


@hint("sudo usermod -aG render,video USER; docker run --device=/dev/kfd --device=/dev/dri")
@host_rule("gpu.access", "gpu", Level.QUICK, GpuFacts)
def _access(host: HostView) -> RuleResults:
    """GPUs of AMD's that the user may not open: torch finds none, and says no more."""
    found = host.of(GpuFacts)
    if found.kfd is None:
        yield NotApplicable("no GPU of AMD's")
    elif found.kfd.shut:
        group = found.kfd.owner or "render"
        yield fail(
            f"the user may not compute on the GPUs of {HERE}: {found.kfd.shut[0]} cannot be opened",
            seen=f"no access to {', '.join(found.kfd.shut[:4])}",
            expected=f"read and write, as group {group} has",
            hint=f"sudo usermod -aG {group},video $USER, then log in again; in a container: "
            f"--device=/dev/kfd --device=/dev/dri --group-add {group}",
        )


@hint("nvidia-smi -L; dmesg | grep -i xid")
@rule("gpu.count", "gpu", Level.QUICK, GpuFacts, unless=unless_gpu)
def _count(view: View) -> RuleResults:
    """A GPU that fell off the bus; hosts with fewer GPUs than the others."""
    facts = view.of(GpuFacts)
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
        {name: each.count for name, each in facts.items() if view.expectation(name).gpus is None},
        expected="as many on every host",
        hint="nvidia-smi -L; slots per host where it is meant: HOST:SLOTS",
    )


@hint("Bring all hosts to one driver.")
@rule("gpu.driver", "gpu", Level.QUICK, GpuFacts, unless=unless_gpu)
def _driver(view: View) -> RuleResults:
    """One host with another driver, or with a kernel module that is not the library's."""
    facts = view.of(GpuFacts)
    yield from differ(
        warn,
        "driver",
        {name: found.driver or "unknown" for name, found in facts.items()},
        expected="the same driver on every host",
        hint="sudo apt-mark hold 'nvidia-*' keeps unattended updates away",
    )
    yield from differ(warn, "ROCm", {name: each.rocm for name, each in facts.items() if each.rocm})
    for name, found in facts.items():
        if found.kernel_module and found.driver and found.kernel_module != found.driver:
            words = f"{HERE}: kernel module {found.kernel_module}, library {found.driver}"
            yield fail(words, (name,), hint="reboot the host")


@hint("Place the job on equal GPUs.")
@rule("gpu.model", "gpu", Level.QUICK, GpuFacts, unless=unless_gpu)
def _model(view: View) -> RuleResults:
    """Mixed models: the slowest one sets the pace."""
    facts = view.of(GpuFacts).items()
    models = {name: sorted({gpu.name or "unknown" for gpu in found.gpus}) for name, found in facts}
    yield from differ(info, "GPUs:", {name: ", ".join(each) for name, each in models.items()})
    for name, found in facts:
        if found.kfd and found.vendor != AMD:
            yield info(f"{name} has GPUs of AMD's, too: only NVIDIA's are looked at", (name,))


@hint("A batch for the smallest, or equal GPUs.")
@rule("gpu.memory", "gpu", Level.QUICK, GpuFacts, unless=unless_gpu)
def _memory(view: View) -> RuleResults:
    """GPUs, or MIG instances, with less memory than the others': out of memory there first."""
    sizes = {
        name: sorted(
            {(gpu.mem_total, "") for gpu in found.gpus if gpu.mem_total and not gpu.instances}
            | {(each, "MIG ") for gpu in found.gpus for each in gpu.instances}
        )
        for name, found in view.of(GpuFacts).items()
        if view.expectation(name).gpu_memory is None
    }
    yield NotApplicable(NO_ANSWER, tuple(name for name, each in sizes.items() if not each))
    alike: dict[int, int] = {}  # by size the smallest one that counts as the same
    least = 0
    for one in sorted({one for each in sizes.values() for one, _ in each}):
        least = one if one > ALIKE * least else least
        alike[one] = least
    words = {name: [kind + size(alike[one]) for one, kind in each] for name, each in sizes.items()}
    yield from differ(
        warn,
        "GPU memory of",
        {name: " and ".join(dict.fromkeys(each)) for name, each in words.items() if each},
        expected="the same on every host: the smallest one is where a batch fails first",
        hint="a batch for the smallest, or leave these hosts out; nvidia-smi -L shows MIG instances",
    )


@hint("nvidia-smi -e, -mig, -c")
@rule("gpu.modes", "gpu", Level.QUICK, GpuFacts, unless=unless_gpu)
def _modes(view: View) -> RuleResults:
    """ECC or MIG on some hosts or GPUs only, or after the next reset; exclusive or prohibited mode."""
    on = {False: "off", True: "on"}
    facts = view.of(GpuFacts).items()
    ecc = {name: sorted({on[bool(gpu.ecc)] for gpu in found.gpus}) for name, found in facts}
    mig = {name: sorted({on[bool(gpu.mig)] for gpu in found.gpus}) for name, found in facts}
    for what, modes in (("ECC", ecc), ("MIG", mig)):
        yield from differ(warn, what, {name: " and ".join(each) for name, each in modes.items()})
    yield from judge_each(_modes_of_host)(view)


def _modes_of_host(host: HostView) -> RuleResults:
    gpus = host.of(GpuFacts).gpus
    closed = [gpu.index for gpu in gpus if gpu.compute_mode == PROHIBITED]
    yield from find_gpus(
        fail,
        closed,
        "{} lets nobody compute",
        seen="compute mode prohibited",
        hint=f"sudo nvidia-smi -c DEFAULT -i {_list_indices(closed)}",
    )
    yield from find_gpus(
        warn,
        [gpu.index for gpu in gpus if gpu.compute_mode not in (None, 0, PROHIBITED)],
        "{} takes one process only",
        hint="sudo nvidia-smi -c DEFAULT",
    )
    split = [gpu.index for gpu in gpus if gpu.mig]
    yield from find_gpus(
        warn,
        split if len(split) < len(gpus) else [],
        "MIG is on for {} and off for the others",
        expected="one or the other: a process sees one MIG instance, and then no other GPU",
        hint=f"sudo nvidia-smi -mig 0 -i {_list_indices(split)}, and a reset",
    )
    ecc = [gpu.index for gpu in gpus if gpu.ecc_next not in (None, gpu.ecc)]
    mig = [gpu.index for gpu in gpus if gpu.mig_next not in (None, gpu.mig)]
    for what, waiting in (("ECC", ecc), ("MIG", mig)):
        yield from find_gpus(
            info,
            waiting,
            f"{what} of {{}} changes with the next reset or reboot",
            hint=f"sudo nvidia-smi -r -i {_list_indices(waiting)}, when nothing uses it",
        )


def _list_indices(gpus: list[int]) -> str:
    return ",".join(map(str, gpus))


@hint("Stop what holds it.")
@host_rule("gpu.clean", "gpu", Level.QUICK, GpuFacts, unless=unless_gpu)
def _clean(host: HostView) -> RuleResults:
    """Memory held by leftovers of an earlier job, or by somebody else."""
    found = host.of(GpuFacts)
    held = [gpu for gpu in found.gpus if gpu.processes and (gpu.mem_used or 0) > HELD_BYTES]
    if held:
        pids = sorted({str(each.pid) for gpu in held for each in gpu.processes if each.pid})
        yield warn(
            f"{len(held)} of {found.count} GPUs of {host} are in use",
            seen="; ".join(
                f"GPU {gpu.index}: {(gpu.mem_used or 0) // MIB} MiB, "
                + ", ".join(map(who, gpu.processes[:4]))
                for gpu in held
            ),
            hint=f"leftovers of a job of yours: on {host}: kill {' '.join(pids)}",
        )


@hint("docker run --gpus device=…")
@rule("gpu.shared", "gpu", Level.QUICK, GpuFacts, NetFacts, SshFacts, unless=unless_gpu)
def _same_gpus(view: View) -> RuleResults:
    """Containers of one machine that were given the same GPUs: `Duplicate GPU detected`."""
    machine_of = machines(view)
    facts = view.of(GpuFacts).items()
    owners = by_key((gpu.uuid, name) for name, each in facts for gpu in each.gpus if gpu.uuid)
    several = {u: names for u, names in owners.items() if len({machine_of[n] for n in names}) > 1}
    for hosts, uuids in by_key((tuple(names), uuid) for uuid, names in several.items()).items():
        yield fail(
            f"{name_hosts(hosts)} have the same {len(uuids)} GPUs: they are containers of one machine",
            hosts,
            seen=f"UUID {', '.join(uuids[:4])} on each",
            expected="GPUs of its own for each host; NCCL refuses two ranks on one",
            hint="give each container its own: docker run --gpus device=0,1, or CUDA_VISIBLE_DEVICES",
        )
