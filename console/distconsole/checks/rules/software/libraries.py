"""Checks of group ``torch`` on what an import of it brings: time, NCCL, code for the GPUs there are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

from distconsole.checks.engine.rule import (
    NotApplicable,
    RuleResults,
    differ,
    fail,
    hint,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import Outcome, View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.node import ImportFacts, TorchFacts
from distconsole.checks.gather.timings import busy_hosts
from distconsole.checks.rules.wording import name_hosts
from distconsole.model.requests import Level

SLOW_SECONDS = 15.0
SLOW_FACTOR = 4.0
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


@rule("torch.import", "torch", Level.STANDARD, ImportFacts)
@hint("A local copy of the environment.")
def _import(view: View) -> RuleResults:
    """A torch that cannot be imported, or takes so long on one host that the others give up."""
    facts = view.of(ImportFacts)
    without = tuple(name for name, found in facts.items() if not found.present)
    yield NotApplicable("no torch", without)
    for name, found in facts.items():
        if found.present and found.error:
            yield fail(
                f"torch cannot be imported on {name}: {found.error}"[:300],
                (name,),
                seen=f"import torch: {found.error}",
                hint="pip install --force-reinstall torch==VERSION; for a library that is missing: "
                "LD_LIBRARY_PATH in --setup",
            )
    cut = {name: f for name, f in facts.items() if f.late and f.seconds <= SLOW_SECONDS}
    for name, found in cut.items():
        why = f"import torch took longer than the {found.seconds:.1f} s that were left"
        yield NotApplicable(why, (name,), Outcome.TIMED_OUT)
    times = {
        name: f.seconds
        for name, f in facts.items()
        if f.present and not f.error and name not in cut
    }
    # What others do on the machine at this moment says nothing of its disk.
    busy = busy_hosts(view)
    for name, seconds in times.items():
        others = [each for other, each in times.items() if other != name]
        usual = median(others) if others else 0.0
        if not facts[name].late and seconds <= max(SLOW_SECONDS, SLOW_FACTOR * usual):
            continue
        if name in busy:
            why = f"import torch took {seconds:.0f} s, with {busy[name]:.1f} processes a processor"
            outcome = Outcome.TIMED_OUT if facts[name].late else Outcome.SKIPPED
            yield NotApplicable(why, (name,), outcome)
        else:
            over = "more than " if facts[name].late else ""
            yield warn(
                f"import torch takes {over}{seconds:.0f} s on {name}",
                (name,),
                seen="others: " + ", ".join(f"{each:.1f} s" for each in sorted(others)[:8])
                if others
                else "",
                expected="a few seconds; ranks that come late make the others' rendezvous time out",
                hint="an environment on a slow or shared disk: copy it to a local one, or read it once "
                "before (find ENV -type f -exec cat {} + >/dev/null)",
            )


@rule("nccl.copies", "torch", Level.QUICK, TorchFacts)
@hint("Take it out of LD_LIBRARY_PATH.")
def _nccl_copies(view: View) -> RuleResults:
    """A second libnccl on LD_LIBRARY_PATH, or another NCCL loaded on one host than on the others.

    Two copies of a library with one name: which one a rank gets depends on who loads first.
    """
    torch = view.of(TorchFacts)
    plain = tuple(name for name, found in torch.items() if found.cuda is None)
    yield NotApplicable("no NCCL with this torch", plain)
    imported = view.of(ImportFacts)
    for name, found in torch.items():
        copies = [*([found.nccl_library] if found.nccl_library else []), *found.nccl_on_path]
        mapped = imported[name].nccl_mapped if name in imported else ()
        both = list(dict.fromkeys([*copies, *mapped]))
        if found.cuda is None or len(both) < 2:
            continue
        yield warn(
            f"there are {len(both)} copies of NCCL in the way of torch on {name}",
            (name,),
            seen="\n".join(
                [f"with torch: {found.nccl_library or 'none'}"]
                + [f"by LD_LIBRARY_PATH or LD_PRELOAD: {path}" for path in found.nccl_on_path[:4]]
                + [f"loaded: {path}" for path in mapped[:4]]
            ),
            expected="the copy that torch came with, on every host",
            hint="take the other one's folder out of LD_LIBRARY_PATH, in --setup",
        )
    yield from differ(
        fail,
        "NCCL",
        {name: found.nccl for name, found in imported.items() if found.nccl},
        seen="torch._C._nccl_version() after the import",
        expected="one version of NCCL on every host; else it hangs, or refuses to start",
        hint="pip install nvidia-nccl-cu12==VERSION; look at LD_LIBRARY_PATH",
    )


def runs_on(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Return whether code for ``architectures`` runs on a GPU of this compute capability.

    Binary code runs on its own major version from its minor one on, PTX on everything newer, and
    what has a suffix on exactly its own (CUDA C++ Programming Guide, compute capabilities).
    """
    for word in architectures:
        found = _ARCHITECTURE.fullmatch(word)
        if found is None:
            continue
        kind, suffix, version = found[1], found[4], (int(found[2]), int(found[3]))
        if version == capability or (kind == "compute" and not suffix and version <= capability):
            return True
        if kind == "sm" and not suffix and version[0] == capability[0] and version <= capability:
            return True
    return False


@rule("torch.arch", "torch", Level.STANDARD, ImportFacts, GpuFacts)
@hint("A newer wheel, or the one for the newer CUDA.")
def _arch(view: View) -> RuleResults:
    """A wheel without code for this GPU: `no kernel image is available for execution`."""
    gpus, imported = view.of(GpuFacts), view.of(ImportFacts)
    missing: dict[tuple[tuple[int, int], str], list[str]] = {}
    for name, found in imported.items():
        kinds = {gpu.capability: gpu.name or "" for gpu in gpus[name].gpus if gpu.capability}
        if not kinds:
            yield NotApplicable("no GPU", (name,))
        elif not found.architectures:
            yield NotApplicable(
                "this torch has no code for GPUs, or does not say for which", (name,)
            )
        for capability, model in kinds.items():
            if capability and found.architectures and not runs_on(capability, found.architectures):
                missing.setdefault((capability, model), []).append(name)
    for (capability, model), names in missing.items():
        wanted = f"sm_{capability[0]}{capability[1]}"
        yield fail(
            f"torch on {name_hosts(names)} has no code for its {model} ({wanted})",
            names,
            seen=f"built for {' '.join(imported[names[0]].architectures)}",
            expected=f"{wanted}, or PTX that is older; else: no kernel image is available",
            hint="a newer wheel: pip install --upgrade torch "
            "--index-url https://download.pytorch.org/whl/cu128",
        )


RULES = (_import, _arch, _nccl_copies)
