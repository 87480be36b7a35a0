"""Checks of what an import of torch brings and takes: NCCL, code for the GPUs there are, Horovod's patience."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from statistics import median

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, judge_each, rule
from distconsole.checks.facts.evidence import Outcome, View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.network import BetweenFacts, EnvFacts
from distconsole.checks.facts.node import HorovodFacts, ImportFacts, TorchFacts
from distconsole.checks.gather.timings import busy_hosts
from distconsole.checks.rules.agreement import by_key, differ
from distconsole.checks.rules.software.engines import unless_horovod
from distconsole.checks.rules.wording import join_some, name_hosts
from distconsole.model.findings import Cure
from distconsole.model.requests import Level

SLOW_SECONDS = 15.0
SLOW_FACTOR = 4.0
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
MARGIN = 3.0
"""A cold disk, a busy host: so many times what was measured should be waited for."""

STEP_SECONDS = 30
RUN_WAITS_SECONDS = 120
"""What ``run`` tells the ranks in HOROVOD_GLOO_TIMEOUT_SECONDS."""

STALL = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
DEFAULTS = {"HOROVOD_START_TIMEOUT": 30.0, "HOROVOD_GLOO_TIMEOUT_SECONDS": 30.0, STALL: math.inf}
"""Horovod's own (runner/launch.py, common/gloo); the last one ends nothing unless it is set above 0."""


@hint("A local copy of the environment.")
@rule("torch.import", "torch", Level.STANDARD, ImportFacts)
def _import(view: View) -> RuleResults:
    """A torch that cannot be imported, or takes so long on one host that the others give up."""
    # What others do on the machine at this moment says nothing of its disk.
    facts, busy, times = view.of(ImportFacts), busy_hosts(view), {}
    for name, found in facts.items():
        if not found.present:
            yield NotApplicable("no torch", (name,))
        elif found.error:
            yield fail(
                f"torch cannot be imported on {HERE}: {found.error}"[:300],
                (name,),
                seen=f"import torch: {found.error}",
                hint="pip install --force-reinstall torch==VERSION; for a library that is missing: "
                "LD_LIBRARY_PATH in --setup",
            )
        elif found.late and found.seconds <= SLOW_SECONDS:
            why = f"import torch took longer than the {found.seconds:.1f} s that were left"
            yield NotApplicable(why, (name,), Outcome.TIMED_OUT)
        else:
            times[name] = found.seconds
    for name, seconds in times.items():
        late, others = facts[name].late, sorted(t for other, t in times.items() if other != name)
        if not late and seconds <= max(SLOW_SECONDS, SLOW_FACTOR * median(others or [0.0])):
            continue
        if name in busy:
            why = f"import torch took {seconds:.0f} s, with {busy[name]:.1f} processes a processor"
            outcome = Outcome.TIMED_OUT if late else Outcome.SKIPPED
            yield NotApplicable(why, (name,), outcome)
        else:
            yield warn(
                f"import torch takes {'more than ' if late else ''}{seconds:.0f} s on {name}",
                (name,),
                seen="others: " + join_some(f"{each:.1f} s" for each in others) if others else "",
                expected="a few seconds; ranks that come late make the others' rendezvous time out",
                hint="an environment on a slow or shared disk: copy it to a local one, or read it once "
                "before (find ENV -type f -exec cat {} + >/dev/null)",
            )


@hint("A newer wheel, or the one for the newer CUDA.")
@host_rule("torch.arch", "torch", Level.STANDARD, ImportFacts, GpuFacts)
def _arch(host: HostView) -> RuleResults:
    """A wheel without code for this GPU: `no kernel image is available for execution`."""
    gpus, architectures = host.of(GpuFacts).gpus, host.of(ImportFacts).architectures
    models = {gpu.capability: gpu.name or "" for gpu in gpus if gpu.capability}
    if not models:
        yield NotApplicable("no GPU")
    elif not architectures:
        yield NotApplicable("this torch has no code for GPUs, or does not say for which")
    for capability, model in models.items() if architectures else ():
        if not runs_on(capability, architectures):
            wanted = f"sm_{capability[0]}{capability[1]}"
            yield fail(
                f"torch on {HERE} has no code for its {model} ({wanted})",
                seen=f"built for {' '.join(architectures)}",
                expected=f"{wanted}, or PTX that is older; else: no kernel image is available",
                hint="a newer wheel: pip install --upgrade torch "
                "--index-url https://download.pytorch.org/whl/cu128",
            )


@hint("Take it out of LD_LIBRARY_PATH.")
@rule("nccl.copies", "torch", Level.QUICK, TorchFacts)
def _nccl_copies(view: View) -> RuleResults:
    """A second libnccl on LD_LIBRARY_PATH, or another NCCL loaded on one host than on the others."""
    yield from judge_each(_find_copies)(view)
    imported = view.of(ImportFacts).items()
    yield from differ(
        fail,
        "NCCL",
        {name: found.nccl for name, found in imported if found.nccl},
        seen="torch._C._nccl_version() after the import",
        expected="one version of NCCL on every host; else it hangs, or refuses to start",
        hint="pip install nvidia-nccl-cu12==VERSION; look at LD_LIBRARY_PATH",
    )


def _find_copies(host: HostView) -> RuleResults:
    torch, imported = host.of(TorchFacts), host.find(ImportFacts)
    if torch.cuda is None:
        yield NotApplicable("no NCCL with this torch")
        return
    mapped = imported.nccl_mapped if imported is not None else ()
    copies = {*filter(None, (torch.nccl_library, *torch.nccl_on_path, *mapped))}
    if len(copies) > 1:
        yield warn(
            f"there are {len(copies)} copies of NCCL in the way of torch on {HERE}",
            seen="\n".join(
                [f"with torch: {torch.nccl_library or 'none'}"]
                + [f"by LD_LIBRARY_PATH or LD_PRELOAD: {path}" for path in torch.nccl_on_path[:4]]
                + [f"loaded: {path}" for path in mapped[:4]]
            ),
            expected="the copy that torch came with, on every host",
            hint="take the other one's folder out of LD_LIBRARY_PATH, in --setup",
        )


def runs_on(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Return whether code for ``architectures`` runs on a GPU of this compute capability.

    Binary code runs on its own major version from its minor one on, PTX on everything newer, and
    what has a suffix on exactly its own (CUDA C++ Programming Guide, compute capabilities).
    """
    for found in filter(None, map(_ARCHITECTURE.fullmatch, architectures)):
        kind, suffix, version = found[1], found[4], (int(found[2]), int(found[3]))
        newer = not suffix and version <= capability
        if version == capability or (newer and (kind == "compute" or version[0] == capability[0])):
            return True
    return False


@hint("export HOROVOD_START_TIMEOUT and HOROVOD_GLOO_TIMEOUT_SECONDS; `run` waits 120 s.")
@rule(
    *("horovod.timeouts", "horovod", Level.STANDARD, HorovodFacts, EnvFacts, ImportFacts),
    unless=unless_horovod,
)
def _timeouts(view: View) -> RuleResults:
    """`Timed out waiting for hosts to acknowledge`: an import of torch from a slow disk takes longer than Horovod's 30 s, or than what its variables say."""
    imports, logins = view.of(ImportFacts), _login_seconds(view)
    busy = tuple(name for name in busy_hosts(view) if name in imports)
    yield NotApplicable("too much goes on there for a measured import to mean anything", busy)
    without = tuple(name for name, each in imports.items() if not each.present or each.error)
    yield NotApplicable("no torch to import", without)
    measured = {
        name: found.seconds + logins.get(name, 0.0)
        for name, found in imports.items()
        if name not in without and name not in busy
    }
    short: dict[str, dict[str, float]] = {}
    for name, facts in view.of(EnvFacts).items():
        for variable, default in DEFAULTS.items():
            seconds = _seconds(facts.variables.get(variable), default)
            if name in measured and seconds < MARGIN * measured[name]:
                short.setdefault(variable, {})[name] = seconds
    if not short:
        return
    hosts = [name for name in measured if any(name in found for found in short.values())]
    slowest = max(hosts, key=measured.__getitem__)
    needed = MARGIN * measured[slowest]
    values = [f"{variable}: {min(found.values()):g} s" for variable, found in short.items()]
    env = dict.fromkeys(short, str(math.ceil(needed / STEP_SECONDS) * STEP_SECONDS))
    # It starts ranks without horovodrun, and waits longer for them.
    run_waits = STALL not in short and needed <= RUN_WAITS_SECONDS
    yield warn(
        f"Horovod may give up before the ranks on {name_hosts(hosts)} are there",
        hosts,
        seen=f"import torch{' and ssh' if logins else ''} took {measured[slowest]:.1f} s on {slowest}; "
        + "; ".join(values),
        expected=f"{MARGIN:g} times that, {needed:.0f} s",
        hint="export " + " ".join(f"{variable}={value}" for variable, value in env.items()),
        cure=Cure(
            env=env, by_run=f"waits {RUN_WAITS_SECONDS} s for the ranks" if run_waits else ""
        ),
    )


def _seconds(text: str | None, default: float) -> float:
    """Return a variable's seconds; ``default`` where it is not set, or says nothing of the kind."""
    try:
        seconds = float(text or "")
    except ValueError:
        return default
    return seconds if seconds > 0 else default


def _login_seconds(view: View) -> dict[str, float]:
    every = (login for facts in view.of(BetweenFacts).values() for login in facts.logins)
    times = by_key((login.target, login.seconds) for login in every if login.ok)
    return {target: max(seconds) for target, seconds in times.items()}
