"""Checks of group ``os`` on the identity of hosts: names, kernels, users, clones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distconsole.checks.engine.results import NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, rule
from distconsole.checks.facts.evidence import Outcome, View, by_key, once_a_view
from distconsole.checks.facts.network import EnvFacts, NameFacts, NetFacts
from distconsole.checks.facts.node import OsFacts, ResolvedAddress, SshFacts
from distconsole.checks.fixes.cures import by_run, offer
from distconsole.checks.gather.addresses import endpoints, machines, one_machine
from distconsole.checks.rules.wording import MAX_LISTED, differ, list_some, name_hosts
from distconsole.model.addresses import gloo_connects, ip_of
from distconsole.model.findings import Cure, Finding, HostCure
from distconsole.model.requests import Level

GLOO = "GLOO_SOCKET_IFNAME"
GETS_BY = "Gloo gets by while it is the only one, and its address the highest"
USED_BY = "torchrun's c10d rendezvous and an mpirun that is given names"
LOCALHOST = ("localhost", "localhost.localdomain", "localhost6.localdomain6", "ip6-localhost")


@hint("sudo hostnamectl set-hostname NAME")
@rule("os.hostname_unique", "os", Level.QUICK, OsFacts, SshFacts, NetFacts)
def _hostname_unique(view: View) -> RuleResults:
    """Cloned machines with one name: NCCL says `Duplicate GPU detected`, Horovod gives every rank local_rank 0."""
    machine_of = machines(view)
    by_name = by_key((facts.hostname, name) for name, facts in view.of(OsFacts).items())
    for hostname, names in by_name.items():
        if len({machine_of[name] for name in names}) > 1:
            yield fail(
                f"{name_hosts(names)} all call themselves {hostname}",
                names,
                seen=f"`hostname` prints {hostname} on each of them",
                expected="a name of its own for each host",
                hint=f"on each of them: sudo hostnamectl set-hostname {names[0]}",
            )


@hint("Put the host's real address into /etc/hosts, or set GLOO_SOCKET_IFNAME.")
@host_rule("os.hostname_bindable", "os", Level.QUICK, OsFacts, NetFacts, SshFacts, EnvFacts)
def _hostname_bindable(host: HostView) -> RuleResults:
    """Debian's `127.0.1.1 HOSTNAME` in /etc/hosts: Gloo advertises loopback, one rank gets `Connection refused` at once and the others hang for five times the timeout."""
    # Gloo and Open MPI advertise the address of a host's own name (aws-do-eks#69).
    facts, view, name = host.of(OsFacts), host.view, str(host)
    found = facts.resolution.addresses
    wrong = [
        entry
        for entry in found
        if not entry.bindable or (ip := ip_of(entry.address)) is None or ip.is_loopback
    ]
    if found and not wrong:
        return
    endpoint, summary = endpoints(view).get(name), f"the host's own name {facts.hostname} "
    what = "loopback" if wrong and wrong[0].bindable else "not an address of this host"
    summary += f"resolves to {wrong[0].address}, {what}" if wrong else "does not resolve on it"
    address = endpoint.address if endpoint else "ADDRESS"
    shown = [e.address if e.bindable else f"{e.address} (bind: {e.error})" for e in found]
    seen = ", ".join(shown) or facts.resolution.error or "no address"
    if one_machine(view) or GLOO in host.of(EnvFacts).variables:
        yield info(f"{name}: {summary}", seen=seen)
        return
    gets_by = _gets_by(view, name)
    nic = endpoint.interface if endpoint else None
    ours = by_run(view, (GLOO,), f"sets {GLOO} on every host by itself")
    cure = Cure(hosts={name: HostCure(env={GLOO: nic})}, by_run=ours) if nic else None
    yield (warn if gets_by else fail)(
        summary + (f"; {GETS_BY}" if gets_by else ""),
        seen=f"getaddrinfo({facts.hostname!r}) on {name}: {seen}",
        expected=f"{address}, or another address that the other hosts can reach",
        **offer(
            cure,
            _name_hint(facts.hostname, address, wrong),
            "until then, for jobs started by hand",
        ),
    )


def _gets_by(view: View, name: str) -> bool:
    """Whether Gloo listens at loopback there, and no rank of another machine connects to that address."""
    machine_of, listens_at = machines(view), _gloo_listens_at(view)
    own = listens_at[name]
    others = (each for host, each in listens_at.items() if machine_of[host] != machine_of[name])
    return own.startswith("127.") and not any(gloo_connects(each, own) for each in others)


@once_a_view
def _gloo_listens_at(view: View) -> Mapping[str, str]:
    return {
        host: next((entry.address for entry in facts.resolution.addresses if entry.bindable), "")
        for host, facts in view.of(OsFacts).items()
    }


def _name_hint(hostname: str, address: str, wrong: Sequence[ResolvedAddress]) -> str:
    if not wrong:
        return f"sudo sh -c 'echo \"{address} {hostname}\" >> /etc/hosts'"
    bad = wrong[0].address
    pattern = bad.replace(".", "\\.")
    return (
        f"in /etc/hosts, instead of the line of {bad}: {address} {hostname}\n"
        f"sudo sed -i 's/^{pattern}[[:space:]].*/{address} {hostname}/' /etc/hosts"
    )


@hint("Bring the host up to date with the others.")
@rule("os.kernel", "os", Level.QUICK, OsFacts)
def _kernel(view: View) -> RuleResults:
    """A host with another kernel, C library or architecture."""
    facts = view.of(OsFacts).items()
    yield from differ(info, "kernel", {name: found.kernel for name, found in facts})
    yield from differ(info, "C library", {name: found.libc for name, found in facts})
    yield from differ(warn, "architecture", {name: found.architecture for name, found in facts})


@hint("Use the same account everywhere.")
@rule("os.user", "os", Level.QUICK, OsFacts)
def _user(view: View) -> RuleResults:
    """Another user id on one host: `Permission denied` on shared folders, on some ranks only."""
    yield from differ(
        warn,
        "uid",
        {name: facts.uid for name, facts in view.of(OsFacts).items()},
        expected="the same uid on every host",
        hint="log in as the same user everywhere, or: sudo usermod -u UID USER",
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """Meaning of a name of ``peer`` on ``viewer``; ``said`` describes the error, if any."""

    viewer: str
    peer: str
    name: str
    said: str
    known: bool


@hint("The finding has the lines for /etc/hosts.")
@rule("os.peer_names", "os", Level.STANDARD, NameFacts, OsFacts, NetFacts, SshFacts)
def _peer_names(view: View) -> RuleResults:
    """Names that some hosts do not know, or take for another host: an /etc/hosts that is not the same everywhere, torchrun's c10d that publishes one nobody can resolve."""
    answers = {name: found.names.values() for name, found in view.of(NameFacts).items()}
    late = tuple(name for name, each in answers.items() if any(answer.late for answer in each))
    yield NotApplicable("its resolver did not answer in time", late, Outcome.TIMED_OUT)
    for name, found in view.of(OsFacts).items():
        if found.fqdn in LOCALHOST and not one_machine(view):
            yield warn(
                f"{name} calls itself {found.fqdn} towards others",
                (name,),
                seen=f"socket.getfqdn() on {name} returns {found.fqdn}, the first name of its address's line",
                expected=f"{found.hostname}: torchrun's c10d rendezvous tells it to the other nodes, "
                "which then connect to themselves",
                hint=f"in /etc/hosts of {name}, on the line of its own address: {found.hostname} first; "
                "or torchrun --local-addr ADDRESS",
            )
    asked = list(_answers(view))
    wrong = [each for each in asked if each.said]
    unknown = [each for each in wrong if not each.known]
    if unknown and len(unknown) == len(asked):
        peers = sorted({each.peer for each in unknown})
        yield info(
            "the hosts do not know one another by name",
            seen=_list_answers(unknown),
            expected=f"names that resolve, for {USED_BY}; `distconsole run` passes addresses",
            **_mend_names(view, peers, "on every host"),
        )
        unknown = []
    for some in (unknown, [each for each in wrong if each.known]):
        yield from _judge_answers(some, view)


def _answers(view: View) -> Iterator[_Answer]:
    facts, nets, machine_of = view.of(OsFacts), view.of(NetFacts), machines(view)
    for viewer, found in view.of(NameFacts).items():
        for peer, theirs in facts.items():
            if machine_of[peer] == machine_of[viewer]:
                continue
            own = {entry.address for entry in nets[peer].addresses}
            for name in dict.fromkeys((theirs.hostname, theirs.fqdn)):
                answer = found.names.get(name)
                if answer is None or answer.late or name in LOCALHOST:
                    continue
                said = f"{', '.join(answer.addresses[:3])}, which the host does not have"
                if not answer.addresses:
                    said = answer.error or "no address"
                elif own & set(answer.addresses):
                    said = ""
                yield _Answer(viewer, peer, name, said, bool(answer.addresses))


def _judge_answers(wrong: Sequence[_Answer], view: View) -> Iterator[Finding]:
    by_peer = by_key((each.peer, each) for each in wrong)
    by_viewers = by_key(
        (tuple(dict.fromkeys(each.viewer for each in entries)), each)
        for entries in by_peer.values()
        for each in entries
    )
    for viewers, entries in by_viewers.items():
        names = list(dict.fromkeys(each.name for each in entries))
        peers = list(dict.fromkeys(each.peer for each in entries))
        what = "leads to another host" if entries[0].known else "is not known"
        yield warn(
            f"on {name_hosts(viewers)} the name {name_hosts(names)} {what}",
            viewers,
            seen=_list_answers(entries),
            expected=f"an address of {name_hosts(peers)}, for {USED_BY}",
            **_mend_names(view, peers, f"on {name_hosts(viewers)}"),
        )


def _list_answers(wrong: Sequence[_Answer]) -> str:
    return list_some([f"on {each.viewer}: {each.name}: {each.said}" for each in wrong])


def _mend_names(view: View, peers: Sequence[str], where: str) -> dict[str, Any]:
    """Return the lines for /etc/hosts, and as a cure the addresses: names are needed only where names are given."""
    facts, addresses = view.of(OsFacts), {n: each.address for n, each in endpoints(view).items()}
    hosts = {peer: HostCure(address=addresses[peer]) for peer in peers if peer in addresses}
    lines = [
        dict.fromkeys((addresses.get(peer, "ADDRESS"), facts[peer].fqdn, facts[peer].hostname))
        for peer in peers[:MAX_LISTED]
    ]
    text = "; ".join(" ".join(filter(None, line)) for line in lines)
    cure = Cure(hosts=hosts, by_run="passes addresses")
    return {"hint": f"{where}, in /etc/hosts: {text}", "cure": cure}
