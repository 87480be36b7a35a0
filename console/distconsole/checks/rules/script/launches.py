"""Checks of group ``script`` on the launch: what ``run`` refuses, folder, interpreter, ranks, meeting, imports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, judge_each, only_where, rule
from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.evidence import UNREACHED, Outcome, View, by_key, once_a_view
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import OsFacts, PythonFacts, SshFacts
from distconsole.checks.facts.script import FoundPath, Module, ScriptFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.rules.system.folders import TOLD, lies_on_stuck
from distconsole.checks.rules.wording import MAX_LISTED, dissent, list_some, name_hosts
from distconsole.model.findings import Finding
from distconsole.model.names import count_text, join_some
from distconsole.model.requests import Level

CHOOSING = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that choose a rank's GPUs; ROCm's torch knows all three."""

NO_SCRIPT = "the script is not there, or cannot be read"

unless_launch = only_where(lambda host: host.view.launch is not None, "no script was given")
"""Leaves out all hosts without a launch to judge."""


def get_launch(view: View) -> Launch:
    assert view.launch is not None
    return view.launch


def unless_brought(host: HostView) -> NotApplicable | None:
    """Leave out all hosts if the code is not there yet: --sync brings it with the launch."""
    launch = host.view.launch
    if launch is None or not launch.brought:
        return unless_launch(host)
    return NotApplicable(f"--sync brings {launch.brought}")


@hint("The finding has what `run` says.")
@rule("script.launch", "script", Level.QUICK, SshFacts)
def _launch(view: View) -> RuleResults:
    """What `run` would refuse: no such interface, more ranks than slots, hosts without the launcher."""
    launch = view.launch
    unreached = tuple(name for name, each in view.of(SshFacts).items() if each.error_kind)
    yield NotApplicable(UNREACHED, unreached, Outcome.COULD_NOT_RUN)
    if launch is not None and launch.refused:
        yield fail(
            f"distconsole run would refuse it: {launch.refused}",
            [n for n in view.everyone if re.search(rf"\b{re.escape(n)}\b", launch.refused)],
            seen="what run --dry-run says",
            expected="a launch that can be placed on these hosts",
            hint=launch.refused_hint or "see: distconsole run --dry-run",
        )


@hint("--python PATH, --setup 'source …/activate'.")
@host_rule("script.interpreter", "script", Level.QUICK, ScriptFacts, unless=unless_launch)
def _interpreter(host: HostView) -> RuleResults:
    """The interpreter that the command names is not there on some host, or does not start."""
    python = host.of(ScriptFacts).python
    if python is not None and python.error:
        planned = get_launch(host.view).hosts.get(str(host))
        cure = (
            f"on {HERE}: command -v python3; --python PATH names the right one, --setup what "
            "brings it into PATH"
        )
        if re.search(r"Fatal Python error: .*encoding", python.error):
            cure = (
                "it does not find its own library: look for PYTHONHOME and PYTHONPLATLIBDIR in the start-up "
                f"files of {HERE}; --env PYTHONHOME= --env PYTHONPLATLIBDIR= leaves them out"
            )
        yield fail(
            f"{planned.python if planned else 'python'} does not start on {HERE}",
            seen=python.error,
            expected="the interpreter of the ranks, at the same path on every host",
            hint=cure,
        )


@hint("--sync, --workdir DIR, or make it.")
@host_rule("script.workdir", "script", Level.QUICK, ScriptFacts, OsFacts, unless=unless_brought)
def _workdir(host: HostView) -> RuleResults:
    """A host without the folder that the ranks start in, or one on a filesystem that does not answer."""
    workdir, found = get_launch(host.view).workdir, host.of(ScriptFacts).workdir
    wrong = _no_folder(found)
    if found.late and lies_on_stuck(workdir, host.of(OsFacts)):
        yield NotApplicable(TOLD)
    elif wrong:
        yield fail(
            f"the working folder {workdir} {wrong} on {HERE}",
            seen=f"stat: {found.error or found.kind}",
            expected="a folder that the user can enter, on every host: the ranks start there",
            hint=f"--sync brings the code, --workdir names another folder; or on {HERE}: "
            f"mkdir -p {workdir}",
        )


def _no_folder(found: FoundPath) -> str:
    if found.late:
        return "does not answer"
    if found.error and found.code in ("ENOENT", ""):
        return "is not there"
    if found.error:
        return f"cannot be seen ({found.error})"
    if found.kind != "folder":
        return "is no folder"
    return "" if found.readable else "cannot be entered"


@hint("The address of the first host.")
@host_rule("script.rendezvous", "script", Level.QUICK, ScriptFacts, NetFacts, SshFacts)
def _rendezvous(host: HostView) -> RuleResults:
    """MASTER_ADDR, --master_addr, --rdzv_endpoint or tcp:// that is not the first host: everybody waits."""
    launch, meant = host.view.launch, host.of(ScriptFacts).address
    if launch is None or not launch.address or not launch.hosts:
        yield NotApplicable("the launch names no address to meet at")
        return
    first, planned = next(iter(launch.hosts.items()))
    hint = f"the address of {first}, where rank 0 is: {planned.address or first}; distconsole run sets it"
    if meant is not None and meant.error:
        yield fail(
            f"{launch.address}, where the ranks are to meet, has no address on {HERE}",
            seen=meant.error,
            expected="a name that every host resolves, or an address",
            hint=hint,
        )
    elif meant is not None and meant.addresses and len(set(machines(host.view).values())) > 1:
        owners = [
            name
            for name, net in host.view.of(NetFacts).items()
            if {each.address for each in net.addresses} & set(meant.addresses)
        ]
        loops = any(each.startswith("127.") or each == "::1" for each in meant.addresses)
        others = name_hosts([name for name in owners if name != first] or ["no host here"])
        if loops or first not in owners:
            yield fail(
                f"{launch.address}, where the ranks are to meet, "
                + ("means each host itself" if loops else f"is {others}, not {first} with rank 0"),
                seen=f"getaddrinfo({launch.address!r}): {', '.join(meant.addresses)}; rank 0 is on "
                f"{first}, {planned.address or 'the first host'}",
                expected=f"an address of {first}",
                hint=hint,
            )


@hint("--nproc gpu.")
@host_rule("script.ranks", "script", Level.QUICK, GpuFacts, unless=unless_launch)
def _ranks(host: HostView) -> RuleResults:
    """More ranks on a host than GPUs, by a script that uses NCCL."""
    launch, gpus = get_launch(host.view), host.of(GpuFacts).count
    planned = launch.hosts.get(str(host))
    if planned is None:
        return
    count, have = len(planned.ranks), gpus
    if (chosen := next((planned.env[n] for n in CHOOSING if n in planned.env), None)) is not None:
        have = min(gpus, sum(word.strip() not in ("", "-1") for word in chosen.split(",")))
    if "nccl" in launch.traits.backend and count > have:
        yield fail(
            f"{count_text(count, 'rank')} by NCCL on {count_text(have, 'GPU')} of {HERE}",
            seen=f"init_process_group({launch.traits.backend!r}) in {launch.name}; NVML counts {gpus}",
            expected="a GPU for each rank, or another backend",
            hint="--nproc gpu" if have else "a script that falls back on gloo, or hosts with GPUs",
        )
    elif have and count > have:
        yield warn(
            f"{count} ranks share {count_text(have, 'GPU')} of {HERE}",
            expected="a rank for each GPU",
            hint="--nproc gpu",
        )


MISSING = "missing"
JUDGED_ELSEWHERE = ("torch", "horovod")
"""Modules whose versions groups of their own compare, and their presence where any host has them."""
WITHOUT_USER_SITE = (
    "run --env PYTHONNOUSERSITE=1 leaves ~/.local out; by hand: export PYTHONNOUSERSITE=1"
)


def _unless_modules(host: HostView) -> NotApplicable | None:
    asked = host.of(ScriptFacts).modules is not None
    return unless_launch(host) or (None if asked else NotApplicable(NO_SCRIPT))


@hint("pip install on the hosts named.")
@rule("script.imports", "script", Level.QUICK, ScriptFacts, unless=_unless_modules)
def _imports(view: View) -> RuleResults:
    """`ModuleNotFoundError` on one host, after the others have begun; found without importing."""
    launch = get_launch(view)
    facts = {name: each.modules or {} for name, each in view.of(ScriptFacts).items()}
    found_on: dict[str, list[str]] = {}
    for name, modules in facts.items():
        for module, found in modules.items():
            found_on.setdefault(module, []).extend([name] if found.found else [])
    found_on.pop("horovod", None)  # ``script.launch`` says that it is missing
    if found_on.get("torch"):
        del found_on["torch"]
    nowhere = [module for module, hosts in found_on.items() if not hosts]

    def judge(host: HostView) -> RuleResults:
        code, modules = host.of(ScriptFacts).code, facts[str(host)]
        lacking = [m for m, hosts in found_on.items() if m in modules and str(host) not in hosts]
        own = sorted(nowhere) if code is not None and code.own_path else []
        if own:
            yield info(
                f"{join_some(own)} {_be(own)} found on no host, but {launch.name} changes sys.path"
            )
        needed = [module for module in lacking if modules[module].needed and module not in own]
        if code is not None and not code.own_path:
            yield from _report_own(launch, modules)
            needed = [module for module in needed if module not in launch.own]
        if needed:
            yield _report_lacking(launch, host, needed, facts)
        for module in lacking:
            if module not in needed and module not in own and module not in nowhere:
                yield info(f"{module}, which {launch.name} can do without, is not there on {HERE}")

    yield from judge_each(judge)(view)


def _report_own(launch: Launch, modules: Mapping[str, Module]) -> RuleResults:
    """Yield modules of the project that a host does not find, or takes from elsewhere, as from an older checkout."""
    for module in sorted(launch.own.keys() & modules.keys()):
        (folder, cure), found = launch.own[module], modules[module]
        if not found.found and found.needed:
            yield fail(
                f"{module}, which {launch.name} imports, is in {folder}, where Python does not look on {HERE}",
                expected="every module that the script imports, on every host",
                hint=cure,
            )
        elif found.place and (launch.brought or not found.place.startswith(f"{folder}/")):
            yield warn(
                f"{module}, which {launch.name} imports, is taken from {found.place} on {HERE}, and not "
                f"from {folder}",
                expected="the code of the script's own project",
                hint=cure,
            )


def _report_lacking(
    launch: Launch, host: HostView, needed: list[str], facts: Mapping[str, Mapping[str, Module]]
) -> Finding:
    python = launch.hosts[str(host)].python if str(host) in launch.hosts else "python3"
    packages = [_what_to_install(module, facts) for module in needed[:MAX_LISTED]]
    return fail(
        f"{join_some(needed)}, which {launch.name} imports, {_be(needed)} not there on {HERE}",
        seen=f"importlib.util.find_spec by {python}",
        expected="every module that the script imports, on every host",
        hint=f"on {HERE}: {python} -m pip install {' '.join(packages)}; "
        "or --python, --setup or --env PYTHONPATH=… name where it is",
    )


def _be(modules: list[str]) -> str:
    return "is" if len(modules) == 1 else "are"


def _what_to_install(module: str, facts: Mapping[str, Mapping[str, Module]]) -> str:
    for found in (modules.get(module) for modules in facts.values()):
        if found is not None and found.found and found.package:
            return f"{found.package}=={found.version}" if found.version else found.package
    return module


@hint("pip install NAME==VERSION on the hosts named.")
@rule("script.versions", "script", Level.QUICK, ScriptFacts)
def _versions(view: View) -> RuleResults:
    """Another version of what the script imports on one host."""
    facts = {name: each.modules or {} for name, each in view.of(ScriptFacts).items()}
    versions = by_key(
        (found.package, (name, found.version))
        for name, modules in facts.items()
        for module, found in modules.items()
        if found.version and module not in JUDGED_ELSEWHERE
    )
    packages = {package: dict(pairs) for package, pairs in versions.items()}
    yield from differ_in_packages(
        view, packages, "the same version of what the script imports on every host"
    )


def differ_in_packages(
    view: View, packages: Mapping[str, Mapping[str, str]], expected: str
) -> RuleResults:
    """Yield the finding that packages differ (by package and host), and what to install for which Python.

    Where a user's site has another version than the environment, the environment's is compared:
    ``python.user_site`` has the other.
    """
    facts = view.of(PythonFacts)
    pythons = {name: found.executable for name, found in facts.items()}
    lines: dict[str, str] = {}
    pins: dict[str, list[str]] = {}
    for package, versions in sorted(packages.items()):
        plain, own = _plain(package), dict(versions)
        own.update(
            (n, facts[n].shadowed[plain]) for n in own if n in facts and plain in facts[n].shadowed
        )
        split = dissent(own)
        if split is not None:
            lines[package] = split.told(package)
            pin = [] if split.majority in (None, MISSING) else [f"{package}=={split.majority}"]
            for name in split.minority:
                pins.setdefault(name, []).extend(pin)
    if lines:
        yield warn(
            f"{len(lines)} packages differ, on {name_hosts(list(pins))}"
            if len(lines) > 1
            else next(iter(lines.values())),
            pins,
            seen=list_some(list(lines.values())),
            expected=expected,
            hint="\n".join(
                f"on {name}: {pythons.get(name, 'python3')} -m pip install {' '.join(each[:40])}"
                for name, each in pins.items()
                if each
            )
            or f"install one version of {join_some(lines)} everywhere",
        )


def packages_of_script(view: View) -> frozenset[str]:
    return frozenset(
        _plain(module.package)
        for facts in view.of(ScriptFacts).values()
        for module in (facts.modules or {}).values()
        if module.package
    )


def _plain(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def unless_user_site(view: View, hosts: Iterable[str], hint: str, packages: str) -> str:
    """Return ``hint``; if a user's site on ``hosts`` shadows ``packages``, a pattern, how to leave it out instead."""
    facts = view.of(PythonFacts)
    names = {name for host in hosts if host in facts for name in facts[host].shadowed}
    if not any(re.fullmatch(packages, name) for name in names) or _user_torch(view):
        return hint
    return WITHOUT_USER_SITE


@once_a_view
def _user_torch(view: View) -> bool:
    """Whether a host's torch is in its user's site alone, which ``run --env`` would hide from it."""
    return any("torch" in found.user_only for found in view.of(PythonFacts).values())
