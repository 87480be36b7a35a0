"""Checks of group ``ssh``: how far each host lets us in. Reaching them is done elsewhere."""

from __future__ import annotations

from statistics import median

from distconsole.checks.engine.rule import (
    Judge,
    NotApplicable,
    Rule,
    RuleResults,
    fail,
    hint,
    info,
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

_STEPS: tuple[tuple[str, tuple[str, ...], str, str, str], ...] = (
    (
        "ssh.resolve",
        ("resolve",),
        "A typing error, an alias that ssh_config does not have, a name that DNS lost.",
        "Correct the name, or give the host a HostName in ssh_config.",
        "a name with an address",
    ),
    (
        "ssh.connect",
        ("connect", "node"),
        "A host that is down, a firewall, another port, an sshd that drops connections.",
        "Check that the host is up: `ssh HOST true`; look at Port and ProxyJump in ssh_config.",
        "an SSH server that answers",
    ),
    (
        "ssh.hostkey",
        ("host_key_unknown", "host_key_changed"),
        "A host never seen before, a reinstalled host, or somebody in between.",
        "The finding carries the line that adds or replaces the key; compare the fingerprint first.",
        "the host key that known_hosts has",
    ),
    (
        "ssh.auth",
        ("auth",),
        "A key that the host does not accept, another user, wrong modes on ~/.ssh.",
        "`ssh-copy-id HOST`; User and IdentityFile in ssh_config.",
        "a login by key, without a password",
    ),
    (
        "ssh.clean_shell",
        ("shell_noise",),
        "A .bashrc that prints, or starts tmux, for shells that nobody looks at.",
        "Put `[[ $- == *i* ]] || return` at the top of ~/.bashrc on the host.",
        "a shell that prints nothing by itself",
    ),
    (
        "ssh.agent",
        ("python", "storage", "agent", "request", "link_lost"),
        "No Python 3.9, a full or noexec /tmp, a connection that breaks.",
        "--python names another interpreter; node_dir another folder.",
        "a node that runs the agent",
    ),
)
"""Id, error kinds, what it catches, hint, what is expected; in the order in which they are met."""

REACHING = frozenset({*(step[0] for step in _STEPS), LOST})
"""Checks of whether a host can be asked at all: what they find is told whoever asked for what."""


def _step(position: int) -> Judge:
    _, kinds, _, _, expected = _STEPS[position]
    earlier = {kind for step in _STEPS[:position] for kind in step[1]}

    def judge(view: View) -> RuleResults:
        not_met: dict[str, list[str]] = {}
        for name, ssh in view.of(SshFacts).items():
            if ssh.error_kind in kinds:
                yield fail(ssh.error, (name,), seen=ssh.error, expected=expected, hint=ssh.hint)
            elif ssh.error_kind in earlier:
                not_met.setdefault(ssh.error_kind, []).append(name)
        for kind, names in not_met.items():
            failed = next(each[0] for each in _STEPS if kind in each[1])
            why = f"the way there ended before, at {failed}"
            yield NotApplicable(why, tuple(n for n in view.everyone if n in names))

    return judge


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


@rule("ssh.path_noninteractive", "ssh", Level.STANDARD, ShellFacts)
@hint("Move the export of PATH above the interactive guard of ~/.bashrc.")
def _path(view: View) -> RuleResults:
    """`orted: command not found`: a PATH that only login shells have.

    A program that only a login shell finds is not found by mpirun's ssh (ompi#599, #8870).
    """
    hidden: dict[str, list[str]] = {}
    where: dict[str, str] = {}
    for name, shell in view.of(ShellFacts).items():
        if shell.noninteractive is None or shell.login is None:
            yield NotApplicable(f"the login shell {shell.shell} did not answer", (name,))
            continue
        for program, path in shell.login.items():
            if path and not shell.noninteractive.get(program):
                hidden.setdefault(program, []).append(name)
                where.setdefault(program, path)
    for program, names in hidden.items():
        folder = where[program].rpartition("/")[0]
        yield warn(
            f"{program} is found by login shells only, on {name_hosts(names)}",
            names,
            seen=f"`bash -lc 'command -v {program}'` prints {where[program]}, "
            f"`ssh HOST 'command -v {program}'` nothing",
            expected="the same in both",
            hint=f"move this to the top of ~/.bashrc: export PATH={folder}:$PATH",
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
            yield info(
                f"{name_hosts(names)} are the same machine ({hostname})",
                names,
                hint="name it once, with its slots: HOST:2",
            )


@rule(LOST, "ssh", Level.QUICK, LifeFacts)
@hint("Look at its power and its kernel's log before you train on it; of an agent, at its log.")
def _lost(view: View) -> RuleResults:
    """A host that dies in the middle of the check: power, kernel, network; or its agent alone."""
    for name, life in view.of(LifeFacts).items():
        if life.agent_folder:
            yield fail(
                f"{name} is up, and its agent ended in the middle of the check",
                (name,),
                seen=life.lost,
                expected="an agent that runs as long as somebody asks it",
                hint=f"on {name}: tail {life.agent_folder}/agent-*.log; sudo dmesg | grep -i oom says "
                "whether the kernel killed it for memory",
            )
        elif life.lost:
            yield fail(
                f"{name} stopped answering in the middle of the check: {life.lost}",
                (name,),
                seen=life.lost,
                expected="a host that stays up and connected",
                hint=f"is it up? ssh {name} uptime; when it is back: journalctl -b -1 -e, and its "
                "management console for power and heat",
            )


RULES = (
    *(
        Rule(check, "ssh", Level.QUICK, (SshFacts,), catches, hint, _step(position))
        for position, (check, _, catches, hint, _) in enumerate(_STEPS)
    ),
    *(_lost, _latency, _one_machine, _path),
)
