"""Checks of group ``slurm``: controller, munge, the node's state and resources, limits in a step."""

from __future__ import annotations

import re
from collections.abc import Mapping

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, rule
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.jobs import Decoded, MungeFacts, SlurmFacts, StepFacts
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.gather.attribution import Pair, cover
from distconsole.checks.rules.system.limits import show_limit
from distconsole.checks.rules.wording import differ, get_number, list_some, name_hosts
from distconsole.model.requests import Level

BROKEN_STATES = {
    "DOWN",
    "FAIL",
    "FAILING",
    "NOT_RESPONDING",
    "INVAL",
    "INVALID_REG",
    "UNKNOWN",
    "ERROR",
}
CLOSED_STATES = {"DRAIN", "DRAINED", "DRAINING", "MAINT", "MAINTENANCE", "REBOOT", "REBOOT_ISSUED"}
CLOSED_STATES |= {"POWERED_DOWN", "POWERING_DOWN"}
SKEW_SECONDS = 60
"""munge refuses beyond 300 s; a clock that is off by this much is on its way there."""

CLOCK_WORDS = ("Expired", "Rewound")
LIMITS = {"memlock": "ulimit -l", "nofile": "ulimit -n", "nproc": "ulimit -u"}
"""Those that are compared with a login's, and what shows each of them."""

_GPUS = re.compile(r"gpu(?::[A-Za-z][^:,()]*)?:(\d+)")


def _unless_slurm(host: HostView) -> NotApplicable | None:
    facts = host.of(SlurmFacts)
    return None if facts.present else NotApplicable(facts.why or "no Slurm here")


def _unless_node(host: HostView) -> NotApplicable | None:
    login = host.of(SlurmFacts).node is None
    no_node = NotApplicable("no node of Slurm's: a login host") if login else None
    return _unless_slurm(host) or no_node


def _unless_munge(host: HostView) -> NotApplicable | None:
    facts = host.of(SlurmFacts)
    other = NotApplicable(f"Slurm authenticates by {facts.auth}, not by munge")
    return _unless_slurm(host) or (None if facts.by_munge else other)


@hint("sudo systemctl status slurmctld, on the controller.")
@rule("slurm.controller", "slurm", Level.QUICK, SlurmFacts, MungeFacts, unless=_unless_slurm)
def _controller(view: View) -> RuleResults:
    """slurmctld is down, or a host cannot reach it; versions that differ."""
    facts, foreign = view.of(SlurmFacts), _foreign(_find_refusals(view))
    own_key = "its munge key is another one, so that no controller answers it"
    yield NotApplicable(own_key, tuple(foreign))
    for name, found in facts.items():
        if name not in foreign and not any(each.up for each in found.controllers):
            which = ", ".join(each.host for each in found.controllers) or found.controller_error
            yield fail(
                f"Slurm's controller does not answer {HERE}: {which or 'no answer'}",
                (name,),
                seen="scontrol ping",
                hint=f"on the controller: sudo systemctl status slurmctld; on {HERE}: scontrol ping",
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


@hint("sudo scontrol update nodename=NODE state=resume")
@host_rule("slurm.node_state", "slurm", Level.QUICK, SlurmFacts, unless=_unless_node)
def _node_state(host: HostView) -> RuleResults:
    """A node that is down, drained or does not respond, with Slurm's reason."""
    facts = host.of(SlurmFacts).node or {}
    node, state, reason = facts.get("NodeName", host), facts.get("State", ""), facts.get("Reason")
    flags = {word.strip("*~#!%$@^-") for word in state.split("+")}
    seen = f"State={state}" + (f" Reason={reason}" if reason else "")
    why = f": {reason}" if reason else ""
    if "*" in state or flags & BROKEN_STATES:
        yield fail(
            f"Slurm has {node} as {state.lower()}{why}",
            seen=seen,
            hint=f"on {node}: sudo systemctl restart slurmd; then: "
            f"sudo scontrol update nodename={node} state=resume",
        )
    elif flags & CLOSED_STATES:
        yield warn(
            f"Slurm gives {node} no new jobs ({state.lower()}){why}",
            seen=seen,
            hint=f"once it is mended: sudo scontrol update nodename={node} state=resume",
        )


@hint("Copy /etc/munge/munge.key to all hosts and restart munge; set the clocks.")
@rule("slurm.munge", "slurm", Level.QUICK, SlurmFacts, MungeFacts, unless=_unless_munge)
def _munge(view: View) -> RuleResults:
    """`Invalid credential`: keys that differ; `Rewound` and `Expired`: clocks that differ."""
    for name, found in view.of(SlurmFacts).items():
        if found.munge_error:
            yield fail(
                f"munge on {HERE} does not work: {found.munge_error}",
                (name,),
                seen="munge -n",
                hint="sudo systemctl restart munge; sudo journalctl -u munge -n 20",
            )
    refused = _find_refusals(view)
    for name, pairs in _foreign(refused).items():
        others = list(dict.fromkeys(other for pair in pairs for other in pair if other != name))
        said = refused[pairs[0]]
        yield fail(
            f"the munge key of {name} is another one than that of {name_hosts(others)}: "
            f"{said.status or said.error}",
            (name,),
            seen=list_some(
                [
                    f"munge on {source}, unmunge on {target}: {refused[source, target].status}"
                    for source, target in pairs
                ]
            ),
            expected="Success both ways",
            hint=f"on {name}: put the others' key at /etc/munge/munge.key (owner munge, mode 0400), "
            "then: sudo systemctl restart munge slurmd",
        )
        refused = {pair: each for pair, each in refused.items() if pair not in pairs}
    yield from _fail_refusals(refused)


def _find_refusals(view: View) -> dict[Pair, Decoded]:
    """Return the credentials that a host (the second) refused from another, or hardly accepted."""
    facts = view.of(SlurmFacts)
    return {
        (each.source, name): each
        for name, found in view.of(MungeFacts).items()
        if not facts[name].munge_error
        for each in found.decoded
        if each.status != "Success" or abs(_skew(each)) > SKEW_SECONDS
    }


def _foreign(refused: Mapping[Pair, Decoded]) -> dict[str, tuple[Pair, ...]]:
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


def _fail_refusals(refused: Mapping[Pair, Decoded]) -> RuleResults:
    told: list[set[str]] = []
    for (source, name), each in refused.items():
        both = (name, source) in refused
        if {source, name} in told:
            continue
        told.append({source, name})
        skew = abs(_skew(each))
        apart = f", their clocks are {skew} s apart" if skew > 1 else ""
        if each.status == "Success":
            yield warn(
                f"{source} and {name} accept each other's credentials still{apart}",
                (source, name),
                expected="munge refuses at 300 s",
                hint="sudo chronyc makestep",
            )
            continue
        who = f"{source} and {name} do not accept each other's credentials"
        who = who if both else f"{name} does not accept credentials of {source}"
        yield fail(
            f"{who}: {each.status or each.error}{apart}",
            (source, name),
            seen=f"on {source}: munge -n; on {name}: unmunge: {each.error or each.status}",
            expected="Success both ways",
            hint="sudo chronyc makestep on the host whose clock is off (see clock.offset)"
            if each.status.startswith(CLOCK_WORDS)
            else "copy one /etc/munge/munge.key to all hosts (owner munge, mode 0400), then: "
            "sudo systemctl restart munge slurmd",
        )


def _skew(each: Decoded) -> int:
    return 0 if each.encoded is None or each.decoded is None else each.decoded - each.encoded


@hint("Correct slurm.conf: slurmd -C prints the line.")
@host_rule("slurm.resources", "slurm", Level.STANDARD, SlurmFacts, GpuFacts, unless=_unless_node)
def _resources(host: HostView) -> RuleResults:
    """A configuration with more processors, memory or GPUs than the node has: `Low RealMemory`."""
    facts, gpus = host.of(SlurmFacts), host.of(GpuFacts).count
    node, hardware = facts.node or {}, {} if facts.overrides else facts.hardware or {}
    for what, wanted, has in (
        ("CPUs", get_number(node, "CPUTot"), get_number(hardware, "CPUs")),
        ("MB of memory", get_number(node, "RealMemory"), get_number(hardware, "RealMemory")),
        ("GPUs", sum(map(int, _GPUS.findall(node.get("Gres", "")))), gpus),
    ):
        if wanted is not None and has is not None and wanted > has:
            yield fail(
                f"slurm.conf gives {node.get('NodeName', host)} {wanted} {what}, and it has {has}",
                seen="scontrol show node; slurmd -C; nvidia-smi -L",
                expected="no more than there is: slurmd drains the node, or jobs wait for GPUs in vain",
                hint="correct slurm.conf and gres.conf, then: sudo scontrol reconfigure",
            )


@hint("LimitMEMLOCK=infinity in slurmd.service.")
@host_rule("slurm.limits", "slurm", Level.STANDARD, StepFacts, OsFacts)
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
    own = {name: limit[0] for name, limit in host.of(OsFacts).limits.items() if name in LIMITS}
    lower = {
        name: value
        for name, value in found.limits.items()
        if name in own and value is not None and value < (own[name] or value + 1)
    }
    if lower:
        yield warn(
            f"srun's tasks on {HERE} have lower limits than a login there: {', '.join(lower)}",
            seen="; ".join(f"{LIMITS[name]}: {value}" for name, value in lower.items()),
            expected="; ".join(f"{LIMITS[name]}: {show_limit(own[name])}" for name in lower),
            hint="LimitMEMLOCK=infinity and LimitNOFILE in slurmd.service, then restart slurmd; "
            "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        )
