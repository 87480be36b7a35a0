"""Checks of group ``ssh``: how far each host lets us in. Reaching them is done elsewhere."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import NamedTuple

from distconsole.checks.engine.rule import (
    HERE,
    HostView,
    NotApplicable,
    Rule,
    RuleResults,
    fail,
    hint,
    host_rule,
    info,
    judge_each,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import ClockFacts, LifeFacts, ShellFacts, SshFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.rules.wording import name_hosts
from distconsole.model.check_outcome import LOST
from distconsole.model.requests import Level

SLOW_RTT_MS = 300.0
SLOW_FACTOR = 4.0
"""How much more than most hosts' a round trip must take where all take long."""


class _Step(NamedTuple):
    """One step on the way into a host, and the errors with which the way ends there."""

    check: str
    errors: tuple[str, ...]
    catches: str
    hint: str
    expected: str


_STEPS = (
    _Step(
        "ssh.resolve",
        ("resolve",),
        "A typing error, an alias that ssh_config does not have, a name that DNS lost.",
        "Correct the name, or give the host a HostName in ssh_config.",
        "a name with an address",
    ),
    _Step(
        "ssh.connect",
        ("connect", "node"),
        "A host that is down, a firewall, another port, an sshd that drops connections.",
        "Check that the host is up: `ssh HOST true`; look at Port and ProxyJump in ssh_config.",
        "an SSH server that answers",
    ),
    _Step(
        "ssh.hostkey",
        ("host_key_unknown", "host_key_changed"),
        "A host never seen before, a reinstalled host, or somebody in between.",
        "The finding carries the line that adds or replaces the key; compare the fingerprint first.",
        "the host key that known_hosts has",
    ),
    _Step(
        "ssh.auth",
        ("auth",),
        "A key that the host does not accept, another user, wrong modes on ~/.ssh.",
        "`ssh-copy-id HOST`; User and IdentityFile in ssh_config.",
        "a login by key, without a password",
    ),
    _Step(
        "ssh.clean_shell",
        ("shell_noise",),
        "A .bashrc that prints, or starts tmux, for shells that nobody looks at.",
        "Put `[[ $- == *i* ]] || return` at the top of ~/.bashrc on the host.",
        "a shell that prints nothing by itself",
    ),
    _Step(
        "ssh.agent",
        ("python", "storage", "agent", "request", "link_lost"),
        "No Python 3.9, a full or noexec /tmp, a connection that breaks.",
        "--python names another interpreter; node_dir another folder.",
        "a node that runs the agent",
    ),
)
"""In the order in which they are met."""

REACHING = frozenset({*(step.check for step in _STEPS), LOST})
"""Checks of whether a host can be asked at all: what they find is told whoever asked for what."""


def _judge_step(step: _Step, host: HostView) -> RuleResults:
    ssh = host.of(SshFacts)
    earlier = {error: each.check for each in _STEPS[: _STEPS.index(step)] for error in each.errors}
    if ssh.error_kind in step.errors:
        yield fail(ssh.error, seen=ssh.error, expected=step.expected, hint=ssh.hint)
    elif ssh.error_kind in earlier:
        yield NotApplicable(f"the way there ended before, at {earlier[ssh.error_kind]}")


@rule("ssh.latency", "ssh", Level.QUICK, ClockFacts)
@hint("Nothing to mend where only the way to the console is long.")
def _latency(view: View) -> RuleResults:
    """A slow jump host or a host that swaps."""
    times = {name: 1000 * clock.rtt_seconds for name, clock in view.of(ClockFacts).items()}
    usual = median(times.values()) if len(times) > 2 else 0.0
    alike = usual > SLOW_RTT_MS
    if alike:
        yield info(
            f"a round trip takes {usual:.0f} ms to most hosts: this machine is busy, or far away",
            hint="training does not go this way",
        )
    for name, rtt_ms in times.items():
        if rtt_ms > SLOW_RTT_MS and not (alike and rtt_ms < SLOW_FACTOR * usual):
            yield warn(
                f"a round trip to {name} takes {rtt_ms:.0f} ms",
                (name,),
                seen=f"{rtt_ms:.1f} ms, the best of 8",
                expected=f"under {SLOW_RTT_MS:.0f} ms",
                hint="a jump host far away, or a host that swaps; training does not go this way",
            )


@host_rule("ssh.path_noninteractive", "ssh", Level.STANDARD, ShellFacts)
@hint("Move the export of PATH above the interactive guard of ~/.bashrc.")
def _path(host: HostView) -> RuleResults:
    """`orted: command not found`: a PATH that only login shells have.

    A program that only a login shell finds is not found by mpirun's ssh (ompi#599, #8870).
    """
    shell = host.of(ShellFacts)
    if shell.noninteractive is None or shell.login is None:
        yield NotApplicable(f"the login shell {shell.shell} did not answer")
        return
    for program, path in shell.login.items():
        if path and not shell.noninteractive.get(program):
            yield warn(
                f"{program} is found by login shells only, on {HERE}",
                seen=f"`bash -lc 'command -v {program}'` prints {path}, "
                f"`ssh HOST 'command -v {program}'` nothing",
                expected="the same in both",
                hint=f"move this to the top of ~/.bashrc: export PATH={path.rpartition('/')[0]}:$PATH",
            )


@rule("ssh.one_machine", "ssh", Level.QUICK, SshFacts, NetFacts)
@hint("Name each machine once.")
def _one_machine(view: View) -> RuleResults:
    """Two names for one machine, so that its ranks fight for the same GPUs."""
    by_boot: dict[tuple[object, str], list[str]] = {}
    machine_of = machines(view)
    for name, ssh in view.of(SshFacts).items():
        if ssh.boot_id:
            by_boot.setdefault((machine_of[name], ssh.hostname), []).append(name)
    for (_, hostname), names in by_boot.items():
        if len(names) > 1:
            summary = f"{name_hosts(names)} are the same machine ({hostname})"
            yield info(summary, names, hint="name it once, with its slots: HOST:2")


@host_rule(LOST, "ssh", Level.QUICK, LifeFacts)
@hint("Look at its power and its kernel's log before you train on it; of an agent, at its log.")
def _lost(host: HostView) -> RuleResults:
    """A host that dies in the middle of the check: power, kernel, network; or its agent alone."""
    life = host.of(LifeFacts)
    if life.agent_folder:
        yield fail(
            f"{host} is up, and its agent ended in the middle of the check",
            seen=life.lost,
            expected="an agent that runs as long as somebody asks it",
            hint=f"on {host}: tail {life.agent_folder}/agent-*.log; sudo dmesg | grep -i oom says "
            "whether the kernel killed it for memory",
        )
    elif life.lost:
        yield fail(
            f"{host} stopped answering in the middle of the check: {life.lost}",
            seen=life.lost,
            expected="a host that stays up and connected",
            hint=f"is it up? ssh {host} uptime; when it is back: journalctl -b -1 -e, and its "
            "management console for power and heat",
        )


RULES = (
    *(
        Rule(
            *(step.check, "ssh", Level.QUICK, (SshFacts,), step.catches, step.hint),
            judge_each(partial(_judge_step, step)),
        )
        for step in _STEPS
    ),
    *(_lost, _latency, _one_machine, _path),
)
