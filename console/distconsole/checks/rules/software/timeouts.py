"""The check of group ``horovod`` on how long it waits, against what an import of torch takes here."""

from __future__ import annotations

import math

from distconsole.checks.engine.rule import NotApplicable, RuleResults, hint, rule, warn
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import BetweenFacts
from distconsole.checks.facts.node import EnvFacts, HorovodFacts, ImportFacts
from distconsole.checks.gather.timings import busy_hosts
from distconsole.checks.rules.wording import name_hosts
from distconsole.model.findings import Cure
from distconsole.model.requests import Level

MARGIN = 3.0
"""A cold disk, a busy host: so many times what was measured should be waited for."""

STEP_SECONDS = 30
RUN_WAITS_SECONDS = 120
"""What ``run`` tells the ranks in HOROVOD_GLOO_TIMEOUT_SECONDS."""

DEFAULTS = {
    "HOROVOD_START_TIMEOUT": 30.0,
    "HOROVOD_GLOO_TIMEOUT_SECONDS": 30.0,
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": math.inf,
}
"""Horovod's own (runner/launch.py, common/gloo); the last one ends nothing unless it is set above 0."""


@rule("horovod.timeouts", "horovod", Level.STANDARD, HorovodFacts, EnvFacts, ImportFacts)
@hint("export HOROVOD_START_TIMEOUT and HOROVOD_GLOO_TIMEOUT_SECONDS; `run` waits 120 s.")
def _timeouts(view: View) -> RuleResults:
    """`Timed out waiting for hosts to acknowledge`: an import of torch from a slow disk takes longer than Horovod's 30 s, or than what its variables say."""
    imports, horovod = view.of(ImportFacts), view.of(HorovodFacts)
    busy = tuple(name for name in busy_hosts(view) if name in imports)
    yield NotApplicable("too much goes on there for a measured import to mean anything", busy)
    measured = {
        name: found.seconds + logins(view).get(name, 0.0)
        for name, found in imports.items()
        if found.present and not found.error and horovod[name].present and name not in busy
    }
    without = tuple(name for name in imports if name not in measured and name not in busy)
    yield NotApplicable("no Horovod, or no torch to import", without)
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
    wanted = str(math.ceil(needed / STEP_SECONDS) * STEP_SECONDS)
    values = "; ".join(
        f"{variable}: {min(found.values()):g} s" for variable, found in short.items()
    )
    cure = dict.fromkeys(short, wanted)
    yield warn(
        f"Horovod may give up before the ranks on {name_hosts(hosts)} are there",
        hosts,
        seen=f"import torch{_and_ssh(view)} took {measured[slowest]:.1f} s on {slowest}; {values}",
        expected=f"{MARGIN:g} times that, {needed:.0f} s",
        hint="export " + " ".join(f"{variable}={value}" for variable, value in cure.items()),
        cure=Cure(env=cure, by_run=_by_run(short, needed)),
    )


def _seconds(text: str | None, default: float) -> float:
    """Return a variable's seconds; ``default`` where it is not set, or says nothing of the kind."""
    try:
        seconds = float(text or "")
    except ValueError:
        return default
    return seconds if seconds > 0 else default


def logins(view: View) -> dict[str, float]:
    """Return how long ssh from other hosts to each takes, where that was tried and worked."""
    found: dict[str, float] = {}
    for facts in view.of(BetweenFacts).values():
        for login in facts.logins:
            if login.ok:
                found[login.target] = max(found.get(login.target, 0.0), login.seconds)
    return found


def _and_ssh(view: View) -> str:
    return " and ssh" if logins(view) else ""


def _by_run(short: dict[str, dict[str, float]], needed: float) -> str:
    """Return what ``run`` does: it starts ranks without horovodrun, and waits longer for them."""
    if "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" in short or needed > RUN_WAITS_SECONDS:
        return ""
    return f"waits {RUN_WAITS_SECONDS} s for the ranks"


RULES = (_timeouts,)
