"""Checks of ssh between the hosts, which plain mpirun and horovodrun need."""

from __future__ import annotations

from collections.abc import Mapping

from distconsole.checks.engine.rule import (
    HostView,
    NotApplicable,
    RuleResult,
    RuleResults,
    hint,
    host_rule,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.jobs import MpiSshFacts
from distconsole.checks.facts.network import BetweenFacts, Login
from distconsole.checks.gather.attribution import Direction, Pair, blame
from distconsole.checks.rules.wording import list_some, name_hosts
from distconsole.model.requests import Level

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


RULES = (_check_logins, _mpi)
