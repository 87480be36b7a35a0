"""Checks of groups ``torch``, ``horovod`` and ``mpi``: builds that must fit together."""

from __future__ import annotations

import re

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, only_where, rule
from distconsole.checks.facts.evidence import View, once_a_view
from distconsole.checks.facts.gpu import AMD, GpuFacts
from distconsole.checks.facts.node import HorovodFacts, MpiFacts, PythonFacts, TorchFacts
from distconsole.checks.fixes.cures import in_setup, libraries_first, prefix_of
from distconsole.checks.rules.script.launches import unless_user_site
from distconsole.checks.rules.wording import differ, dissent, list_some, name_hosts, these_have
from distconsole.model.findings import Cure
from distconsole.model.names import is_whole, join_some
from distconsole.model.requests import Level

unless_horovod = only_where(lambda host: host.of(HorovodFacts).present, "no Horovod")
_unless_torch = only_where(lambda host: host.of(TorchFacts).version, "no torch")
_unless_nccl = only_where(lambda host: host.of(TorchFacts).nccl, "no NCCL with this torch")

WHEELS = "https://download.pytorch.org/whl/"


def wheel_of(version: str) -> str:
    """Return pip's words for a torch: PyPI has none whose version names its build, such as ``+cpu``."""
    build = re.search(r"\+(cpu|xpu|cu\d+|rocm[\d.]+)$", version)
    return f"torch=={version}" + (f" --index-url {WHEELS}{build[1]}" if build else "")


@hint("pip install torch, or --python and --setup.")
@rule("torch.present", "torch", Level.QUICK, TorchFacts, PythonFacts)
def _torch_present(view: View) -> RuleResults:
    """A host without torch, or with one that lies broken on the disk."""
    facts = view.of(TorchFacts)
    pythons = {name: found.executable for name, found in view.of(PythonFacts).items()}
    without = [name for name, found in facts.items() if not found.present]
    for name, found in facts.items():
        if found.error:
            yield fail(
                f"torch on {name} is there and broken: {found.error}",
                (name,),
                hint=unless_user_site(
                    view,
                    (name,),
                    f"on {name}: {pythons[name]} -m pip install --force-reinstall torch",
                    "torch",
                ),
            )
    if without and len(without) == len(facts):
        yield warn(
            f"there is no torch on {name_hosts(without)}",
            without,
            seen=f"{pythons[without[0]]} cannot find it",
            hint="--python PATH names the interpreter that has it, --setup the command that brings it",
        )
    elif without:
        version = next(each.version for each in facts.values() if each.present and each.version)
        yield fail(
            f"{these_have(without)} no torch",
            without,
            seen=join_some(f"{name}: {pythons[name]}" for name in without),
            expected=f"torch {version} on every host",
            hint=f"{pythons[without[0]]} -m pip install {wheel_of(version)}",
        )


@hint("pip install torch==VERSION")
@rule("torch.build", "torch", Level.QUICK, TorchFacts, PythonFacts, unless=_unless_torch)
def _torch_build(view: View) -> RuleResults:
    """One host with another torch, or one built for another CUDA (read from torch/version.py)."""
    facts = view.of(TorchFacts)
    for what, values in (
        ("torch", {name: found.version for name, found in facts.items()}),
        ("torch built for CUDA", {name: found.cuda or "none" for name, found in facts.items()}),
        ("torch built for ROCm", {name: found.hip or "none" for name, found in facts.items()}),
        ("torch built from", {name: found.git for name, found in facts.items()}),
    ):
        split = dissent(values)
        if split is not None:
            version = values[split.groups[-1][1][0]]
            hint = (
                f"pip install {wheel_of(version)}"
                if what == "torch"
                else "install the same wheel everywhere: pip install --force-reinstall torch==VERSION"
            )
            yield fail(
                split.told(what),
                split.minority,
                expected=f"{split.majority or 'one build'} everywhere",
                hint=unless_user_site(view, values, hint, "torch"),
            )
            return


@hint("Install the wheel for the driver's CUDA.")
@host_rule("torch.cuda", "torch", Level.QUICK, TorchFacts, GpuFacts)
def _torch_cuda(host: HostView) -> RuleResults:
    """A CPU build of torch on a GPU host, one for the other vendor's GPUs, a driver too old for the CUDA of torch."""
    torch, gpu = host.of(TorchFacts), host.of(GpuFacts)
    driver = gpu.cuda_driver or 0
    wanted = (torch.cuda or "").partition(".")[0]
    build = "rocm6.4" if gpu.vendor == AMD else "cu128"
    wheel = f"pip install --force-reinstall torch --index-url {WHEELS}{build}"
    if not gpu.count:
        yield NotApplicable("no GPU")
    elif torch.version and (torch.cuda if gpu.vendor == AMD else torch.hip):
        built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}"
        yield fail(
            f"{gpu.count} GPUs of {gpu.vendor}'s and a torch for {built} on {HERE}",
            seen=f"torch {torch.version}",
            hint=wheel,
        )
    elif torch.version and torch.cuda is None and torch.hip is None:
        yield fail(
            f"{gpu.count} GPUs and a torch without {'ROCm' if gpu.vendor == AMD else 'CUDA'} "
            f"({torch.version}) on {HERE}",
            hint=wheel,
        )
    elif torch.version and driver and is_whole(wanted) and int(wanted) > driver // 1000:
        yield fail(
            f"the driver of {HERE} is too old for torch {torch.version}",
            seen=f"driver {gpu.driver}: CUDA {driver // 1000}.{driver % 1000 // 10}; "
            f"torch built for CUDA {torch.cuda}",
            expected=f"a driver for CUDA {wanted} or newer",
            hint="update the driver, or install a torch for an older CUDA",
        )


@hint("Reinstall torch at one version; NCCL_NET_PLUGIN=none.")
@rule("nccl.version", "torch", Level.QUICK, TorchFacts, PythonFacts, unless=_unless_nccl)
def _nccl(view: View) -> RuleResults:
    """NCCL versions, or network plugins, that differ between hosts: a silent hang."""
    facts = view.of(TorchFacts)
    yield from differ(
        fail,
        "NCCL",
        {name: found.nccl for name, found in facts.items()},
        expected="the same NCCL everywhere: versions that differ hang or refuse",
        hint=unless_user_site(
            view, facts, "reinstall torch at one version on every host", "torch|nvidia-nccl.*"
        ),
    )
    split = dissent({name: bool(found.plugins) for name, found in facts.items()})
    if split is not None:
        having = [name for name, found in facts.items() if found.plugins]
        yield fail(
            f"a network plugin for NCCL is on {name_hosts(having)} only",
            split.minority,
            seen=", ".join(facts[having[0]].plugins),
            expected="on every host or on none: mixed, NCCL hangs without a word (nccl#1634)",
            hint="export NCCL_NET_PLUGIN=none",
            cure=Cure(env={"NCCL_NET_PLUGIN": "none"}),
        )


@hint("distconsole setup builds it once, for all of them.")
@rule("horovod.build", "horovod", Level.QUICK, HorovodFacts, PythonFacts)
def _horovod_build(view: View) -> RuleResults:
    """Gloo on one host and MPI on another; NCCL missing on one; versions that differ."""
    every = view.of(HorovodFacts)
    facts = {name: found for name, found in every.items() if found.present}
    absent = tuple(name for name in every if name not in facts)
    if not facts:
        yield NotApplicable("no Horovod", absent)
        return
    expected = "the same build on every host"
    if absent:
        summary = f"{these_have(absent)} no Horovod, the others do"
        yield warn(summary, absent, expected=expected, hint=_setup(*absent))
    # The contents of a library that does not load are unknown: horovod.torch reports that.
    parts = {name: _features(found) for name, found in facts.items() if not found.load_error}
    versions = {name: found.version for name, found in facts.items()}
    for what, values in (("Horovod", versions), ("Horovod with", parts)):
        seen = list_some([f"{name}: {value}" for name, value in values.items()])
        rebuild = unless_user_site(view, values, _setup(*facts, options="--rebuild "), "horovod")
        yield from differ(fail, what, values, seen=seen, expected=expected, hint=rebuild)


def _features(facts: HorovodFacts) -> str:
    if facts.built is None:
        return "unknown parts" if facts.torch_library else "no PyTorch extension"
    return " ".join(name for name, built in sorted(facts.built.items()) if built) or "nothing"


def _setup(*names: str, options: str = "") -> str:
    """Return the command that brings Horovod there; ``--rebuild`` even if it fits the torch."""
    return f"distconsole setup {options}--hosts {','.join(names)}"


@hint("distconsole setup builds it against the torch that is there.")
@host_rule(
    *("horovod.torch", "horovod", Level.QUICK, HorovodFacts, TorchFacts, PythonFacts),
    unless=unless_horovod,
)
def _horovod_torch(host: HostView) -> RuleResults:
    """`Extension horovod.torch has not been built`, `undefined symbol` after an update of torch."""
    # Horovod's library is bound to the torch that it was built against (horovod#629, #2589).
    facts, torch = host.of(HorovodFacts), host.of(TorchFacts)
    installed, built = torch.version or "none", facts.against.get("pytorch", "")
    rebuild = unless_user_site(host.view, (str(host),), _setup(str(host)), "torch|horovod")
    if facts.torch_library is None and torch.present:
        yield warn(
            f"Horovod on {host} was built without PyTorch",
            seen=f"no mpi_lib_v2*.so in {facts.folder}/torch",
            hint=_setup(str(host)),
        )
    elif facts.load_error:
        yield fail(
            f"Horovod on {host} does not load with the torch that is there",
            seen=f"{facts.load_error} (built against torch {built or '?'}, installed {installed})",
            hint=rebuild,
        )
    elif built and _release(built) != _release(torch.version):
        if _release(built) in _torch_releases(host.view):
            yield NotApplicable("built against another host's torch: this one's differs")
            return
        yield warn(
            f"Horovod on {host} was built against torch {built}, installed is {installed}",
            hint=rebuild,
        )


def _release(version: str) -> str:
    return version.partition("+")[0]


@once_a_view
def _torch_releases(view: View) -> set[str]:
    return {_release(each.version) for each in view.of(TorchFacts).values()}


@hint("distconsole setup --rebuild, where one of the hosts has nvcc.")
@host_rule(
    *("horovod.nccl", "horovod", Level.STANDARD, HorovodFacts, GpuFacts), unless=unless_horovod
)
def _horovod_nccl(host: HostView) -> RuleResults:
    """GPUs, and a Horovod that copies every gradient through the host."""
    facts = host.of(HorovodFacts)
    if not host.of(GpuFacts).count:
        yield NotApplicable("no GPU")
    elif facts.built is not None and not facts.built.get("nccl"):
        yield warn(
            f"Horovod on {host} has no NCCL: its collectives go through the host's memory",
            seen=_features(facts),
            expected="a build with NCCL, which needs nvcc on one of the hosts",
            hint=_setup(str(host), options="--rebuild "),
        )


@hint("Put the right MPI first on PATH and LD_LIBRARY_PATH.")
@host_rule("horovod.mpi", "horovod", Level.STANDARD, HorovodFacts, MpiFacts)
def _horovod_mpi(host: HostView) -> RuleResults:
    """Horovod linked with one MPI and started by mpirun of another: every rank says size 1."""
    mpi, mapped = host.of(MpiFacts), host.of(HorovodFacts).mapped
    libraries = [path for path in mapped if "/libmpi" in path]
    prefix = prefix_of(mpi.mpirun)
    if not libraries or not mpi.present:
        yield NotApplicable("no MPI" if libraries else "no Horovod with MPI")
        return
    # A library belongs to mpirun by its folder, and by its name if that shows the family.
    places = ("/usr/lib", "/lib") if prefix == "/usr" else (f"{prefix}/",)
    families = ("Open MPI",) if ".so.40" in libraries[0] else ("MPICH", "Intel MPI")
    ours = libraries[0].startswith(places) and mpi.family in ("", *families)
    if prefix and not ours:
        mend = f"rebuild with {prefix}/bin on the PATH"
        line = libraries_first(f"{prefix}/lib")
        yield warn(
            f"Horovod on {host} uses another MPI than mpirun's",
            seen=f"{libraries[0]}; mpirun: {mpi.mpirun}",
            hint=mend if prefix == "/usr" else f"export LD_LIBRARY_PATH={prefix}/lib, or {mend}",
            cure=None if prefix == "/usr" else in_setup((str(host),), line),
        )


@hint("Install one MPI everywhere.")
@rule("mpi.version", "mpi", Level.QUICK, MpiFacts)
def _mpi_version(view: View) -> RuleResults:
    """`Data unpack would read past end of buffer`: MPI versions or families that differ."""
    every = view.of(MpiFacts)
    facts = {name: found for name, found in every.items() if found.present}
    versions = {name: f"{f.family} {f.version}".strip() for name, f in facts.items()}
    absent = tuple(name for name in every if name not in facts)
    if not facts:
        yield NotApplicable("no mpirun", absent)
        return
    if absent:
        yield warn(
            f"{these_have(absent)} no mpirun, the others do",
            absent,
            expected=next(iter(versions.values())),
            hint="sudo apt-get install openmpi-bin, or add its folder to the PATH with --setup",
        )
    yield from differ(
        fail,
        "MPI",
        versions,
        seen=join_some(f"{name} {found.mpirun}" for name, found in facts.items()),
        expected="the same MPI everywhere: others do not understand each other's messages",
        hint="install the version of the majority, or put it first on the PATH with --setup",
    )
