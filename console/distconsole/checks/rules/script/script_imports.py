"""Checks of group ``script`` on what the script imports: there on every host, and the same version."""

from __future__ import annotations

import re

from distconsole.checks.engine.rule import (
    HERE,
    NotApplicable,
    RuleResult,
    RuleResults,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import PythonFacts
from distconsole.checks.facts.script import Module, ScriptFacts
from distconsole.checks.rules.script.scripts import NO_SCRIPT
from distconsole.checks.rules.wording import MAX_LISTED, dissent, list_some, name_hosts
from distconsole.model.requests import Level

JUDGED_ELSEWHERE = ("torch", "horovod")
"""Modules whose presence and versions groups of their own compare."""


@rule("script.imports", "script", Level.QUICK, ScriptFacts)
@hint("pip install on the hosts named.")
def _imports(view: View) -> RuleResults:
    """`ModuleNotFoundError` on one host, after the others have begun; found without importing.

    Modules that an import of the script would not find; none of them is imported for it.
    """
    launch = view.launch
    facts = {
        name: each.modules
        for name, each in view.of(ScriptFacts).items()
        if each.modules is not None
    }
    yield NotApplicable(
        NO_SCRIPT, tuple(name for name in view.of(ScriptFacts) if name not in facts)
    )
    if launch is None:
        return
    light: dict[str, list[str]] = {}
    nowhere = _nowhere(facts)
    every = view.of(ScriptFacts)
    for name, modules in facts.items():
        lacking = [
            module
            for module, found in modules.items()
            if not found.found and module not in JUDGED_ELSEWHERE
        ]
        code = every[name].code
        own = nowhere if code is not None and code.own_path else frozenset()
        needed = [module for module in lacking if modules[module].needed and module not in own]
        for module in set(lacking) - set(needed) - own:
            light.setdefault(module, []).append(name)
        if own:
            yield info(
                f"{_list_modules(sorted(own))} {'is' if len(own) == 1 else 'are'} found on no host, but "
                f"{launch.name} changes sys.path",
                (name,),
            )
        if needed:
            yield _lacking(launch, name, needed, facts)
    for module, hosts in light.items():
        if len(hosts) < len(facts):
            yield info(
                f"{module}, which {launch.name} can do without, is not there on {name_hosts(hosts)}",
                hosts,
            )


def _nowhere(facts: dict[str, dict[str, Module]]) -> frozenset[str]:
    """Return the modules that no host has."""
    names = {module for modules in facts.values() for module in modules}
    return frozenset(
        module
        for module in names - set(JUDGED_ELSEWHERE)
        if not any(modules[module].found for modules in facts.values() if module in modules)
    )


def _lacking(
    launch: Launch, name: str, needed: list[str], facts: dict[str, dict[str, Module]]
) -> RuleResult:
    python = launch.hosts[name].python if name in launch.hosts else "python3"
    return fail(
        f"{_list_modules(needed)}, which {launch.name} imports, "
        f"{'is' if len(needed) == 1 else 'are'} not there on {HERE}",
        (name,),
        seen=f"importlib.util.find_spec by {python}",
        expected="every module that the script imports, on every host",
        hint=f"on {HERE}: {python} -m pip install "
        + " ".join(_what_to_install(module, facts) for module in needed[:MAX_LISTED])
        + "; or --python, --setup or --env PYTHONPATH=… name where it is",
    )


def _list_modules(modules: list[str]) -> str:
    more = len(modules) - MAX_LISTED
    return ", ".join(modules[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def _what_to_install(module: str, facts: dict[str, dict[str, Module]]) -> str:
    """Return what to install for a module: what the other hosts have."""
    for modules in facts.values():
        found = modules.get(module)
        if found is not None and found.found and found.package:
            return f"{found.package}=={found.version}" if found.version else found.package
    return module


@rule("script.versions", "script", Level.QUICK, ScriptFacts)
@hint("pip install NAME==VERSION on the hosts named.")
def _versions(view: View) -> RuleResults:
    """Another version of what the script imports on one host."""
    facts = {name: each.modules or {} for name, each in view.of(ScriptFacts).items()}
    lines: list[str] = []
    pins: dict[str, list[str]] = {}
    for module in sorted({module for modules in facts.values() for module in modules}):
        have = {name: modules.get(module) for name, modules in facts.items()}
        versions = {name: m.version for name, m in have.items() if m is not None and m.version}
        split = dissent(versions)
        if split is None or module in JUDGED_ELSEWHERE:
            continue
        package = next(m.package for m in have.values() if m is not None and m.version)
        lines.append(split.told(package))
        for name in split.minority:
            pins.setdefault(name, []).extend(
                [f"{package}=={split.majority}"] if split.majority else []
            )
    if lines:
        hosts = [name for name in facts if name in pins]
        pythons = view.of(PythonFacts)
        what = (
            lines[0]
            if len(lines) == 1
            else f"{len(lines)} imported packages differ, on {name_hosts(hosts)}"
        )
        yield warn(
            what,
            hosts,
            seen=list_some(lines),
            expected="the same version of what the script imports on every host",
            hint="\n".join(
                f"on {name}: {pythons[name].executable if name in pythons else 'python3'} -m pip install "
                + " ".join(pins[name])
                for name in hosts
                if pins[name]
            )
            or f"install one version of {re.split(r'[ ,]', lines[0])[-1]} everywhere",
        )


def imported_packages(view: View) -> frozenset[str]:
    """Return the distributions, in plain spelling, that the script of the launch imports."""
    return frozenset(
        re.sub(r"[-_.]+", "-", module.package).lower()
        for facts in view.of(ScriptFacts).values()
        for module in (facts.modules or {}).values()
        if module.package
    )


RULES = (_imports, _versions)
