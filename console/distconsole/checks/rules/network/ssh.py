"""Checks of group ``ssh``: how far each host lets us in, and the hosts one another."""

from __future__ import annotations

from collections.abc import Mapping

from distconsole.checks.engine.results import (
    NotApplicable,
    RuleResult,
    RuleResults,
    fail,
    info,
    warn,
)
from distconsole.checks.engine.rule import HostView, hint, host_rule, rule
from distconsole.checks.facts.evidence import View, by_key
from distconsole.checks.facts.network import BetweenFacts, LoginAttempt, NetFacts
from distconsole.checks.facts.node import ClockFacts, LifeFacts, SshFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.gather.attribution import Direction, Pair, blame
from distconsole.checks.rules.wording import list_some, name_hosts
from distconsole.model.check_outcome import LOST
from distconsole.model.requests import Level

ENDS: Mapping[str, tuple[str, ...]] = {
    "ssh.resolve": ("resolve",),
    "ssh.connect": ("connect", "node"),
    "ssh.hostkey": ("host_key_unknown", "host_key_changed"),
    "ssh.auth": ("auth",),
    "ssh.clean_shell": ("shell_noise",),
    "ssh.agent": ("python", "storage", "agent", "request", "link_lost"),
}
"""The steps of a login, in order, and the errors with which it ends there."""

REACHING = frozenset({*ENDS, LOST})
"""Checks of whether a host can be asked at all, reported in any case."""


def _judge_step(host: HostView, step: str, expected: str) -> RuleResults:
    ssh = host.of(SshFacts)
    ended = next((check for check, errors in ENDS.items() if ssh.error_kind in errors), step)
    if ssh.error_kind in ENDS[step]:
        yield fail(ssh.error, seen=ssh.error, expected=expected, hint=ssh.hint)
    elif list(ENDS).index(ended) < list(ENDS).index(step):
        yield NotApplicable(f"the way there ended before, at {ended}")


@hint("Correct the name, or give the host a HostName in ssh_config.")
@host_rule("ssh.resolve", "ssh", Level.QUICK, SshFacts)
def _resolve(host: HostView) -> RuleResults:
    """A typing error, an alias that ssh_config does not have, a name that DNS lost."""
    return _judge_step(host, "ssh.resolve", "a name with an address")


@hint("Check that the host is up: `ssh HOST true`; look at Port and ProxyJump in ssh_config.")
@host_rule("ssh.connect", "ssh", Level.QUICK, SshFacts)
def _connect(host: HostView) -> RuleResults:
    """A host that is down, a firewall, another port, an sshd that drops connections."""
    return _judge_step(host, "ssh.connect", "an SSH server that answers")


@hint("The finding carries the line that adds or replaces the key; compare the fingerprint first.")
@host_rule("ssh.hostkey", "ssh", Level.QUICK, SshFacts)
def _host_key(host: HostView) -> RuleResults:
    """A host never seen before, a reinstalled host, or somebody in between."""
    return _judge_step(host, "ssh.hostkey", "the host key that known_hosts has")


@hint("`ssh-copy-id HOST`; User and IdentityFile in ssh_config.")
@host_rule("ssh.auth", "ssh", Level.QUICK, SshFacts)
def _login(host: HostView) -> RuleResults:
    """A key that the host does not accept, another user, wrong modes on ~/.ssh."""
    return _judge_step(host, "ssh.auth", "a login by key, without a password")


@hint("Put `[[ $- == *i* ]] || return` at the top of ~/.bashrc on the host.")
@host_rule("ssh.clean_shell", "ssh", Level.QUICK, SshFacts)
def _shell(host: HostView) -> RuleResults:
    """A .bashrc that prints more than 1 MiB."""
    return _judge_step(host, "ssh.clean_shell", "a shell that runs a command")


@hint("--python names another interpreter; node_dir another folder.")
@host_rule("ssh.agent", "ssh", Level.QUICK, SshFacts)
def _agent(host: HostView) -> RuleResults:
    """No Python 3.9, a full or noexec /tmp, a connection that breaks."""
    return _judge_step(host, "ssh.agent", "a node that runs the agent")


@hint("Look at its power and its kernel's log before you train on it; of an agent, at its log.")
@host_rule(LOST, "ssh", Level.QUICK, LifeFacts)
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


@hint("Name each machine once.")
@rule("ssh.one_machine", "ssh", Level.QUICK, SshFacts, NetFacts)
def _one_machine(view: View) -> RuleResults:
    """Two names for one machine, so that its ranks fight for the same GPUs."""
    machine_of = machines(view)
    by_boot = by_key(
        ((machine_of[name], ssh.hostname), name)
        for name, ssh in view.of(SshFacts).items()
        if ssh.boot_id
    )
    for (_, hostname), names in by_boot.items():
        if len(names) > 1:
            summary = f"{name_hosts(names)} are the same machine ({hostname})"
            yield info(summary, names, hint="name it once, with its slots: HOST:2")


WARN_OFFSET_SECONDS = 0.1
FAIL_OFFSET_SECONDS = 1.0


@hint("chronyc makestep")
@host_rule("clock.offset", "clock", Level.QUICK, ClockFacts)
def _clock(host: HostView) -> RuleResults:
    """A clock that is off: munge refuses, logs of different hosts cannot be put in order."""
    facts = host.of(ClockFacts)
    off = abs(facts.offset_seconds) - facts.error_seconds
    if off > WARN_OFFSET_SECONDS:
        yield (fail if off > FAIL_OFFSET_SECONDS else warn)(
            f"the clock of {host} is {facts.offset_seconds:+.3f} s off this machine's",
            seen=f"{facts.offset_seconds:+.4f} s, at most {facts.error_seconds:.4f} s wrong",
            expected=f"within {WARN_OFFSET_SECONDS} s",
            hint=f"on {host}: sudo chronyc makestep   (munge refuses credentials from 300 s on)",
        )


NEEDED_BY = "only mpirun and horovodrun by hand need it; `distconsole run` does not"
SSH_STARTERS = frozenset({"mpirun", "mpiexec", "orterun", "horovodrun"})
REASONS = {
    "no_client": "it has no ssh",
    "resolve": "the name does not resolve there",
    "host_key_unknown": "the host key is not in known_hosts there",
    "host_key_changed": "known_hosts there has another host key",
    "refused": "no sshd at that port",
    "connect": "no connection",
    "dropped": "the sshd there drops connections from it at this time, for a penalty or because too many log in",
    "modes": "the key or configuration there has wrong modes",
    "auth": "no key there that is accepted",
}
HINTS = {
    "no_client": "install openssh-client there",
    "resolve": "put the names of all hosts into /etc/hosts on each",
    "host_key_unknown": "on {source}: ssh-keyscan {target} >> ~/.ssh/known_hosts, "
    "and compare the fingerprint",
    "host_key_changed": "on {source}: ssh-keygen -R {target}, then as for a new one",
    "dropped": "worth another try in 15 s: by default a penalty for logins that failed is in force for 15 s to 10 min "
    "(PerSourcePenalties, sshd_config(5)); too many at once (MaxStartups) is over sooner; "
    "on {target}: journalctl -u ssh | grep 'drop connection'",
    "modes": "on {source}: chmod 600 ~/.ssh/id_* ~/.ssh/config",
    "auth": "on {source}: ssh-copy-id {target}",
}
_WAYS = {Direction.INTO: "to {}", Direction.OUT_OF: "from {}", Direction.BOTH: "to and from {}"}


@hint("ssh-copy-id, ssh-keyscan; `distconsole run` needs no ssh between hosts.")
@rule("ssh.between", "ssh", Level.STANDARD, BetweenFacts)
def _check_logins(view: View) -> RuleResults:
    """mpirun or horovodrun by hand that hangs or asks for a password on some hosts: ssh between them works for some pairs only. Each tries the others (above 8 hosts the next one), and writes no known_hosts."""
    facts = view.of(BetweenFacts)
    tried: dict[Pair, LoginAttempt] = {
        (name, login.target): login for name, found in facts.items() for login in found.logins
    }
    tried |= {
        (name, other): LoginAttempt(target=other, error="no_client")
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


def _nowhere(
    view: View, broken: Mapping[Pair, LoginAttempt], hosts: tuple[str, ...]
) -> RuleResult:
    reasons = "; ".join(dict.fromkeys(map(_reason, broken.values())))
    words = view.launch.command if view.launch is not None else ()
    names = [word.rpartition("/")[2] for word in words]
    name = next((name for name in names if name in SSH_STARTERS), None)
    if name is None:
        return NotApplicable(f"no host can ssh to another: {reasons}; {NEEDED_BY}", hosts)
    summary = f"{name}, typed by hand, needs ssh between the hosts, and no host can ssh to another"
    return _warn_of_logins(summary, hosts, broken, reasons)


def _parts(tried: Mapping[Pair, LoginAttempt], broken: Mapping[Pair, LoginAttempt]) -> RuleResults:
    for reason in dict.fromkeys(login.error for login in broken.values()):
        left = {pair: login for pair, login in broken.items() if login.error == reason}
        for host in blame(tried, left).hosts:
            pairs = {pair: left.pop(pair) for pair in host.pairs if pair in left}
            way = _WAYS[host.direction].format(host.host)
            yield _warn_of_logins(f"ssh between the hosts fails {way}", (host.host,), pairs)
        if left:
            ways = name_hosts([f"{source} to {target}" for source, target in left])
            hosts = tuple(dict.fromkeys(name for pair in left for name in pair))
            yield _warn_of_logins(f"ssh between the hosts fails from {ways}", hosts, left)


def _warn_of_logins(
    summary: str, hosts: tuple[str, ...], pairs: Mapping[Pair, LoginAttempt], reasons: str = ""
) -> RuleResult:
    (source, target), first = next(iter(pairs.items()))
    hint = HINTS.get(first.error, f"on {source}: ssh -v {first.name or target} true")
    return warn(
        f"{summary}: {reasons or _reason(first)}",
        hosts,
        seen=list_some(
            [
                f"{source} to {login.name or target}: {login.said or _reason(login)}"
                for (source, target), login in pairs.items()
            ]
        ),
        expected=f"ssh from and to every host; {NEEDED_BY}",
        hint=hint.format(source=source, target=first.name or target),
    )


def _reason(login: LoginAttempt) -> str:
    return REASONS.get(login.error, "ssh fails")
