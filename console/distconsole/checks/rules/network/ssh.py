"""Checks of group ``ssh``: how far each host lets us in, and the hosts one another, as plain mpirun needs it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import NamedTuple

from distconsole.checks.engine.rule import (
    HERE,
    HostView,
    NotApplicable,
    Rule,
    RuleResult,
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
from distconsole.checks.facts.jobs import MpiSshFacts
from distconsole.checks.facts.network import BetweenFacts, Login, NetFacts
from distconsole.checks.facts.node import ClockFacts, LifeFacts, ShellFacts, SshFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.gather.attribution import Direction, Pair, blame
from distconsole.checks.rules.wording import list_some, name_hosts
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


NEEDED_BY = "only mpirun and horovodrun by hand need it; `distconsole run` does not"
SSH_STARTERS = frozenset({"mpirun", "mpiexec", "orterun", "horovodrun"})
REASONS = {
    "no_client": "it has no ssh",
    "resolve": "the name means nothing there",
    "host_key_unknown": "the host key is not in known_hosts there",
    "host_key_changed": "known_hosts there has another host key",
    "refused": "no sshd at that port",
    "connect": "no connection",
    "modes": "the key or configuration there has wrong modes",
    "auth": "no key there that is accepted",
    "other": "ssh fails",
}
HINTS = {
    "no_client": "install openssh-client there",
    "resolve": "put the names of all hosts into /etc/hosts on each",
    "host_key_unknown": "on {source}: ssh-keyscan {target} >> ~/.ssh/known_hosts, "
    "and compare the fingerprint",
    "host_key_changed": "on {source}: ssh-keygen -R {target}, then as for a new one",
    "modes": "on {source}: chmod 600 ~/.ssh/id_* ~/.ssh/config",
    "auth": "on {source}: ssh-copy-id {target}",
}
_WAYS = {
    Direction.INTO: "to {}",
    Direction.OUT_OF: "from {}",
    Direction.BOTH: "to and from {}",
}
MPI_HINTS = (
    (
        "orted",
        "the daemon is not on the PATH that ssh gives: move the export of PATH to the top of ~/.bashrc "
        "(ssh.path_noninteractive), or mpirun --prefix",
    ),
    (
        "unable to launch the specified application",
        "the same Python at the same path on all hosts",
    ),
)


@rule("ssh.between", "ssh", Level.STANDARD, BetweenFacts)
@hint("ssh-copy-id, ssh-keyscan; `distconsole run` needs no ssh between hosts.")
def _check_logins(view: View) -> RuleResults:
    """mpirun or horovodrun by hand that hangs or asks for a password on some hosts: ssh between them works for some pairs only. Each tries the others (above 8 hosts the next one), and writes no known_hosts."""
    facts = view.of(BetweenFacts)
    tried: dict[Pair, Login] = {
        (name, login.target): login for name, found in facts.items() for login in found.logins
    }
    tried |= {
        (name, other): Login(target=other, error="no_client")
        for name, found in facts.items()
        for other in facts
        if other != name and not found.client
    }
    broken = {pair: login for pair, login in tried.items() if not login.ok}
    if not tried:
        yield NotApplicable("one host only", tuple(facts))
    elif len(broken) == len(tried):
        yield _nowhere(view, broken, tuple(facts))
    elif broken:
        yield from _parts(tried, broken)


def _nowhere(view: View, broken: Mapping[Pair, Login], hosts: tuple[str, ...]) -> RuleResult:
    """Say that there is no ssh between the hosts: only where the launch, as typed, cannot do without."""
    reasons = dict.fromkeys(REASONS.get(login.error, "ssh fails") for login in broken.values())
    summary = f"no host can ssh to another: {'; '.join(reasons)}"
    words = view.launch.command if view.launch is not None else ()
    names = [word.rpartition("/")[2] for word in words]
    name = next((name for name in names if name in SSH_STARTERS), None)
    if name is None:
        return NotApplicable(f"{summary}; {NEEDED_BY}", hosts)
    return _warn_of_logins(
        f"{name}, typed by hand, needs ssh between the hosts, and {summary}", hosts, broken
    )


def _parts(tried: Mapping[Pair, Login], broken: Mapping[Pair, Login]) -> RuleResults:
    """Name for each reason who explains the pairs that fail: a host, or the pairs."""
    for reason in dict.fromkeys(login.error for login in broken.values()):
        left = {pair: login for pair, login in broken.items() if login.error == reason}
        for host in blame(tried, left).hosts:
            pairs = {pair: left.pop(pair) for pair in host.pairs if pair in left}
            way = _WAYS[host.direction].format(host.host)
            yield _warn_of_logins(
                _because(f"ssh between the hosts fails {way}", pairs), (host.host,), pairs
            )
        if left:
            ways = name_hosts([f"{source} to {target}" for source, target in left])
            hosts = tuple(dict.fromkeys(name for pair in left for name in pair))
            yield _warn_of_logins(
                _because(f"ssh between the hosts fails from {ways}", left), hosts, left
            )


def _because(summary: str, pairs: Mapping[Pair, Login]) -> str:
    return f"{summary}: {REASONS.get(next(iter(pairs.values())).error, 'ssh fails')}"


def _warn_of_logins(
    summary: str, hosts: tuple[str, ...], pairs: Mapping[Pair, Login]
) -> RuleResult:
    (source, target), first = next(iter(pairs.items()))
    hint = HINTS.get(first.error, f"on {source}: ssh -v {first.name or target} true")
    return warn(
        summary,
        hosts,
        seen=_list_logins(pairs),
        expected=f"ssh from and to every host; {NEEDED_BY}",
        hint=hint.format(source=source, target=first.name or target),
    )


def _list_logins(pairs: Mapping[Pair, Login]) -> str:
    lines = [
        f"{source} to {login.name or target}: {login.said or REASONS.get(login.error, login.error)}"
        for (source, target), login in pairs.items()
    ]
    return list_some(lines)


@host_rule("mpi.ssh", "coll", Level.STANDARD, MpiSshFacts)
@hint("Move the export of PATH above the interactive guard of ~/.bashrc, or mpirun --prefix.")
def _mpi(host: HostView) -> RuleResults:
    """A plain mpirun over ssh, where the first host reaches all others so, that does not start its ranks."""
    facts = host.of(MpiSshFacts)
    places = sorted((group.get("rank"), group.get("world_size")) for group in facts.groups)
    size, text = len(facts.hosts), "\n".join(facts.said)
    met = places == [(rank, size) for rank in range(size)] and facts.exit_code == 0
    if met or not size:
        return
    reason = next((line for line in facts.said if not line.startswith(" ")), "")
    if {world for _, world in places} == {1}:
        reason = "every rank says size 1"
    elif facts.exit_code is None:
        reason = reason or "it did not end in time"
    yield warn(
        f"a plain mpirun over ssh on {host} does not start one rank on each of {size} hosts: "
        f"{reason or f'exit code {facts.exit_code}'}",
        facts.hosts,
        seen="\n".join((f"ranks: {places}", *facts.said)),
        expected=f"ranks 0 to {size - 1} of {size}",
        hint=next((hint for words, hint in MPI_HINTS if words in text), NEEDED_BY),
    )


RULES = (
    *(
        Rule(
            *(step.check, "ssh", Level.QUICK, (SshFacts,), step.catches, step.hint),
            judge_each(partial(_judge_step, step)),
        )
        for step in _STEPS
    ),
    *(_lost, _latency, _one_machine, _path, _check_logins),
)
MPI_RULES = (_mpi,)
