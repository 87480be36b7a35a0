"""How a run was started and configured, without what may be secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from distconsole.grammar.secrets import mask_env, mask_text, mask_words
from distconsole.model.names import join_some, ranks_text
from distconsole.model.requests import Run
from distconsole.model.run_events import PlanMade

PASSING = re.compile(
    r"(DISTCONSOLE_.*|MASTER_(ADDR|PORT)|PYTHONPATH|(.*_)?RANK|(LOCAL_)?WORLD_SIZE|SLURM_JOB.*"
    r"|HOROVOD_GLOO_RENDEZVOUS_(ADDR|PORT)|HOROVOD_SECRET_KEY|TORCHELASTIC_RUN_ID)"
)
"""Variables that differ in every run, or follow from other settings."""

NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)

ASKED = (
    "nproc", "nnodes", "workdir", "nic", "max_restarts", "verify_sync", "pass_args", "module", "sync",
    "slurm", "env_file",
)  # fmt: skip
"""Of a request, besides script, arguments, launcher and variables."""

MAX_HOSTS = 64

Facts = Mapping[str, Mapping[str, str]]
"""Host -> fact (``torch.version``) -> value."""


def settings_of(plan: PlanMade) -> list[tuple[str, str]]:
    hosts = [f"{host.host} ({len(host.ranks)})" for host in plan.hosts]
    commands = dict.fromkeys(mask_text(host.command) for host in plan.hosts)
    settings = {
        "run": plan.run,
        "name": plan.name,
        "script": plan.script,
        "launcher": plan.launcher,
        "why": plan.why,
        "ranks": str(plan.world_size),
        "hosts": join_some(hosts, MAX_HOSTS),
        "command": "\n".join(list(commands)[:4]),
    }
    return [(name, value) for name, value in settings.items() if value]


def environment_of(plan: PlanMade) -> list[tuple[str, str]]:
    """Return the variables of the first host's ranks, those that differ between hosts marked so."""
    if not plan.hosts:
        return []
    first, *others = [host.env for host in plan.hosts]
    shown = mask_env(first)
    for name in first:
        if any(env.get(name) != first[name] for env in others):
            shown[name] += "  (differs by host)"
    return sorted(shown.items())


def settings_of_run(
    plan: PlanMade | None, request: Run | None, facts: Facts, gpus: Iterable[str]
) -> dict[str, str]:
    """Return everything that is known of how a run was configured, what may be secret hidden."""
    found: dict[str, str] = {}
    if plan is not None:
        found |= _plan_settings(plan)
    if request is not None:
        found |= _request_settings(request)
    elif plan is not None and plan.hosts:
        found["command"] = mask_text(plan.hosts[0].command)
    if names := sorted(set(gpus)):
        found["GPU"] = ", ".join(names)
    return found | _over_hosts(facts.values())


def arguments_of(words: Sequence[str]) -> dict[str, str]:
    """Return a script's arguments by name: ``--lr 0.1``, ``--lr=0.1``, ``--flag``, and others by place."""
    found: dict[str, str] = {}
    place, at = 0, 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-") or NUMBER.fullmatch(word):
            place += 1
            found[f"argument {place}"] = word
            continue
        name, equals, value = word.partition("=")
        if (
            not equals
            and at < len(words)
            and (not words[at].startswith("-") or NUMBER.fullmatch(words[at]))
        ):
            value = words[at]
            at += 1
        told = found.get(name)
        value = value or "given"
        found[name] = value if told is None else f"{told} {value}"
    return found


def _plan_settings(plan: PlanMade) -> dict[str, str]:
    hosts = [host.host for host in plan.hosts]
    each = [len(host.ranks) for host in plan.hosts]
    per_host = str(each[0]) if len(set(each)) == 1 else ranks_text(sorted(set(each)))
    found = {
        "script": plan.script,
        "launcher": plan.launcher,
        "hosts": join_some(hosts, MAX_HOSTS),
        "ranks": str(plan.world_size),
        "ranks per host": per_host,
    }
    env = sorted(_over_hosts(mask_env(host.env) for host in plan.hosts).items())
    return found | {f"env {name}": value for name, value in env if not PASSING.fullmatch(name)}


def _request_settings(request: Run) -> dict[str, str]:
    arguments = arguments_of(mask_words(request.arguments))
    found = {
        f"arg {name}" if name.startswith("-") else name: value for name, value in arguments.items()
    }
    for name in ASKED:
        value = getattr(request, name)
        if value not in (None, "", 0, False):
            found[name.replace("_", "-")] = mask_text(str(value))
    if request.where.python:
        found["python"] = request.where.python
    if request.where.setup:
        found["setup"] = mask_text(request.where.setup)
    if request.where.container:
        found["container"] = mask_text(request.where.container)
    return found


def _over_hosts(hosts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the hosts' settings as one, with each value that a host has."""
    values: dict[str, dict[str, None]] = {}
    for host in hosts:
        for name, value in host.items():
            values.setdefault(name, {})[value] = None
    return {name: ", ".join(each) for name, each in values.items()}
