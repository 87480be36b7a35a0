"""All checks, in the order of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from distconsole.checks.engine.rule import Rule
from distconsole.checks.facts.node import Facts, SshFacts
from distconsole.checks.rules.gpu import gpu_health, gpus
from distconsole.checks.rules.network import interfaces, links, names, network, ssh, transports
from distconsole.checks.rules.script import launches, scripts
from distconsole.checks.rules.software import engines, python_env, short_jobs
from distconsole.checks.rules.system import expected, folders, kernel_log, limits, slurm, system
from distconsole.config.spelling import suggest
from distconsole.errors import UsageError
from distconsole.model.events import Event, TextMade
from distconsole.model.expectation import Expectation
from distconsole.model.requests import Explain, Level

MODULES = (
    *(ssh, names, limits, folders, system, kernel_log, python_env),
    *(scripts, launches, engines, slurm),
    *(gpus, gpu_health, interfaces, network, links),
    *(short_jobs, transports, expected),
)
CATALOGUE: tuple[Rule, ...] = tuple(
    rule
    for module in MODULES
    for each in vars(module).values()
    for rule in (each if isinstance(each, tuple) else [each])
    if isinstance(rule, Rule)
)
"""The rules of these modules, and their tuples of rules, as they stand there."""


def find_rule(check: str) -> Rule | None:
    return next((rule for rule in CATALOGUE if rule.id == check), None)


def at_level(rule: Rule, level: Level) -> bool:
    order = list(Level)
    return order.index(rule.level) <= order.index(level)


_REMOVED = """
clock.console fs.shared gpu.cuda gpu.nvlink_load gpu.pcie_load gpu.persistence horovod.by_mpi horovod.timeouts lim.stack
mpi.limits net.mtu_config net.route_dev os.cloned python.executable script.launcher ssh.latency ssh.path_noninteractive
sys.backlog sys.mtu_probing sys.neighbours sys.ports torch.debug
"""
REMOVED = frozenset(_REMOVED.split())
"""Checks of earlier builds: a configuration that skips one of them stays right."""


def select_rules(only: Iterable[str] = (), skip: Iterable[str] = ()) -> tuple[Rule, ...]:
    """Return the rules that ``--only`` and ``--skip`` leave, whatever their level.

    A word is a group, an id, or the beginning of an id.

    Raises:
        UsageError: for a word that means no check.
    """
    only, skip = tuple(only), tuple(word for word in skip if word not in REMOVED)
    for flag, words in (("--only", only), ("--skip", skip)):
        for word in words:
            if not any(_means(word, rule) for rule in CATALOGUE):
                raise UsageError(f"{flag} {word}: no check begins with that", _suggest(word))
    return tuple(
        rule
        for rule in CATALOGUE
        if (not only or any(_means(word, rule) for word in only))
        and not any(_means(word, rule) for word in skip)
    )


def _means(word: str, rule: Rule) -> bool:
    return word == rule.group or rule.id.startswith(word)


def _suggest(word: str) -> str:
    if word in REMOVED:
        return "this version has removed it"
    groups = sorted({rule.group for rule in CATALOGUE})
    known = sorted({*groups, *(rule.id for rule in CATALOGUE)})
    return suggest(word, known, f"the groups are: {', '.join(groups)}")


def drop_expectations(
    rules: Iterable[Rule], expectations: Mapping[str, Expectation]
) -> tuple[Rule, ...]:
    keys = expected.KEYS
    return tuple(
        rule
        for rule in rules
        if rule.id not in keys
        or any(expected.expects(each, keys[rule.id]) for each in expectations.values())
    )


def needs_of(rules: Iterable[Rule]) -> frozenset[type[Facts]]:
    needed: set[type[Facts]] = {SshFacts, *(kind for rule in rules for kind in rule.needs)}
    return frozenset(needed.union(*(kind.leans_on for kind in needed)))


def explain_check(request: Explain) -> Iterator[Event]:
    """Explain a check, a group, or the checks of a prefix; raises UsageError for none."""
    check = request.check
    rule = find_rule(check)
    if rule is None:
        some = [each for each in CATALOGUE if check and _means(check, each)]
        if not some:
            raise UsageError(f"there is no check {check}", _suggest(check))
        width = max(len(each.id) for each in some)
        lines = [f"{each.id:<{width}}  {each.catches}" for each in some]
    else:
        lines = [
            f"{rule.id}   group {rule.group}, from --level {rule.level.value} on",
            f"  catches: {rule.catches}",
            f"  hint:    {rule.hint}",
            f"  reads:   {', '.join(kind.group for kind in rule.needs)}",
        ]
    yield TextMade(text="\n".join(lines))
