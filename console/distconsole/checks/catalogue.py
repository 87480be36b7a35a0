"""All checks, in the order in which a report tells them. Whoever adds one adds it to a module here."""

from __future__ import annotations

from distconsole.checks.rule import Rule
from distconsole.checks.rules import (
    between,
    budgets,
    choices,
    collectives,
    engines,
    expected,
    fabric,
    folder_use,
    folders,
    gpu_errors,
    gpu_health,
    gpu_limits,
    gpu_load,
    gpus,
    identity,
    interfaces,
    kernel_log,
    launches,
    leftovers,
    libraries,
    limits,
    names,
    network,
    pace,
    python_env,
    script_imports,
    scripts,
    slurm,
    ssh,
    system,
    timeouts,
)

CATALOGUE: tuple[Rule, ...] = (
    *ssh.RULES,
    *between.RULES[:1],
    *identity.RULES,
    *names.RULES,
    *limits.RULES,
    *folders.RULES,
    *folder_use.RULES,
    *budgets.RULES,
    *system.RULES,
    *leftovers.RULES,
    *kernel_log.RULES,
    *python_env.RULES,
    *launches.RULES,
    *scripts.RULES,
    *script_imports.RULES,
    *libraries.RULES,
    *engines.RULES[:-1],
    *timeouts.RULES,
    *engines.RULES[-1:],
    *slurm.RULES,
    *gpus.RULES,
    *gpu_health.RULES,
    *gpu_limits.RULES,
    *gpu_load.RULES,
    *gpu_errors.RULES,
    *interfaces.RULES,
    *network.RULES,
    *choices.RULES,
    *fabric.RULES,
    *pace.RULES,
    *collectives.RULES,
    *expected.RULES,
    *between.RULES[1:],
)


def rule_called(check: str) -> Rule | None:
    """Return the check with this id, or None."""
    return next((rule for rule in CATALOGUE if rule.id == check), None)
