"""Checks of group ``script`` on what the script imports: there on every host, and the same version."""

from __future__ import annotations

import re
from collections.abc import Mapping

from distconsole.checks.engine.rule import (
    HERE,
    HostView,
    NotApplicable,
    RuleResults,
    fail,
    hint,
    info,
    judge_each,
    rule,
    warn,
)
from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import PythonFacts
from distconsole.checks.facts.script import Module, ScriptFacts
from distconsole.checks.rules.script.launches import get_launch, unless_launch
from distconsole.checks.rules.script.scripts import NO_SCRIPT
from distconsole.checks.rules.wording import MAX_LISTED, dissent, join_some, list_some, name_hosts
from distconsole.model.findings import Finding
from distconsole.model.requests import Level

MISSING = "missing"
JUDGED_ELSEWHERE = ("torch", "horovod")
"""Modules whose presence and versions groups of their own compare."""


def _unless_modules(host: HostView) -> NotApplicable | None:
    """Leave out a host on which the script's modules could not be asked for."""
    asked = host.of(ScriptFacts).modules is not None
    return unless_launch(host) or (None if asked else NotApplicable(NO_SCRIPT))


@rule("script.imports", "script", Level.QUICK, ScriptFacts, unless=_unless_modules)
@hint("pip install on the hosts named.")
def _imports(view: View) -> RuleResults:
    """`ModuleNotFoundError` on one host, after the others have begun; found without importing."""
    launch = get_launch(view)
    facts = {name: each.modules or {} for name, each in view.of(ScriptFacts).items()}
    found_on: dict[str, list[str]] = {}
    for name, modules in facts.items():
        for module, found in modules.items():
            if module not in JUDGED_ELSEWHERE:
                found_on.setdefault(module, []).extend([name] if found.found else [])
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
        if needed:
            yield _report_lacking(launch, host, needed, facts)
        for module in lacking:
            if module not in needed and module not in own and module not in nowhere:
                yield info(f"{module}, which {launch.name} can do without, is not there on {HERE}")

    yield from judge_each(judge)(view)


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
    """Return what to install for a module: what the other hosts have."""
    for found in (modules.get(module) for modules in facts.values()):
        if found is not None and found.found and found.package:
            return f"{found.package}=={found.version}" if found.version else found.package
    return module


@rule("script.versions", "script", Level.QUICK, ScriptFacts)
@hint("pip install NAME==VERSION on the hosts named.")
def _versions(view: View) -> RuleResults:
    """Another version of what the script imports on one host."""
    facts = {name: each.modules or {} for name, each in view.of(ScriptFacts).items()}
    packages: dict[str, dict[str, str]] = {}
    for name, modules in facts.items():
        for module, found in modules.items():
            if found.version and module not in JUDGED_ELSEWHERE:
                packages.setdefault(found.package, {})[name] = found.version
    pythons = {n: p.executable for n, p in view.of(PythonFacts).items()}
    yield from differ_in_packages(
        packages, pythons, "the same version of what the script imports on every host"
    )


def differ_in_packages(
    packages: Mapping[str, Mapping[str, str]], pythons: Mapping[str, str], expected: str
) -> RuleResults:
    """Yield the finding that versions of packages differ, with what to install on which host.

    Args:
        packages: By package and host the version.
        pythons: By host the interpreter to install it for.
    """
    differing: list[str] = []
    lines: list[str] = []
    pins: dict[str, list[str]] = {}
    for package, versions in sorted(packages.items()):
        split = dissent(versions)
        if split is not None:
            differing.append(package)
            lines.append(split.told(package))
            pin = [] if split.majority in (None, MISSING) else [f"{package}=={split.majority}"]
            for name in split.minority:
                pins.setdefault(name, []).extend(pin)
    if lines:
        many = f"{len(lines)} packages differ, on {name_hosts(list(pins))}"
        yield warn(
            lines[0] if len(lines) == 1 else many,
            list(pins),
            seen=list_some(lines),
            expected=expected,
            hint="\n".join(
                f"on {name}: {pythons.get(name, 'python3')} -m pip install {' '.join(each[:40])}"
                for name, each in pins.items()
                if each
            )
            or f"install one version of {join_some(differing)} everywhere",
        )


def packages_of_script(view: View) -> frozenset[str]:
    """Return the distributions, in plain spelling, that the script of the launch imports."""
    return frozenset(
        re.sub(r"[-_.]+", "-", module.package).lower()
        for facts in view.of(ScriptFacts).values()
        for module in (facts.modules or {}).values()
        if module.package
    )


RULES = (_imports, _versions)
