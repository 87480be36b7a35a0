"""Checks of groups ``torch``, ``horovod`` and ``mpi``: builds that must fit together."""

from __future__ import annotations

from collections.abc import Sequence

from distconsole.checks.engine.rule import (
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
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.node import HorovodFacts, MpiFacts, PythonFacts, TorchFacts
from distconsole.checks.fixes.cures import in_setup, library_first, prefix_of
from distconsole.checks.rules.wording import dissent, name_hosts, these_have
from distconsole.model.findings import Cure
from distconsole.model.requests import Level


@rule("torch.present", "torch", Level.QUICK, TorchFacts, PythonFacts)
@hint("pip install torch, or --python and --setup.")
def _torch_present(view: View) -> RuleResults:
    """A host without torch, or with one that lies broken on the disk."""
    facts, pythons = view.of(TorchFacts), view.of(PythonFacts)
    without = [name for name, found in facts.items() if not found.present]
    broken = {name: found.error for name, found in facts.items() if found.error}
    for name, error in broken.items():
        yield fail(
            f"torch on {name} is there and broken: {error}",
            (name,),
            hint=f"on {name}: {pythons[name].executable} -m pip install --force-reinstall torch",
        )
    if without and len(without) == len(facts):
        yield warn(
            f"there is no torch on {name_hosts(without)}",
            without,
            seen=f"{pythons[without[0]].executable} cannot find it",
            hint="--python PATH names the interpreter that has it, --setup the command that brings it",
        )
    elif without:
        having = next(found for found in facts.values() if found.present and found.version)
        yield fail(
            f"{these_have(without)} no torch",
            without,
            seen=", ".join(f"{name}: {pythons[name].executable}" for name in without),
            expected=f"torch {having.version} on every host",
            hint=f"{pythons[without[0]].executable} -m pip install torch=={having.version}",
        )


@rule("torch.build", "torch", Level.QUICK, TorchFacts)
@hint("pip install torch==VERSION")
def _torch_build(view: View) -> RuleResults:
    """One host with another torch, or one built for another CUDA (read from torch/version.py)."""
    facts = {name: found for name, found in view.of(TorchFacts).items() if found.version}
    for what, values in (
        ("torch", {name: found.version for name, found in facts.items()}),
        ("torch built for CUDA", {name: found.cuda or "none" for name, found in facts.items()}),
        ("torch built from", {name: found.git for name, found in facts.items()}),
    ):
        split = dissent(values)
        if split is not None:
            yield fail(
                split.told(what),
                split.minority,
                expected=f"{split.majority} everywhere"
                if split.majority
                else "one build everywhere",
                hint=f"pip install torch=={values[split.groups[-1][1][0]]}"
                if what == "torch"
                else "install the same wheel everywhere: pip install --force-reinstall torch==VERSION",
            )
            return
    absent = tuple(name for name, found in view.of(TorchFacts).items() if not found.version)
    yield NotApplicable("no torch", absent)


@rule("torch.cuda", "torch", Level.QUICK, TorchFacts, GpuFacts)
@hint("Install the wheel for the driver's CUDA.")
def _torch_cuda(view: View) -> RuleResults:
    """A CPU build of torch on a GPU host, a driver too old for the CUDA of torch.

    A torch that cannot use the GPUs that are there (pytorch#167244 for architectures).
    """
    gpus = view.of(GpuFacts)
    without = tuple(name for name, found in gpus.items() if not found.count)
    yield NotApplicable("no GPU", without)
    for name, torch in view.of(TorchFacts).items():
        gpu = gpus[name]
        if name in without or not torch.version:
            continue
        if torch.cuda is None and torch.hip is None:
            yield fail(
                f"{name} has {gpu.count} GPUs and a torch without CUDA ({torch.version})",
                (name,),
                hint="pip install --force-reinstall torch --index-url "
                "https://download.pytorch.org/whl/cu128",
            )
        elif (
            torch.cuda and gpu.cuda_driver and _cuda(torch.cuda) // 1000 > gpu.cuda_driver // 1000
        ):
            yield fail(
                f"the driver of {name} is too old for torch {torch.version}",
                (name,),
                seen=f"driver {gpu.driver}: CUDA {gpu.cuda_driver // 1000}."
                f"{gpu.cuda_driver % 1000 // 10}; torch built for CUDA {torch.cuda}",
                expected=f"a driver for CUDA {torch.cuda.split('.')[0]} or newer",
                hint="update the driver, or install a torch for an older CUDA",
            )


def _cuda(version: str) -> int:
    parts = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return (parts[0] * 1000 if parts else 0) + (parts[1] * 10 if len(parts) > 1 else 0)


@rule("nccl.version", "torch", Level.QUICK, TorchFacts)
@hint("Reinstall torch at one version; NCCL_NET_PLUGIN=none.")
def _nccl(view: View) -> RuleResults:
    """NCCL versions, or network plugins, that differ between hosts: a silent hang."""
    facts = {name: found for name, found in view.of(TorchFacts).items() if found.nccl}
    absent = tuple(name for name in view.of(TorchFacts) if name not in facts)
    yield NotApplicable("no NCCL with this torch", absent)
    yield from differ(
        fail,
        "NCCL",
        {name: found.nccl for name, found in facts.items()},
        expected="the same NCCL everywhere: versions that differ hang or refuse",
        hint="reinstall torch at one version on every host",
    )
    plugins = dissent({name: bool(found.plugins) for name, found in facts.items()})
    if plugins is not None:
        having = [name for name, found in facts.items() if found.plugins]
        yield fail(
            f"a network plugin for NCCL is on {name_hosts(having)} only",
            plugins.minority,
            seen=", ".join(facts[having[0]].plugins),
            expected="on every host or on none: mixed, NCCL hangs without a word (nccl#1634)",
            hint="export NCCL_NET_PLUGIN=none",
            cure=Cure(env={"NCCL_NET_PLUGIN": "none"}),
        )


@rule("horovod.build", "horovod", Level.QUICK, HorovodFacts)
@hint("distconsole setup builds it once, for all of them.")
def _horovod_build(view: View) -> RuleResults:
    """Gloo on one host and MPI on another; NCCL missing on one; versions that differ."""
    every = view.of(HorovodFacts)
    facts = {name: found for name, found in every.items() if found.present}
    absent = tuple(name for name in every if name not in facts)
    if not facts:
        yield NotApplicable("no Horovod", absent)
        return
    if absent:
        yield warn(
            f"{these_have(absent)} no Horovod, the others do",
            absent,
            expected="the same build on every host",
            hint=_setup(absent),
        )
    for what, values in (
        ("Horovod", {name: found.version for name, found in facts.items()}),
        # Of a library that does not load nobody knows what is in it: horovod.torch says so.
        (
            "Horovod with",
            {n: _features(found) for n, found in facts.items() if not found.load_error},
        ),
    ):
        yield from differ(
            fail,
            what,
            values,
            seen="\n".join(f"{name}: {value}" for name, value in list(values.items())[:16]),
            expected="the same build on every host",
            hint=_setup(tuple(facts), "--rebuild "),
        )


def _features(facts: HorovodFacts) -> str:
    if facts.built is None:
        return "unknown parts" if facts.torch_library else "no PyTorch extension"
    return " ".join(name for name, built in sorted(facts.built.items()) if built) or "nothing"


@rule("horovod.torch", "horovod", Level.QUICK, HorovodFacts, TorchFacts)
@hint("distconsole setup builds it against the torch that is there.")
def _horovod_torch(view: View) -> RuleResults:
    """`Extension horovod.torch has not been built`, `undefined symbol` after an update of torch.

    Horovod's library is bound to the torch that it was built against (horovod#629, #2589).
    """
    torches = view.of(TorchFacts)
    for name, facts in view.of(HorovodFacts).items():
        torch = torches[name]
        if not facts.present:
            yield NotApplicable("no Horovod", (name,))
        elif facts.torch_library is None and torch.present:
            yield warn(
                f"Horovod on {name} was built without PyTorch",
                (name,),
                seen=f"no mpi_lib_v2*.so in {facts.folder}/torch",
                hint=_setup((name,)),
            )
        elif facts.load_error:
            yield fail(
                f"Horovod on {name} does not load with the torch that is there",
                (name,),
                seen=f"{facts.load_error} (built against torch {facts.against.get('pytorch', '?')}, "
                f"installed {torch.version or 'none'})",
                hint=_setup((name,)),
            )
        elif not _differs(built := facts.against.get("pytorch", ""), torch.version):
            continue
        elif any(not _differs(built, other.version) for other in torches.values()):
            yield NotApplicable("built against another host's torch: this one's differs", (name,))
        else:
            yield warn(
                f"Horovod on {name} was built against torch {built}, "
                f"installed is {torch.version or 'none'}",
                (name,),
                hint=_setup((name,)),
            )


def _differs(built: str, installed: str) -> bool:
    return bool(built) and built.partition("+")[0] != installed.partition("+")[0]


def _setup(names: Sequence[str], options: str = "") -> str:
    """Return what brings Horovod there; ``--rebuild`` also where it fits the torch."""
    return f"distconsole setup {options}--hosts {','.join(names)}"


@rule("horovod.nccl", "horovod", Level.STANDARD, HorovodFacts, GpuFacts)
@hint("distconsole setup --rebuild, where one of the hosts has nvcc.")
def _horovod_nccl(view: View) -> RuleResults:
    """GPUs, and a Horovod that copies every gradient through the host."""
    gpus = view.of(GpuFacts)
    for name, facts in view.of(HorovodFacts).items():
        if not facts.present or not gpus[name].count:
            yield NotApplicable("no Horovod" if not facts.present else "no GPU", (name,))
        elif facts.built is not None and not facts.built.get("nccl"):
            yield warn(
                f"Horovod on {name} has no NCCL: its collectives go through the host's memory",
                (name,),
                seen=_features(facts),
                expected="a build with NCCL, which needs nvcc on one of the hosts",
                hint=_setup((name,), "--rebuild "),
            )


@rule("horovod.mpi", "horovod", Level.STANDARD, HorovodFacts, MpiFacts)
@hint("Put the right MPI first on PATH and LD_LIBRARY_PATH.")
def _horovod_mpi(view: View) -> RuleResults:
    """Horovod linked with one MPI and started by mpirun of another: every rank says size 1.

    A library bound to another MPI than mpirun's makes every rank say size 1.
    """
    mpis = view.of(MpiFacts)
    for name, facts in view.of(HorovodFacts).items():
        libraries = [path for path in facts.mapped if "/libmpi" in path]
        if not libraries or not mpis[name].present:
            why = "no Horovod with MPI" if not libraries else "no MPI"
            yield NotApplicable(why, (name,))
            continue
        prefix = prefix_of(mpis[name].mpirun)
        if prefix not in ("", "/usr") and not libraries[0].startswith(prefix + "/"):
            yield warn(
                f"Horovod on {name} uses another MPI than mpirun's",
                (name,),
                seen=f"{libraries[0]}; mpirun: {mpis[name].mpirun}",
                hint=f"export LD_LIBRARY_PATH={prefix}/lib, or rebuild with {prefix}/bin on the PATH",
                cure=in_setup((name,), library_first(prefix)),
            )


@rule("mpi.version", "mpi", Level.QUICK, MpiFacts)
@hint("Install one MPI everywhere.")
def _mpi_version(view: View) -> RuleResults:
    """`Data unpack would read past end of buffer`: MPI versions or families that differ."""
    every = view.of(MpiFacts)
    facts = {name: found for name, found in every.items() if found.present}
    absent = tuple(name for name in every if name not in facts)
    if not facts:
        yield NotApplicable("no mpirun", absent)
        return
    if absent:
        first = next(iter(facts.values()))
        yield warn(
            f"{these_have(absent)} no mpirun, the others do",
            absent,
            expected=f"{first.family} {first.version}",
            hint="sudo apt-get install openmpi-bin, or add its folder to the PATH with --setup",
        )
    split = dissent(
        {name: f"{found.family} {found.version}".strip() for name, found in facts.items()}
    )
    if split is not None:
        yield fail(
            split.told("MPI"),
            split.minority,
            seen=", ".join(f"{name} {facts[name].mpirun}" for name in split.minority),
            expected="the same MPI everywhere: others do not understand each other's messages",
            hint="install the version of the majority, or put it first on the PATH with --setup",
        )
    for name, found in facts.items():
        if found.daemon is None:
            yield warn(
                f"mpirun on {name} has no daemon (orted, prted) beside it on the PATH",
                (name,),
                seen=found.mpirun,
            )


@rule("torch.debug", "torch", Level.QUICK, TorchFacts)
@hint("Install a release build.")
def _torch_debug(view: View) -> RuleResults:
    """A debug build of torch."""
    debug = [name for name, found in view.of(TorchFacts).items() if found.debug]
    if debug:
        yield info(f"torch on {name_hosts(debug)} is a debug build, and slow", debug)


RULES = (
    _torch_present,
    _torch_build,
    _torch_debug,
    _torch_cuda,
    _nccl,
    _horovod_build,
    _horovod_torch,
    _horovod_nccl,
    _horovod_mpi,
    _mpi_version,
)
