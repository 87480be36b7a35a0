"""Checks of group ``slurm``: controller, munge, the node's state and resources, limits in a step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps

from distconsole.checks.engine.rule import (
    HERE,
    HostView,
    NotApplicable,
    RuleResults,
    differ,
    fail,
    hint,
    host_rule,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.jobs import Decoded, MungeFacts, SlurmFacts, StepFacts
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.gather.attribution import cover
from distconsole.checks.rules.system.limits import lower_than_a_login
from distconsole.checks.rules.wording import name_hosts
from distconsole.model.requests import Level

BROKEN_STATES = ("DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "INVAL", "UNKNOWN", "ERROR")
CLOSED_STATES = (
    "DRAIN",
    "DRAINED",
    "DRAINING",
    "MAINT",
    "REBOOT",
    "POWERED_DOWN",
    "POWERING_DOWN",
)
SKEW_SECONDS = 60
"""munge refuses beyond 300 s; a clock that is off by this much is on its way there."""

CLOCK_WORDS = ("Expired", "Rewound")
_GPUS = re.compile(r"gpu(?::[A-Za-z][^:,()]*)?:(\d+)")


def on_slurm(
    judge: Callable[[View, dict[str, SlurmFacts]], RuleResults],
) -> Callable[[View], RuleResults]:
    """Return ``judge`` for the hosts that have Slurm; of the others it is said why they have none."""

    @wraps(judge)
    def judged(view: View) -> RuleResults:
        every = view.of(SlurmFacts)
        facts = {name: found for name, found in every.items() if found.present}
        for name, found in every.items():
            if not found.present:
                yield NotApplicable(found.why or "no Slurm here", (name,))
        if facts:
            yield from judge(view, facts)

    return judged


@rule("slurm.controller", "slurm", Level.QUICK, SlurmFacts, MungeFacts)
@hint("sudo systemctl status slurmctld, on the controller.")
@on_slurm
def _controller(view: View, facts: dict[str, SlurmFacts]) -> RuleResults:
    """slurmctld is down, or a host cannot reach it; versions that differ."""
    silent: dict[str, list[str]] = {}
    foreign = _foreign(_find_refusals(view, facts))
    for name, found in facts.items():
        if name in foreign:
            yield NotApplicable(
                "its munge key is another one, so that no controller answers it", (name,)
            )
        elif not any(each.up for each in found.controllers):
            hosts = ", ".join(each.host for each in found.controllers) or found.controller_error
            silent.setdefault(hosts, []).append(name)
    for what, names in silent.items():
        yield fail(
            f"Slurm's controller does not answer {name_hosts(names)}: {what or 'no answer'}",
            names,
            seen="scontrol ping",
            hint=f"on the controller: sudo systemctl status slurmctld; from {names[0]}: scontrol ping",
        )
    down = {
        each.host: name
        for name, found in facts.items()
        for each in found.controllers
        if not each.up and any(other.up for other in found.controllers)
    }
    for host, name in down.items():
        yield warn(
            f"one of Slurm's controllers is down: {host}",
            (name,),
            hint=f"on {host}: sudo systemctl status slurmctld",
        )
    yield from differ(
        warn,
        "Slurm",
        {name: found.version for name, found in facts.items() if found.version},
        expected="one version, slurmctld's at least as new as slurmd's",
        hint="update slurmdbd first, then slurmctld, then slurmd and the commands",
    )


@rule("slurm.node_state", "slurm", Level.QUICK, SlurmFacts)
@hint("sudo scontrol update nodename=NODE state=resume")
@on_slurm
def _node_state(_view: View, facts: dict[str, SlurmFacts]) -> RuleResults:
    """A node that is down, drained or does not respond, with Slurm's reason."""
    for name, found in facts.items():
        if found.node is None:
            yield NotApplicable("no node of Slurm's: a login host", (name,))
            continue
        node, state = found.node.get("NodeName", name), found.node.get("State", "")
        flags = {word.strip("*~#!%$@^-") for word in state.split("+")}
        silent = "*" in state
        reason = found.node.get("Reason", "")
        seen = f"State={state}" + (f" Reason={reason}" if reason else "")
        why = f": {reason}" if reason else ""
        if silent or flags & set(BROKEN_STATES):
            yield fail(
                f"Slurm has {node} as {state.lower()}{why}",
                (name,),
                seen=seen,
                hint=f"on {node}: sudo systemctl restart slurmd; then: "
                f"sudo scontrol update nodename={node} state=resume",
            )
        elif flags & set(CLOSED_STATES):
            yield warn(
                f"Slurm gives {node} no new jobs ({state.lower()}){why}",
                (name,),
                seen=seen,
                hint=f"once it is mended: sudo scontrol update nodename={node} state=resume",
            )


@rule("slurm.munge", "slurm", Level.QUICK, SlurmFacts, MungeFacts)
@hint("Copy /etc/munge/munge.key to all hosts and restart munge; set the clocks.")
@on_slurm
def _munge(view: View, facts: dict[str, SlurmFacts]) -> RuleResults:
    """`Invalid credential`: keys that differ; `Rewound` and `Expired`: clocks that differ."""
    dead = {name: found.munge_error for name, found in facts.items() if found.munge_error}
    for name, error in dead.items():
        yield fail(
            f"munge on {name} does not work: {error}",
            (name,),
            seen="munge -n",
            hint="sudo systemctl restart munge; sudo journalctl -u munge -n 20",
        )
    refused = _find_refusals(view, facts)
    for name, pairs in _foreign(refused).items():
        others = list(dict.fromkeys(other for pair in pairs for other in pair if other != name))
        said = refused[pairs[0]]
        yield fail(
            f"the munge key of {name} is another one than that of {name_hosts(others)}: "
            f"{said.status or said.error}",
            (name,),
            seen="\n".join(
                f"munge on {source}, unmunge on {target}: {refused[source, target].status}"
                for source, target in pairs[:8]
            ),
            expected="Success both ways",
            hint=f"on {name}: put the others' key at /etc/munge/munge.key (owner munge, mode 0400), "
            "then: sudo systemctl restart munge slurmd",
        )
        refused = {pair: each for pair, each in refused.items() if pair not in pairs}
    yield from _fail_refusals(refused)


def _find_refusals(view: View, facts: dict[str, SlurmFacts]) -> dict[tuple[str, str], Decoded]:
    """Return what a host (the second) would not take from another, or hardly."""
    return {
        (each.source, name): each
        for name, found in view.of(MungeFacts).items()
        if not facts[name].munge_error
        for each in found.decoded
        if each.status != "Success" or abs(_skew(each)) > SKEW_SECONDS
    }


def _foreign(
    refused: Mapping[tuple[str, str], Decoded],
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the hosts whose key is another one than that of several others, and their pairs."""
    keys = [
        pair
        for pair, each in refused.items()
        if each.status != "Success" and not each.status.startswith(CLOCK_WORDS)
    ]
    return {
        name: pairs
        for name, pairs in cover(keys).items()
        if len({other for pair in pairs for other in pair}) > 2
    }


def _fail_refusals(refused: Mapping[tuple[str, str], Decoded]) -> RuleResults:
    told: set[frozenset[str]] = set()
    for (source, name), each in refused.items():
        pair = frozenset((source, name))
        if pair in told:
            continue
        told.add(pair)
        both = (name, source) in refused
        skew = _skew(each)
        apart = f", their clocks are {abs(skew)} s apart" if abs(skew) > 1 else ""
        way = "each other's credentials" if both else f"credentials of {source}"
        who = f"{source} and {name}" if both else name
        if each.status == "Success":
            yield warn(
                f"{source} and {name} accept each other's credentials still{apart}",
                (source, name),
                expected="munge refuses at 300 s",
                hint="sudo chronyc makestep",
            )
            continue
        clock = each.status.startswith(CLOCK_WORDS)
        yield fail(
            f"{who} {'do' if both else 'does'} not accept {way}: {each.status or each.error}{apart}",
            (source, name),
            seen=f"on {source}: munge -n; on {name}: unmunge: {each.error or each.status}",
            expected="Success both ways",
            hint="sudo chronyc makestep on the host whose clock is off (see clock.offset)"
            if clock
            else "copy one /etc/munge/munge.key to all hosts (owner munge, mode 0400), then: "
            "sudo systemctl restart munge slurmd",
        )


def _skew(each: Decoded) -> int:
    """Return how many seconds later it was decoded than encoded."""
    if each.encoded is None or each.decoded is None:
        return 0
    return each.decoded - each.encoded


@rule("slurm.resources", "slurm", Level.STANDARD, SlurmFacts, GpuFacts)
@hint("Correct slurm.conf: slurmd -C prints the line.")
@on_slurm
def _resources(view: View, facts: dict[str, SlurmFacts]) -> RuleResults:
    """A configuration with more processors, memory or GPUs than the node has: `Low RealMemory`."""
    gpus = view.of(GpuFacts)
    for name, found in facts.items():
        node, hardware = found.node, found.hardware
        if node is None:
            yield NotApplicable("no node of Slurm's: a login host", (name,))
            continue
        more = []
        if hardware is not None and not found.overrides:
            pairs = (
                ("CPUs", _number(node, "CPUTot"), _number(hardware, "CPUs")),
                ("MB of memory", _number(node, "RealMemory"), _number(hardware, "RealMemory")),
            )
            more = [each for each in pairs if None not in each and (each[1] or 0) > (each[2] or 0)]
        configured = sum(map(int, _GPUS.findall(node.get("Gres", ""))))
        there = gpus[name].count if name in gpus else configured
        if configured > there:
            more.append(("GPUs", configured, there))
        for what, wanted, has in more:
            yield fail(
                f"slurm.conf gives {node.get('NodeName', name)} {wanted} {what}, and it has {has}",
                (name,),
                seen="scontrol show node; slurmd -C; nvidia-smi -L",
                expected="no more than there is: slurmd drains the node, or jobs wait for GPUs in vain",
                hint="correct slurm.conf and gres.conf, then: sudo scontrol reconfigure",
            )


def _number(pairs: dict[str, str], name: str) -> int | None:
    text = pairs.get(name, "")
    return int(text) if text.isdigit() else None


@host_rule("slurm.limits", "slurm", Level.STANDARD, StepFacts, OsFacts)
@hint("LimitMEMLOCK=infinity in slurmd.service.")
def _limits(host: HostView) -> RuleResults:
    """Locked memory that is unlimited over ssh and 64 KiB in srun: RDMA fails in jobs only."""
    found = host.of(StepFacts)
    if found.error and not found.limits:
        yield warn(
            f"srun started nothing on {HERE}: {found.error}",
            seen=f"srun --jobid={found.job} --overlap cat /proc/self/limits",
            hint="is the allocation still running? squeue --me",
        )
        return
    hint = (
        "LimitMEMLOCK=infinity and LimitNOFILE in slurmd.service, then restart slurmd; "
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
    )
    yield from lower_than_a_login("srun's tasks", host, found.limits, hint)


RULES = (_controller, _node_state, _munge, _resources, _limits)
