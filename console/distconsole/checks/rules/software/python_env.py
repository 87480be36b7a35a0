"""Checks of group ``python``: the interpreter, its packages, and its variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from distconsole.checks.engine.results import HERE, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, rule
from distconsole.checks.facts.evidence import View, by_key
from distconsole.checks.facts.network import EnvFacts, NetFacts
from distconsole.checks.facts.node import ContainerFacts, PythonFacts, SshFacts
from distconsole.checks.fixes.cures import add_to_hint, by_run, offer
from distconsole.checks.gather.addresses import HostEndpoint, endpoints
from distconsole.checks.rules.script.launches import (
    MISSING,
    WITHOUT_USER_SITE,
    differ_in_packages,
    packages_of_script,
)
from distconsole.checks.rules.wording import (
    differ,
    dissent,
    list_some,
    name_hosts,
    names_that_differ,
)
from distconsole.config.spelling import nearest
from distconsole.model.findings import Cure, HostCure
from distconsole.model.names import join_some
from distconsole.model.requests import Level

OWN_RULES = ("torch", "horovod", "nvidia-nccl", "distconsole")
"""Packages, by the beginning of their names, that other checks compare."""

PERSONAL = {
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RANK", "LOCAL_RANK", "LD_LIBRARY_PATH"),
}
"""Variables that may differ between hosts for good reasons."""
PERSONAL_PREFIXES = ("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_", "OMPI_MCA_orte_", "OMPI_MCA_ess_")

GLOO_NAMES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
NCCL_NAME = "NCCL_SOCKET_IFNAME"
OMPI_NAMES = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include")

SET_BY_RUN = {
    *("GLOO_SOCKET_IFNAME", NCCL_NAME, *OMPI_NAMES),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS"),
}
"""Variables that a launcher of ours sets whatever the host says."""
NOT_SET = "not set"

DEPRECATED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
}
KNOWN = (
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "MASTER_ADDR"),
    *("NCCL_IB_GID_INDEX", "NCCL_DEBUG_SUBSYS", "NCCL_CROSS_NIC", "NCCL_ALGO", "NCCL_PROTO"),
    "NCCL_DEBUG_FILE",
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"),
    *("MASTER_PORT", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
    *("CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "CUDA_HOME"),
    *("HOROVOD_CPU_OPERATIONS", "HOROVOD_GPU_OPERATIONS"),
    *("HOROVOD_CACHE_CAPACITY", "HOROVOD_FUSION_THRESHOLD"),
)


@hint("The finding has the engine's own words, and the command.")
@host_rule("python.container", "python", Level.QUICK, ContainerFacts)
def _container(host: HostView) -> RuleResults:
    """A container that ranks cannot run in: no engine, not running, no image, folders or network not shared."""
    facts = host.of(ContainerFacts)
    if facts.trouble:
        yield fail(f"{HERE}: {facts.trouble}", hint=facts.hint)
        return
    for folder in facts.lacks:
        yield fail(
            f"{HERE}: the container does not have {folder}",
            expected="the run's folder and the code's, at the same paths",
            hint=f"start it with --volume {folder}:{folder}",
        )
    if not facts.python:
        yield fail(
            f"{HERE}: the container has no such Python",
            hint="--python PATH names the one in there",
        )
    if facts.network not in ("", "host"):
        yield (fail if len(host.view.hosts) > 1 else info)(
            f"{HERE}: the container has a network of its own ({facts.network})",
            expected="the host's, or other hosts cannot reach its ranks",
            hint="start it with --network host",
        )
    if not facts.shares_memory:
        yield info(
            f"{HERE}: the container has a /dev/shm of its own",
            expected="the host's, in which steps are recorded without a disk",
            hint="start it with --ipc host",
        )


@hint("--python PATH, or python per host in the configuration.")
@rule("python.version", "python", Level.QUICK, PythonFacts)
def _version(view: View) -> RuleResults:
    """Another Python on one host: pickled functions and compiled packages do not fit."""
    facts = view.of(PythonFacts)
    minor = {name: ".".join(found.version.split(".")[:2]) for name, found in facts.items()}
    split = dissent(minor)
    if split is not None:
        wanted = split.majority or "the same version"
        yield fail(
            split.told("Python"),
            split.minority,
            seen=", ".join(f"{name} {facts[name].version}" for name in split.minority),
            expected=wanted,
            hint="name the right interpreter with --python, or per host in the configuration",
        )
        return
    yield from differ(info, "Python", {name: found.version for name, found in facts.items()})


@hint("pip install NAME==VERSION on the hosts named.")
@rule("python.packages", "python", Level.QUICK, PythonFacts)
def _packages(view: View) -> RuleResults:
    """One host with an older package, found by its metadata without importing anything."""
    facts = view.of(PythonFacts)
    of_script = packages_of_script(view)  # script.versions and script.imports have them
    names = names_that_differ(found.packages for found in facts.values()) - of_script
    packages = {
        package: {name: found.packages.get(package, MISSING) for name, found in facts.items()}
        for package in names
        if not package.startswith(OWN_RULES)
    }
    yield from differ_in_packages(view, packages, "the same versions on every host")


@hint("--env PYTHONNOUSERSITE=1 leaves ~/.local out, where torch is not in there alone.")
@rule("python.user_site", "python", Level.QUICK, PythonFacts)
def _user_site(view: View) -> RuleResults:
    """Packages of `pip install --user` that stand before an environment's own: another version, often on one host only."""
    facts = view.of(PythonFacts)
    found = by_key(
        (
            (
                each.user_site,
                _environment(each),
                tuple(
                    f"{package} {each.packages.get(package, '')}, in the {_environment(each)} {version}"
                    for package, version in each.shadowed.items()
                ),
            ),
            name,
        )
        for name, each in facts.items()
        if each.shadowed
    )
    alike = len(found) == 1 and len(next(iter(found.values()))) == len(facts)
    with_torch = [name for name, each in facts.items() if "torch" in each.user_only]
    for (place, environment, lines), names in found.items():
        what = join_some((line.partition(",")[0] for line in lines), 3)
        needed = f"; the torch of {name_hosts(with_torch)} is in a user's folder alone"
        yield (info if alike or set(names) <= set(with_torch) else warn)(
            f"{what} in {place} hide what the {environment} of {name_hosts(names)} has",
            names,
            seen=list_some(lines) + (needed if with_torch else ""),
            expected=f"the {environment}'s packages, as on every host that has none of its own in a home",
            hint="" if with_torch else WITHOUT_USER_SITE,
        )


def _environment(facts: PythonFacts) -> str:
    return "system" if facts.prefix in ("/usr", "/usr/local") else "environment"


@hint("Set it everywhere, or nowhere and with `run --env`.")
@rule("env.consistency", "python", Level.QUICK, EnvFacts)
def _consistency(view: View) -> RuleResults:
    """A variable of NCCL, Gloo, MPI, CUDA or Horovod that is set on some hosts only."""
    facts = view.of(EnvFacts)
    launched = view.launch.hosts.values() if view.launch is not None else ()
    names = names_that_differ(found.variables for found in facts.values())
    names -= PERSONAL.union(*(host.env for host in launched))  # the launch sets its own everywhere
    for variable in sorted(names):
        if variable.startswith(PERSONAL_PREFIXES) or not re.match(r"[A-Z]+_", variable):
            continue
        split = dissent({n: each.variables.get(variable, NOT_SET) for n, each in facts.items()})
        if split is not None:
            ours = _done_by_run(view, variable)
            cure = Cure(env={variable: split.majority}, by_run=ours) if split.majority else None
            if split.majority == NOT_SET:
                unset = HostCure(unset=(variable,))
                cure = Cure(hosts=dict.fromkeys(split.minority, unset), by_run=ours)
            yield warn(
                split.told(variable),
                split.minority,
                cure=cure,
                expected="the same on every host, or on none",
                hint=f"look where it is set: grep -rn {variable} ~/.bashrc ~/.profile /etc/environment "
                "/etc/profile.d",
            )


def _done_by_run(view: View, variable: str) -> str:
    words = by_run(view, (variable,), f"sets {variable} on every host by itself")
    return words if variable in SET_BY_RUN else ""


@hint("The finding has the right line.")
@rule("env.syntax", "python", Level.QUICK, EnvFacts)
def _syntax(view: View) -> RuleResults:
    """NCCL's grammar in a variable of Gloo, names that were renamed, typing errors."""
    variables = by_key(
        (item, name)
        for name, facts in view.of(EnvFacts).items()
        for item in facts.variables.items()
    )
    said = ((each, item, names) for item, names in variables.items() for each in _problems(*item))
    for problem, (variable, value), names in said:
        summary, _, hint = problem.partition("; ")
        wrong = "one interface" in problem
        cure = _right_name(view, variable, names) if wrong else None
        if not wrong and variable in DEPRECATED:
            cure = Cure(env={DEPRECATED[variable]: value}, unset=(variable,))
        yield (fail if wrong else warn)(
            summary,
            names,
            seen=f"{variable}={value}",
            hint=add_to_hint("", cure) if wrong and cure else hint,
            cure=cure,
        )


def _right_name(view: View, variable: str, names: Sequence[str]) -> Cure | None:
    chosen = endpoints(view)
    nics = {name: chosen[name].interface for name in names if name in chosen}
    hosts = {name: HostCure(env={variable: nic}) for name, nic in nics.items() if nic}
    if not hosts:
        return None
    return Cure(hosts=hosts, by_run=_done_by_run(view, variable))


def _problems(variable: str, value: str) -> Iterator[str]:
    """Yield ``summary; hint`` for each thing wrong with a variable."""
    if variable in GLOO_NAMES and re.search(r"[\^=,]", value):
        # NCCL's grammar; Gloo answers `Unable to find address for: ^lo` (aws-do-eks#51).
        yield f"{variable} takes one interface name, not {value!r}; export {variable}=eth0"
    if variable in DEPRECATED:
        new = DEPRECATED[variable]
        yield f"{variable} has no effect any more, it is {new} now; export {new}=…"
    known = variable in KNOWN or variable in DEPRECATED
    if not known and (near := _known_like(variable)):
        yield f"{variable} is no known variable; did you mean {near}?"


@lru_cache(maxsize=1024)
def _known_like(variable: str) -> str | None:
    return nearest(variable, KNOWN, 0.9)


@hint("Set it per host, or leave it out: the launcher sets it from the address that it chose.")
@host_rule("env.iface_exists", "python", Level.QUICK, EnvFacts, NetFacts, SshFacts)
def _iface(host: HostView) -> RuleResults:
    """`Unable to find address for: ens9`: a variable names an interface that a host lacks."""
    up = {address.iface for address in host.of(NetFacts).addresses if address.up}
    launch = host.view.launch
    by_mpi = () if launch is not None and launch.unused("mpi") else OMPI_NAMES
    for variable in (*GLOO_NAMES, NCCL_NAME, *by_mpi):
        value = host.of(EnvFacts).variables.get(variable, "")
        named = _interfaces_in(variable, value)
        # NCCL takes prefixes of names.
        missing = [
            word
            for word in named
            if (
                variable == NCCL_NAME and not any(n.startswith(word.partition(":")[0]) for n in up)
            )
            or (variable != NCCL_NAME and word not in up)
        ]
        if missing:
            right = _right_value(variable, endpoints(host.view).get(str(host)))
            change = HostCure(env={variable: right}) if right else HostCure(unset=(variable,))
            cure = Cure(hosts={str(host): change}, by_run=_done_by_run(host.view, variable))
            yield fail(
                f"{variable} names {missing[0]}, which {host} does not have",
                seen=f"{variable}={value}; interfaces with an address: {', '.join(sorted(up))}",
                expected="an interface that is up and has an address",
                **offer(cure),
            )


def _right_value(variable: str, chosen: HostEndpoint | None) -> str | None:
    if chosen is None or chosen.interface is None:
        return None
    if variable in OMPI_NAMES and ":" not in chosen.network:
        return chosen.network or None
    return f"={chosen.interface}" if variable == NCCL_NAME else chosen.interface


def _interfaces_in(variable: str, value: str) -> list[str]:
    """Return the interfaces that a value asks for; none for exclusions and subnets."""
    if not value or value.startswith("^") or "/" in value:
        return []
    if variable in GLOO_NAMES:
        return [value]
    return [word for word in value.lstrip("=").split(",") if word]
