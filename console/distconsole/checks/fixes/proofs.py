"""For findings with a cure: the smallest test that fails, with and without the cure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from distconsole.checks.facts.network import NetFacts, ReachFacts, matrix_of
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.fixes.cures import OMPI, attach_proof, mca_env
from distconsole.checks.fixes.launch_proofs import LAUNCH_PROVERS
from distconsole.checks.fixes.trials import GLOO_NAME, run_gloo, run_mpi, try_connection
from distconsole.checks.fixes.trying import (
    TRIAL_SECONDS,
    Bench,
    ProofOnHosts,
    Prover,
    Trial,
    all_hosts,
    change_for,
    changes,
)
from distconsole.checks.gather.addresses import Endpoint
from distconsole.checks.gather.engine_jobs import StartJob
from distconsole.checks.gather.nodes import MASTER_PORT, CheckContext
from distconsole.errors import ConsoleError
from distconsole.model.cluster import Host
from distconsole.model.findings import Cure, Finding, HostCure, Severity

MAX_PROOFS = 4
"""Checks whose findings are proven, worst first; one trial is for all findings of a check."""

LEAST_SECONDS = 4.0


def prove(
    context: CheckContext, findings: Sequence[Finding], start: StartJob | None
) -> Iterator[tuple[str, dict[int, Finding] | None]]:
    """Try cures; yield each check whose findings are tried: None before, and then the outcome.

    The outcome is by place in ``findings`` what the finding has become.
    """
    bad = (Severity.WARN, Severity.FAIL)
    by_check: dict[str, list[int]] = {}
    for place in sorted(range(len(findings)), key=lambda at: -findings[at].severity.order):
        found = findings[place]
        if found.cure is not None and found.severity in bad and found.check in PROVERS:
            by_check.setdefault(found.check, []).append(place)
    for check, places in list(by_check.items())[:MAX_PROOFS]:
        if context.left(TRIAL_SECONDS) < LEAST_SECONDS:
            return
        blamed = {name for found in findings for name in found.hosts if found.check != check}
        bench = Bench(context, start, frozenset(blamed))
        yield check, None
        tried = _try_cure(bench, check, [findings[place] for place in places])
        proven = {
            place: attach_proof(findings[place], tried.proof)
            for place in (places if tried is not None else ())
            if tried is not None and set(tried.hosts) & set(findings[place].hosts)
        }
        yield check, proven


def _try_cure(bench: Bench, check: str, findings: Sequence[Finding]) -> ProofOnHosts | None:
    try:
        return PROVERS[check](bench, findings)
    except ConsoleError:
        # A host that went away meanwhile says nothing of the cure, and is a finding by itself.
        return None


def _by_gloo(bench: Bench, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """Ranks as a script started by hand has them: nothing of what ``run`` sets."""
    hosts = bench.hosts(all_hosts(findings))
    return _compare_gloo(bench, hosts, {}, changes(findings, hosts), "all-reduce by Gloo")


def _compare_gloo(
    bench: Bench,
    hosts: Sequence[Host],
    without: Mapping[str, HostCure],
    change: Mapping[str, HostCure],
    ran: str,
) -> ProofOnHosts | None:
    if not hosts:
        return None
    trial = partial(run_gloo, bench, hosts, bench.meet(), bound=False)
    return bench.compare(
        f"{ran} as by hand", hosts, partial(trial, without), partial(trial, change)
    )


def _by_one_name(bench: Bench, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """One name of an interface for all hosts, as variables that people export have it."""
    hosts = bench.hosts(all_hosts(findings)[:1])
    change = changes(findings, hosts)
    if len(hosts) < 2:
        return None
    nic = change[hosts[1].name].env.get(GLOO_NAME, "")
    same = {str(host.name): HostCure(env={GLOO_NAME: nic}) for host in hosts}
    ran = f"all-reduce by Gloo with {GLOO_NAME}={nic} on all,"
    return _compare_gloo(bench, hosts, same, change, ran)


def _by_mpirun(bench: Bench, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """mpirun without the network that ``run`` names to it."""
    cure = findings[0].cure
    hosts = bench.hosts(findings[0].hosts, 2)
    if cure is None or len(hosts) < 2:
        return None
    given = change_for([cure], hosts[0].name).env
    env = {**mca_env(cure), **{key: v for key, v in given.items() if key.startswith(OMPI)}}
    return _compare_mpi(bench, hosts, env, {}, by_hand=True) if env else None


def _by_library(bench: Bench, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """mpirun as ``run`` starts it, with the library that the cure puts first."""
    hosts = bench.hosts(all_hosts(findings), 2)
    return _compare_mpi(bench, hosts, {}, changes(findings, hosts), by_hand=False)


def _compare_mpi(
    bench: Bench,
    hosts: Sequence[Host],
    env: Mapping[str, str],
    change: Mapping[str, HostCure],
    *,
    by_hand: bool,
) -> ProofOnHosts | None:
    if bench.start is None or len(hosts) < 2:
        return None
    trial = partial(run_mpi, bench, bench.start, hosts, by_hand=by_hand)
    ran = f"all-reduce by mpirun as {'by hand' if by_hand else '`run` starts it'}"
    return bench.compare(ran, hosts, partial(trial, {}, {}), partial(trial, env, change))


def _by_variables(bench: Bench, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """Whatever library reads the variable that is wrong: Gloo, or Open MPI."""
    names = {name for found in findings if found.cure for name in _variables_of(found.cure)}
    if names & {GLOO_NAME, "TP_SOCKET_IFNAME"}:
        return _by_gloo(bench, findings)
    if any(name.startswith(OMPI) for name in names):
        return _by_mpirun(bench, findings)
    return None


def _variables_of(cure: Cure) -> list[str]:
    changed = [name for change in cure.hosts.values() for name in (*change.env, *change.unset)]
    return [*cure.env, *cure.unset, *mca_env(cure), *changed]


def _by_other_network(bench: Bench, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """Ranks bound to an interface as ``run`` binds them: to the one chosen, and to the other one."""
    if all(found.cure is not None and found.cure.port is not None for found in findings):
        return _by_other_port(bench, findings)
    hosts = bench.hosts(all_hosts(findings), 2)
    nets = bench.context.view((NetFacts,)).of(NetFacts)
    change = changes(findings, hosts)
    there = {
        str(host.name): Endpoint(entry.address, entry.iface, "")
        for host in hosts
        for entry in reversed(nets[host.name].addresses)
        if entry.iface == change[host.name].nic and entry.family == 4
    }
    if len(hosts) < 2 or len(there) < len(hosts):
        return None
    without: Trial = partial(run_gloo, bench, hosts, bench.meet(), {}, bound=True)
    with_cure = partial(run_gloo, bench, hosts, there, {}, bound=True)
    ran = "all-reduce by Gloo as `run` starts it"
    lost = _lost_way(bench, hosts)
    if lost is not None:
        # Ranks would only wait for this connection, and for nothing that is not known after it.
        without, ran = lost, f"a connection, and {ran}"
    return bench.compare(ran, hosts, without, with_cure)


def _lost_way(bench: Bench, hosts: Sequence[Host]) -> Trial | None:
    """Return a connection between two of ``hosts`` of which none came about, to be tried once more."""
    facts = bench.context.view((ReachFacts,)).of(ReachFacts)
    by_name = {str(host.name): host for host in hosts}
    for source, target in matrix_of(facts).dead:
        if source in by_name and target in by_name and target in facts:
            there = facts[target].address
            ends = by_name[source], by_name[target]
            return partial(try_connection, bench, *ends, there, (there, None))
    return None


def _by_other_port(bench: Bench, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """A connection to the port that is blocked, and to the one that the cure names."""
    found, context = findings[0], bench.context
    facts = context.view((ReachFacts,)).of(ReachFacts)
    lost = [e for f in facts.values() for e in f.edges if not e.ok and e.target in found.hosts]
    hosts = {str(host.name): host for host in context.reached()}
    if found.cure is None or found.cure.port is None or not lost:
        return None
    source, target = hosts.get(lost[0].source), hosts.get(lost[0].target)
    if source is None or target is None or target.name not in facts:
        return None
    address = facts[target.name].address
    ends = (address, lost[0].port), (address, found.cure.port)
    return _compare_connections(bench, source, target, address, *ends)


def _by_address(bench: Bench, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """A connection to a peer by the name that is unknown or wrong, and by its address."""
    found, context = findings[0], bench.context
    facts = context.view((OsFacts,)).of(OsFacts)
    reached = {str(host.name): host for host in context.reached()}
    viewer = next((reached[name] for name in found.hosts if name in reached), None)
    peers = found.cure.hosts if found.cure is not None else {}
    peer = next((name for name in peers if name in reached and name in facts), None)
    if viewer is None or peer is None or viewer.name == peer:
        return None
    address = peers[peer].address
    ends = (facts[peer].hostname, MASTER_PORT + 1), (address, MASTER_PORT + 2)
    return _compare_connections(bench, viewer, reached[peer], address, *ends)


def _compare_connections(
    bench: Bench,
    source: Host,
    target: Host,
    address: str,
    end: tuple[str, int],
    cured_end: tuple[str, int],
) -> ProofOnHosts | None:
    connection = partial(try_connection, bench, source, target, address)
    without, with_cure = partial(connection, end), partial(connection, cured_end)
    return bench.compare("a connection", [source, target], without, with_cure)


PROVERS: dict[str, Prover] = {
    "os.hostname_bindable": _by_gloo,
    "env.syntax": _by_variables,
    "env.iface_exists": _by_variables,
    "os.peer_names": _by_address,
    "net.choices": _by_variables,
    "net.nic_names": _by_one_name,
    "net.iface_matrix": _by_mpirun,
    "net.other_networks": _by_mpirun,
    "net.reach_tcp": _by_other_network,
    "net.asymmetric": _by_other_network,
    "net.port_ephemeral": _by_other_network,
    "net.mtu": _by_other_network,
    "mpi.rank_size": _by_library,
    "horovod.mpi": _by_library,
    **LAUNCH_PROVERS,
}
"""By check how its cure is tried."""
