"""Checks of group ``os`` about who a host is: its name, kernel and user."""

from __future__ import annotations

import ipaddress
from typing import Any

from distconsole.checks.engine.rule import (
    RuleResults,
    differ,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import EnvFacts, OsFacts, ResolvedAddress, SshFacts
from distconsole.checks.fixes.cures import by_run, offer
from distconsole.checks.gather.addresses import endpoints, machines, one_machine
from distconsole.checks.rules.wording import dissent, name_hosts
from distconsole.model.addresses import gloo_connects
from distconsole.model.findings import Cure, HostCure
from distconsole.model.requests import Level

GLOO = "GLOO_SOCKET_IFNAME"
GETS_BY = "Gloo gets by while it is the only one, and its address the highest"


@rule("os.hostname_unique", "os", Level.QUICK, OsFacts, SshFacts, NetFacts)
@hint("sudo hostnamectl set-hostname NAME")
def _hostname_unique(view: View) -> RuleResults:
    """Cloned machines with one name: NCCL says `Duplicate GPU detected`, Horovod gives every rank local_rank 0.

    NCCL, MPI and Horovod tell hosts apart by their names (horovod#3949).
    """
    machine_of = machines(view)
    by_name: dict[str, list[str]] = {}
    for name, facts in view.of(OsFacts).items():
        by_name.setdefault(facts.hostname, []).append(name)
    for hostname, names in by_name.items():
        if len({machine_of[name] for name in names}) > 1:
            yield fail(
                f"{name_hosts(names)} all call themselves {hostname}",
                names,
                seen=f"`hostname` prints {hostname} on each of them",
                expected="a name of its own for each host",
                hint=f"on each of them: sudo hostnamectl set-hostname {names[0]}",
            )


@rule("os.hostname_bindable", "os", Level.QUICK, OsFacts, NetFacts, SshFacts, EnvFacts)
@hint("Put the host's real address into /etc/hosts, or set GLOO_SOCKET_IFNAME.")
def _hostname_bindable(view: View) -> RuleResults:
    """Debian's `127.0.1.1 HOSTNAME` in /etc/hosts: Gloo advertises loopback, one rank gets `Connection refused` at once and the others hang for five times the timeout.

    Gloo and Open MPI advertise what a host's own name resolves to (aws-do-eks#69).
    """
    chosen = endpoints(view)
    env = view.of(EnvFacts)
    for name, facts in view.of(OsFacts).items():
        found = facts.resolution.addresses
        wrong = [entry for entry in found if _trap(entry)]
        if found and not wrong:
            continue
        endpoint = chosen.get(name)
        address = endpoint.address if endpoint else "ADDRESS"
        nic = endpoint.interface if endpoint and endpoint.interface else ""
        seen = ", ".join(map(_format_address, found)) or facts.resolution.error or "no address"
        variables = env[name].variables if name in env else {}
        if one_machine(view) or GLOO in variables:
            yield info(f"{name}: {_summary(facts, wrong)}", (name,), seen=seen)
            continue
        gets_by = _gets_by(view, name)
        severity = warn if gets_by else fail
        yield severity(
            _summary(facts, wrong) + (f"; {GETS_BY}" if gets_by else ""),
            (name,),
            seen=f"getaddrinfo({facts.hostname!r}) on {name}: {seen}",
            expected=f"{address}, or another address that the other hosts can reach",
            **_offer_name(view, name, nic, _hint(facts.hostname, address, wrong)),
        )


def _gets_by(view: View, name: str) -> bool:
    """Whether no other machine's ranks would connect to the loopback that Gloo listens at there."""
    facts, machine_of = view.of(OsFacts), machines(view)
    own = _listens_at(facts[name])
    return own.startswith("127.") and not any(
        gloo_connects(_listens_at(theirs), own)
        for peer, theirs in facts.items()
        if machine_of[peer] != machine_of[name]
    )


def _listens_at(facts: OsFacts) -> str:
    return next((entry.address for entry in facts.resolution.addresses if entry.bindable), "")


def _offer_name(view: View, name: str, nic: str, hint: str) -> dict[str, Any]:
    ours = by_run(view, (GLOO,), f"sets {GLOO} on every host by itself")
    cure = Cure(hosts={name: HostCure(env={GLOO: nic})}, by_run=ours) if nic else None
    return offer(cure, hint, "until then, for jobs started by hand")


def _trap(entry: ResolvedAddress) -> bool:
    try:
        return not entry.bindable or ipaddress.ip_address(entry.address.split("%")[0]).is_loopback
    except ValueError:
        return True


def _format_address(entry: ResolvedAddress) -> str:
    return entry.address if entry.bindable else f"{entry.address} (bind: {entry.error})"


def _summary(facts: OsFacts, wrong: list[ResolvedAddress]) -> str:
    if not wrong:
        return f"the host's own name {facts.hostname} does not resolve on it"
    what = "loopback" if wrong[0].bindable else "not an address of this host"
    return f"the host's own name {facts.hostname} resolves to {wrong[0].address}, {what}"


def _hint(hostname: str, address: str, wrong: list[ResolvedAddress]) -> str:
    if not wrong:
        return f"sudo sh -c 'echo \"{address} {hostname}\" >> /etc/hosts'"
    bad = wrong[0].address
    pattern = bad.replace(".", "\\.")
    return (
        f"in /etc/hosts, instead of the line of {bad}: {address} {hostname}\n"
        f"sudo sed -i 's/^{pattern}[[:space:]].*/{address} {hostname}/' /etc/hosts"
    )


@rule("os.kernel", "os", Level.QUICK, OsFacts)
@hint("Bring the host up to date with the others.")
def _kernel(view: View) -> RuleResults:
    """A host with another kernel, C library or architecture.

    Information: a kernel, C library or distribution that differs explains what else does.
    """
    facts = view.of(OsFacts)
    for what, values in (
        ("kernel", {name: found.kernel for name, found in facts.items()}),
        ("C library", {name: found.libc for name, found in facts.items()}),
        ("architecture", {name: found.architecture for name, found in facts.items()}),
    ):
        split = dissent(values)
        if split is not None:
            severity = warn if what == "architecture" else info
            yield severity(split.told(what), split.minority)


@rule("os.user", "os", Level.QUICK, OsFacts)
@hint("Use the same account everywhere.")
def _user(view: View) -> RuleResults:
    """Another user id on one host: `Permission denied` on shared folders, on some ranks only.

    Another uid on one host writes checkpoints on a shared disk that the others cannot.
    """
    yield from differ(
        warn,
        "uid",
        {name: facts.uid for name, facts in view.of(OsFacts).items()},
        expected="the same uid on every host",
        hint="log in as the same user everywhere, or: sudo usermod -u UID USER",
    )


RULES = (_hostname_unique, _hostname_bindable, _kernel, _user)
