"""All checks, in the order in which a report tells them. Whoever adds one adds it to a module here."""

from __future__ import annotations

from distconsole.checks.engine.rule import Rule
from distconsole.checks.rules.gpu import gpu_errors, gpu_health, gpu_load, gpus
from distconsole.checks.rules.network import (
    choices,
    interfaces,
    links,
    names,
    network,
    ssh,
)
from distconsole.checks.rules.script import launches, script_imports, scripts
from distconsole.checks.rules.software import (
    collectives,
    engines,
    imports,
    python_env,
)
from distconsole.checks.rules.system import (
    expected,
    folders,
    leftovers,
    limits,
    slurm,
    system,
)

CATALOGUE: tuple[Rule, ...] = (
    *ssh.RULES,
    *names.RULES,
    *limits.RULES,
    *folders.RULES,
    *system.RULES,
    *leftovers.RULES,
    *python_env.RULES,
    *launches.RULES,
    *scripts.RULES,
    *script_imports.RULES,
    *imports.RULES,
    *engines.RULES,
    *slurm.RULES,
    *gpus.RULES,
    *gpu_health.RULES,
    *gpu_load.RULES,
    *gpu_errors.RULES,
    *interfaces.RULES,
    *network.RULES,
    *choices.RULES,
    *links.RULES,
    *collectives.RULES,
    *expected.RULES,
    *ssh.MPI_RULES,
)


def find_rule(check: str) -> Rule | None:
    """Return the check with this id, or None."""
    return next((rule for rule in CATALOGUE if rule.id == check), None)
