"""How a run was started, without what may be secret, for those to whom a run is shown."""

from __future__ import annotations

import re
import shlex

from distconsole.launch.environment import HIDDEN, SECRET_NAME, mask_env
from distconsole.model.run_events import PlanMade

_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+@")
_TOKEN = re.compile(
    r"\b(?:(?:sk|pk|rk)[-_](?:live[-_]|proj[-_]|ant[-_])?[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}|glpat-[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)"
)


def settings_of(plan: PlanMade) -> list[tuple[str, str]]:
    """Return what was asked for, as names and values."""
    hosts = ", ".join(f"{host.host} ({len(host.ranks)})" for host in plan.hosts[:64])
    more = f" and {len(plan.hosts) - 64} more" if len(plan.hosts) > 64 else ""
    commands = dict.fromkeys(shown_command(host.command) for host in plan.hosts)
    settings = {
        "run": plan.run,
        "name": plan.name,
        "script": plan.script,
        "launcher": plan.launcher,
        "why": plan.why,
        "ranks": str(plan.world_size),
        "hosts": hosts + more,
        "command": "\n".join(list(commands)[:4]),
    }
    return [(name, value) for name, value in settings.items() if value]


def shown_environment(plan: PlanMade) -> list[tuple[str, str]]:
    """Return the variables of the first host's ranks, those that differ between hosts marked so."""
    if not plan.hosts:
        return []
    first = mask_env(plan.hosts[0].env)
    return [
        (name, without_secrets(value) + _other_hosts(plan, name, plan.hosts[0].env[name]))
        for name, value in sorted(first.items())
    ]


def shown_command(command: str) -> str:
    """Return commands, one a line, with hidden what an option's name says is secret."""
    return "\n".join(map(_shown_line, command.split("\n")))


def without_secrets(text: str) -> str:
    """Return text with passwords in addresses and well-known kinds of tokens hidden."""
    return _TOKEN.sub(HIDDEN, _IN_URL.sub(rf"\1:{HIDDEN}@", text))


def _shown_line(line: str) -> str:
    try:
        words = shlex.split(line)
    except ValueError:
        return without_secrets(line)
    shown: list[str] = []
    hide_next = False
    for word in words:
        name, equals, value = word.partition("=")
        secret = bool(SECRET_NAME.search(name.lstrip("-").replace("-", "_")))
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
        elif equals and value and secret:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(without_secrets(word))
        hide_next = word.startswith("--") and not equals and secret
    return shlex.join(shown).replace(shlex.quote(HIDDEN), HIDDEN)


def _other_hosts(plan: PlanMade, name: str, value: str) -> str:
    return "" if all(host.env.get(name) == value for host in plan.hosts) else "  (differs by host)"
