"""For findings with a cure: the smallest test that fails, ranks or a connection, without the cure and with it."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from distconsole.checks.facts.evidence import by_key
from distconsole.checks.facts.jobs import RankReport
from distconsole.checks.facts.network import ReachFacts, matrix_of
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.fixes.cures import OMPI, attach_proof, mca_env
from distconsole.checks.fixes.trying import (
    LAUNCH_PROVERS,
    TRIAL_SECONDS,
    WORDS,
    ProofHosts,
    ProofOnHosts,
    Prover,
    Trial,
    TrialResult,
    all_hosts,
    change_for,
    changes,
    join_setup,
)
from distconsole.checks.gather.collective import case
from distconsole.checks.gather.context import MASTER_PORT, CheckContext
from distconsole.checks.gather.engine_jobs import EngineJob, StartJob, env_of, python_of
from distconsole.checks.rules.software.ranks import DONE, NOT_STARTED, last_stage, reason
from distconsole.errors import ConsoleError
from distconsole.model.cluster import Host
from distconsole.model.findings import Finding, HostCure, Severity
from distconsole.model.requests import LauncherName

MAX_PROOFS = 4
"""Checks whose findings are proven, worst first; one trial is for all findings of a check."""

LEAST_SECONDS = 4.0
LISTEN_SECONDS, CONNECT_SECONDS = 15.0, 2.0
ELEMENTS = (1003, 1 << 18)
"""One message that fits into a packet's way anywhere, and one of a MiB, which finds MTU holes."""

GLOO_NAME = "GLOO_SOCKET_IFNAME"
NETWORK = (
    *(GLOO_NAME, "NCCL_SOCKET_IFNAME"),
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"),
)
"""What ``run`` sets and a person who starts ranks by hand does not."""

SOURCE_LINE = re.compile(r"\[rank\d+\]: |\[(?:enforce fail at )?/[\w/.-]+\.(?:cc|cpp|h):\d+\]:? ?")
"""Source locations in Gloo's messages, which explain nothing to users."""

BEFORE_TORCH = (NOT_STARTED, "started")
"""Where a rank ends that has no torch, or takes too long to import it: no matter of the cure."""


def prove(
    context: CheckContext, findings: Sequence[Finding], start: StartJob
) -> Iterator[tuple[str, dict[int, Finding] | None]]:
    """Try cures: yield a check with None before, and then, by place in ``findings``, each result."""
    bad = (Severity.WARN, Severity.FAIL)
    worst_first = sorted(enumerate(findings), key=lambda each: -each[1].severity.order)
    by_check = by_key(
        (found.check, place)
        for place, found in worst_first
        if found.cure is not None and found.severity in bad and found.check in PROVERS
    )
    for check, places in list(by_check.items())[:MAX_PROOFS]:
        if context.left(TRIAL_SECONDS) < LEAST_SECONDS:
            return
        blamed = {name for found in findings for name in found.hosts if found.check != check}
        bench = ProofHosts(context, start, frozenset(blamed))
        yield check, None
        tried = None
        with suppress(ConsoleError):  # a host that went away is a finding by itself
            tried = PROVERS[check](bench, [findings[place] for place in places])
        proven = {
            place: attach_proof(findings[place], tried.proof)
            for place in places
            if tried is not None and set(tried.hosts) & set(findings[place].hosts)
        }
        yield check, proven


def _by_gloo(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """Ranks as a script started by hand has them: nothing of what ``run`` sets."""
    hosts = bench.hosts(all_hosts(findings))
    change = changes(findings, hosts)
    return _compare_ranks(bench, LauncherName.TORCH, hosts, change, by_hand=True)


def _by_one_name(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """One name of an interface for all hosts, as variables that people export have it."""
    hosts = bench.hosts(all_hosts(findings)[:1])
    change = changes(findings, hosts)
    if len(hosts) < 2:
        return None
    nic = change[hosts[1].name].env.get(GLOO_NAME, "")
    same = {str(host.name): HostCure(env={GLOO_NAME: nic}) for host in hosts}
    trial = partial(_run_ranks, bench, LauncherName.TORCH, hosts, same, by_hand=True)
    words = f" with {GLOO_NAME}={nic} on all,"
    return _compare_ranks(
        bench, LauncherName.TORCH, hosts, change, by_hand=True, without=trial, words=words
    )


def _by_mpirun(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """mpirun without the network that ``run`` names to it."""
    cure = findings[0].cure
    hosts = bench.hosts(findings[0].hosts, 2)
    if cure is None or len(hosts) < 2:
        return None
    given = change_for([cure], hosts[0].name).env
    env = {**mca_env(cure), **{key: v for key, v in given.items() if key.startswith(OMPI)}}
    change = {str(host.name): HostCure(env=env) for host in hosts}
    return _compare_ranks(bench, LauncherName.MPI, hosts, change, by_hand=True) if env else None


def _by_library(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """mpirun as ``run`` starts it, with the library that the cure puts first."""
    hosts = bench.hosts(all_hosts(findings), 2)
    if len(hosts) < 2:
        return None
    change = changes(findings, hosts)
    return _compare_ranks(bench, LauncherName.MPI, hosts, change, by_hand=False, linked=True)


def _by_variables(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """Whatever library reads the variable that is wrong: Gloo, or Open MPI."""
    names = set[str]()
    for cure in [found.cure for found in findings if found.cure]:
        changed = (name for host in cure.hosts.values() for name in (*host.env, *host.unset))
        names |= {*cure.env, *cure.unset, *mca_env(cure), *changed}
    if names & {GLOO_NAME, "TP_SOCKET_IFNAME"}:
        return _by_gloo(bench, findings)
    if any(name.startswith(OMPI) for name in names):
        return _by_mpirun(bench, findings)
    return None


def _by_other_network(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """Ranks bound to an interface as ``run`` binds them: to the one chosen, and to the other one."""
    if all(found.cure is not None and found.cure.port is not None for found in findings):
        return _by_other_port(bench, findings)
    hosts = bench.hosts(all_hosts(findings), 2)
    change = {name: HostCure(nic=each.nic) for name, each in changes(findings, hosts).items()}
    if len(hosts) < 2 or not all(each.nic for each in change.values()):
        return None
    # Ranks would only wait for a connection that is lost, and for nothing that is not known after it.
    lost = _lost_way(bench, hosts)
    return _compare_ranks(bench, LauncherName.TORCH, hosts, change, by_hand=False, without=lost)


def _compare_ranks(
    bench: ProofHosts,
    launcher: LauncherName,
    hosts: Sequence[Host],
    change: Mapping[str, HostCure],
    *,
    by_hand: bool,
    linked: bool = False,
    without: Trial | None = None,
    words: str = "",
) -> ProofOnHosts | None:
    if not hosts:
        return None
    trial = partial(_run_ranks, bench, launcher, hosts, by_hand=by_hand, linked=linked)
    by = "mpirun" if launcher is LauncherName.MPI else "Gloo"
    ran = f"all-reduce by {by}{words} as {'by hand' if by_hand else '`run` starts it'}"
    return bench.compare(ran, hosts, without or partial(trial, {}), partial(trial, change))


def _lost_way(bench: ProofHosts, hosts: Sequence[Host]) -> Trial | None:
    view = bench.context.view((ReachFacts,))
    facts = view.of(ReachFacts)
    by_name = {str(host.name): host for host in hosts}
    for source, target in matrix_of(view).dead:
        if source in by_name and target in by_name and target in facts:
            there = facts[target].address
            ends = by_name[source], by_name[target]
            return partial(_try_connection, bench, *ends, there, (there, None))
    return None


def _by_other_port(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
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


def _by_address(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
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
    bench: ProofHosts,
    source: Host,
    target: Host,
    address: str,
    end: tuple[str, int],
    cured_end: tuple[str, int],
) -> ProofOnHosts | None:
    connection = partial(_try_connection, bench, source, target, address)
    without, with_cure = partial(connection, end), partial(connection, cured_end)
    return bench.compare("a connection", [source, target], without, with_cure)


def _run_ranks(
    bench: ProofHosts,
    launcher: LauncherName,
    hosts: Sequence[Host],
    change: Mapping[str, HostCure],
    enough: threading.Event,
    *,
    by_hand: bool,
    linked: bool = False,
) -> TrialResult:
    """Sum over a rank a host by torch and Gloo or by mpirun, with ``change``.

    ``by_hand``: on any network; ``linked``: by the MPI library that the linker finds.
    """
    context, seconds = bench.context, bench.seconds
    began = context.clock()
    by_torch = launcher is LauncherName.TORCH
    job = EngineJob(
        launcher,
        "gloo" if by_torch else "mpi",
        tuple(_change_host(context, host, change.get(host.name, HostCure())) for host in hosts),
        {
            "seed": secrets.randbelow(1 << 30),
            "timeout_seconds": seconds,
            "world_size": len(hosts),
            "cases": [case("all_reduce", "float32", count, 0) for count in ELEMENTS],
            "sweep": None,
            "linked": linked,
        },
        seconds,
        env_of(context),
        change,
        NETWORK if by_hand else (),
        lambda: enough.is_set() or context.given_up.is_set(),
    )
    answer = bench.start(context.session, job)
    shown = judge_ranks(answer.ranks, answer.said, len(hosts), context.clock() - began)
    bad = [rank for ranks in answer.ranks.values() for rank in ranks if rank.exit_code != 0]
    early = [rank for rank in bad if by_torch and last_stage(rank) in BEFORE_TORCH]
    by_itself = any(rank.exit_code and rank not in early for rank in bad)
    return replace(shown, able=by_itself or not early)


def _change_host(context: CheckContext, host: Host, change: HostCure) -> Host:
    setup = join_setup(host.setup, change)
    host = replace(host, slots=1, python=python_of(context, host), setup=setup)
    return replace(host, nic=change.nic, address=None) if change.nic else host


def judge_ranks(
    found: Mapping[str, tuple[RankReport, ...]], engine: Sequence[str], world: int, seconds: float
) -> TrialResult:
    """Return what ranks show: exact sums everywhere, or why not, in a line."""
    ranks = [(name, rank) for name, each in found.items() for rank in each]
    sizes = {
        said["group"].get("world_size")
        for _, rank in ranks
        for said in rank.said
        if isinstance(said.get("group"), dict)
    }
    if sizes and sizes != {world}:
        return TrialResult(False, f"ranks say size {sorted(map(str, sizes))[0]}, not {world}")
    if any(said.get("wrong") for _, rank in ranks for said in rank.said):
        return TrialResult(False, "wrong sums")
    bad = [(n, r) for n, r in ranks if last_stage(r) != DONE or r.exit_code != 0]
    if ranks and not bad:
        return TrialResult(True, f"exact sums at {len(ranks)} ranks in {seconds:.1f} s")
    ended = [entry for entry in bad if entry[1].exit_code not in (None, 0)]
    if not ended:
        stages = [last_stage(rank) for _, rank in bad] or [NOT_STARTED]
        reached = next((each for each in stages if each != DONE), DONE)
        return TrialResult(False, f"no end in {seconds:.1f} s, ranks hang: {reached}")
    name, rank = min(ended, key=lambda entry: entry[1].seconds)
    said = [line.strip() for line in engine if line.strip("-*= \n")]
    why = SOURCE_LINE.sub("", reason(rank, said)).removeprefix("RuntimeError: ")
    return TrialResult(False, f"rank {rank.rank} ({name}): {why}"[:WORDS])


def _try_connection(
    bench: ProofHosts,
    source: Host,
    target: Host,
    address: str,
    end: tuple[str, int | None],
    _enough: threading.Event,
) -> TrialResult:
    """Connect ``source`` to ``target`` at ``address``, by ``end``, a name or address and a port; None: any port."""
    name, wanted = end
    secret = secrets.token_hex(32)
    listen = {
        "address": address,
        "ports": [] if wanted is None else [wanted],
        "ephemeral": 1 if wanted is None else 0,
        "secret": secret,
        "ttl_seconds": LISTEN_SECONDS,
    }
    listening = bench.ask(target, "net.listen", listen)
    port = next((entry.get("port") for entry in listening.get("ports") or ()), None)
    if port is None:
        return TrialResult(False, f"{target.name} cannot listen", able=False)
    connect = {
        "targets": [{"id": "0", "address": name, "port": port}],
        "secret": secret,
        "timeout_seconds": CONNECT_SECONDS,
    }
    results = bench.ask(source, "net.connect", connect).get("results") or [{}]
    bench.ask(target, "net.close", {"token": str(listening.get("token", ""))})
    ok = results[0].get("ok") is True
    words = "connected" if ok else results[0].get("error") or "timeout"
    shown = f"{source.name} -> {name} port {port}: {words}"
    return TrialResult(ok, shown, able=bool(results[0]))


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
