"""Checks of group ``os`` on how hosts call one another, and on machines that were cloned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distconsole.checks.engine.rule import (
    NotApplicable,
    RuleResult,
    RuleResults,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import Outcome, View
from distconsole.checks.facts.network import NameFacts, NetFacts, PeerName
from distconsole.checks.facts.node import OsFacts, SshFacts
from distconsole.checks.gather.addresses import endpoints, machines, one_machine
from distconsole.checks.rules.wording import list_some, name_hosts
from distconsole.model.findings import Cure, HostCure
from distconsole.model.requests import Level

MAX_LISTED = 8
USED_BY = "torchrun's c10d rendezvous and an mpirun that is given names"
LOCALHOST = ("localhost", "localhost.localdomain", "localhost6.localdomain6", "ip6-localhost")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a name of ``peer`` is on ``viewer``: ``said`` tells what is wrong, if anything is."""

    viewer: str
    peer: str
    name: str
    said: str
    known: bool


@rule("os.peer_names", "os", Level.STANDARD, NameFacts, OsFacts, NetFacts, SshFacts)
@hint("The finding has the lines for /etc/hosts.")
def _peer_names(view: View) -> RuleResults:
    """Names that some hosts do not know, or take for another host: an /etc/hosts that is not the same everywhere, torchrun's c10d that publishes one nobody can resolve."""
    facts = view.of(OsFacts)
    reached_at = {name: endpoint.address for name, endpoint in endpoints(view).items()}
    late = [
        viewer
        for viewer, found in view.of(NameFacts).items()
        if any(answer.late for answer in found.names.values())
    ]
    yield NotApplicable("its resolver did not answer in time", tuple(late), Outcome.TIMED_OUT)
    for name, found in facts.items():
        if found.fqdn in LOCALHOST and not one_machine(view):
            yield _localhost(name, found)
    asked = list(_answers(view))
    wrong = [each for each in asked if each.said]
    unknown = [each for each in wrong if not each.known]
    if unknown and len(unknown) == len(asked):
        yield info(
            "the hosts do not know one another by name",
            seen=_list_answers(unknown),
            expected=f"names that resolve, for {USED_BY}; `distconsole run` passes addresses",
            hint=_hosts_lines(reached_at, facts, sorted({each.peer for each in unknown})),
            cure=_by_address(reached_at, sorted({each.peer for each in unknown})),
        )
    else:
        yield from _judge_answers(unknown, facts, reached_at)
    yield from _judge_answers([each for each in wrong if each.known], facts, reached_at)


def _answers(view: View) -> Iterator[_Answer]:
    """Yield what each host makes of each other machine's names."""
    facts, nets, machine_of = view.of(OsFacts), view.of(NetFacts), machines(view)
    for viewer, found in view.of(NameFacts).items():
        for peer, theirs in facts.items():
            if machine_of[peer] == machine_of[viewer]:
                continue
            addresses = {entry.address for entry in nets[peer].addresses}
            for name in dict.fromkeys((theirs.hostname, theirs.fqdn)):
                answer = found.names.get(name)
                if answer is not None and not answer.late and name not in LOCALHOST:
                    said = _not_the_peer(answer, addresses)
                    yield _Answer(viewer, peer, name, said, bool(answer.addresses))


def _not_the_peer(answer: PeerName, theirs: set[str]) -> str:
    """Return what is wrong with an answer; empty when it leads to the peer."""
    if not answer.addresses:
        return answer.error or "no address"
    if theirs & set(answer.addresses):
        return ""
    return f"{', '.join(answer.addresses[:3])}, which the host does not have"


def _judge_answers(
    wrong: Sequence[_Answer], facts: Mapping[str, OsFacts], addresses: Mapping[str, str]
) -> RuleResults:
    """One finding for all that is unknown to, or wrong on, the same hosts."""
    viewers_of: dict[str, list[_Answer]] = defaultdict(list)
    for each in wrong:
        viewers_of[each.peer].append(each)
    by_viewers: dict[tuple[str, ...], list[_Answer]] = defaultdict(list)
    for entries in viewers_of.values():
        by_viewers[tuple(dict.fromkeys(each.viewer for each in entries))] += entries
    for viewers, entries in by_viewers.items():
        names = list(dict.fromkeys(each.name for each in entries))
        peers = list(dict.fromkeys(each.peer for each in entries))
        what = "leads to another host" if entries[0].known else "is not known"
        yield warn(
            f"on {name_hosts(viewers)} the name {name_hosts(names)} {what}",
            viewers,
            seen=_list_answers(entries),
            expected=f"an address of {name_hosts(peers)}, for {USED_BY}",
            hint=_hosts_lines(addresses, facts, peers, viewers),
            cure=_by_address(addresses, peers),
        )


def _list_answers(wrong: Sequence[_Answer]) -> str:
    return list_some([f"on {each.viewer}: {each.name}: {each.said}" for each in wrong])


def _by_address(addresses: Mapping[str, str], peers: Sequence[str]) -> Cure:
    """Names are needed only by who is given names."""
    known = {peer: addresses[peer] for peer in peers if peer in addresses}
    return Cure(
        hosts={peer: HostCure(address=address) for peer, address in known.items()},
        by_run="passes addresses",
    )


def _hosts_lines(
    addresses: Mapping[str, str],
    facts: Mapping[str, OsFacts],
    peers: Sequence[str],
    viewers: Sequence[str] = (),
) -> str:
    where = f"on {name_hosts(viewers)}" if viewers else "on every host"
    lines = [
        " ".join(
            dict.fromkeys((addresses.get(peer, "ADDRESS"), facts[peer].fqdn, facts[peer].hostname))
        )
        for peer in peers[:MAX_LISTED]
    ]
    return f"{where}, in /etc/hosts: " + "; ".join(" ".join(line.split()) for line in lines)


def _localhost(name: str, found: OsFacts) -> RuleResult:
    return warn(
        f"{name} calls itself {found.fqdn} towards others",
        (name,),
        seen=f"socket.getfqdn() on {name} returns {found.fqdn}, the first name of its address's line",
        expected=f"{found.hostname}: torchrun's c10d rendezvous tells it to the other nodes, "
        "which then connect to themselves",
        hint=f"in /etc/hosts of {name}, on the line of its own address: {found.hostname} first; "
        "or torchrun --local-addr ADDRESS",
    )


@rule("os.cloned", "os", Level.QUICK, OsFacts, SshFacts, NetFacts)
@hint("systemd-machine-id-setup on the clones.")
def _find_clones(view: View) -> RuleResults:
    """Machines made from one image with its machine id; containers of one machine, which share it.

    One machine id on two machines is a clone; one kernel with two sets of addresses a container.
    """
    facts, ssh, machine_of = view.of(OsFacts), view.of(SshFacts), machines(view)
    by_id: dict[str, list[str]] = defaultdict(list)
    by_boot: dict[str, list[str]] = defaultdict(list)
    for name, found in facts.items():
        if found.machine_id and not found.containerised:
            by_id[found.machine_id].append(name)
        if ssh[name].boot_id:
            by_boot[ssh[name].boot_id].append(name)
    for machine_id, names in by_id.items():
        if len({ssh[name].boot_id for name in names}) > 1:
            yield warn(
                f"{name_hosts(names)} are clones: they have one machine id",
                names,
                seen=f"/etc/machine-id: {machine_id[:64]}, and a kernel of its own on each",
                expected="an id of its own for each, from which DHCP and others make theirs",
                hint="on all but one: sudo rm /etc/machine-id && sudo systemd-machine-id-setup, "
                "then reboot",
            )
    for names in by_boot.values():
        if len({machine_of[name] for name in names}) > 1:
            yield info(
                f"{name_hosts(names)} run on one kernel: containers of one machine",
                names,
                seen=f"boot_id {ssh[names[0]].boot_id[:64]} on each, with addresses of their own",
                hint="they share its memory, processors and GPUs; where they are machines of their own, "
                "they are copies of one snapshot, and NCCL needs NCCL_HOSTID on each",
            )


RULES = (_peer_names, _find_clones)
