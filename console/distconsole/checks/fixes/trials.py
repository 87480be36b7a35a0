"""The trials: ranks by torch and Gloo or by mpirun, a connection, a process as ranks are started."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from distconsole.checks.facts.jobs import RankReport
from distconsole.checks.fixes.trying import WORDS, Bench, TrialResult
from distconsole.checks.gather.addresses import Endpoint
from distconsole.checks.gather.collective import (
    STOP,
    STOP_SECONDS,
    Job,
    case,
    free_port,
    reports,
    reports_of,
    start_ranks,
)
from distconsole.checks.gather.engine_jobs import EngineJob, StartJob
from distconsole.checks.gather.nodes import CheckContext, interpreter
from distconsole.checks.rules.software.ranks import DONE, NOT_STARTED, last_stage, reason
from distconsole.model.cluster import Host
from distconsole.model.findings import HostCure
from distconsole.model.requests import LauncherName

GLOO_NAME = "GLOO_SOCKET_IFNAME"
STOPPING_SECONDS = 20.0
LISTEN_SECONDS, CONNECT_SECONDS = 15.0, 2.0
ELEMENTS = (1003, 1 << 18)
"""One message that fits into a packet's way anywhere, and one of a MiB, which finds MTU holes."""

SOURCE_LINE = re.compile(r"\[rank\d+\]: |\[(?:enforce fail at )?/[\w/.-]+\.(?:cc|cpp|h):\d+\]:? ?")
"""Where in its source Gloo says something, which helps nobody here."""

MPI_NETWORK = (
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"),
)
"""What ``run`` sets and a person who types ``mpirun`` does not."""

BEFORE_TORCH = (NOT_STARTED, "started")
"""Where a rank ends that has no torch, or takes too long to import it: no matter of the cure."""


def run_gloo(
    bench: Bench,
    hosts: Sequence[Host],
    meet: Mapping[str, Endpoint],
    change: Mapping[str, HostCure],
    enough: threading.Event,
    *,
    bound: bool,
) -> TrialResult:
    """Sum over one rank a host by torch and Gloo.

    Args:
        meet: Where each host would be met; the first one's address is the rendezvous.
        change: To what the host's processes have by themselves.
        bound: Whether ranks are bound to their interface of ``meet``, as ``run`` does.
    """
    context, seconds = bench.context, bench.seconds
    began = context.clock()
    job = Job(
        tuple(hosts),
        {host.name: (index,) for index, host in enumerate(hosts)},
        {name: replace(end, interface=None) for name, end in meet.items()},
        "gloo",
        free_port(context, hosts[0], meet[hosts[0].name].address),
    )

    def start_on(host: Host) -> dict[str, Any]:
        nic = meet[host.name].interface if bound else None
        names = {GLOO_NAME: nic, "NCCL_SOCKET_IFNAME": f"={nic}"} if nic else {}
        own = change.get(host.name, HostCure())
        own = msgspec.structs.replace(own, env={**names, **own.env})
        return process_args(context, host, own, by_hand=not bound)

    work = _work(len(hosts), seconds)
    with _stop_once(enough, context, job):
        found = {
            str(outcome.host): reports_of(job, outcome)
            for outcome in start_ranks(context, job, work, seconds, start_on)
        }
    shown = judge_ranks(found, (), len(hosts), context.clock() - began)
    bad = [rank for ranks in found.values() for rank in ranks if rank.exit_code != 0]
    early = [rank for rank in bad if last_stage(rank) in BEFORE_TORCH]
    by_itself = any(rank.exit_code and rank not in early for rank in bad)
    return replace(shown, able=by_itself or not early)


@contextmanager
def _stop_once(enough: threading.Event, context: CheckContext, job: Job) -> Iterator[None]:
    """Stop the ranks of ``job`` once ``enough`` is set or nobody waits for the check any more."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if enough.is_set() or context.given_up.is_set():
                context.stop(job.hosts, STOP, job.token, STOP_SECONDS)
                return

    watcher = threading.Thread(target=watch, name="proof-end", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(STOPPING_SECONDS)


def process_args(
    context: CheckContext, host: Host, change: HostCure, *, by_hand: bool = False
) -> dict[str, Any]:
    """Return what a probe on ``host`` needs to start processes as ranks are, and with ``change``.

    Args:
        by_hand: Of the variables of a launch, only with those that its user gives.
    """
    own = interpreter(context, host)
    if by_hand and context.launch is not None:
        own |= {"env": dict(context.launch.env), "unset": []}
    return {
        **own,
        "setup": _join_setup(own["setup"], change),
        "set": dict(change.env),
        "remove": list(change.unset),
    }


def run_mpi(
    bench: Bench,
    start: StartJob,
    hosts: Sequence[Host],
    env: Mapping[str, str],
    change: Mapping[str, HostCure],
    enough: threading.Event,
    *,
    by_hand: bool,
) -> TrialResult:
    """Sum over one rank a host by mpirun, started as ``run`` does but for what it sets of the network.

    Args:
        change: Of which ``setup`` holds for the host.
        by_hand: Without the network that ``run`` names.
    """
    context, seconds = bench.context, bench.seconds
    began = context.clock()
    job = EngineJob(
        LauncherName.MPI,
        tuple(
            replace(host, slots=1, setup=_join_setup(host.setup, change.get(host.name)))
            for host in hosts
        ),
        _work(len(hosts), seconds),
        seconds,
        env,
        without=MPI_NETWORK if by_hand else (),
        given_up=lambda: enough.is_set() or context.given_up.is_set(),
    )
    answer = start(context.session, job)
    found = {
        str(host.name): reports(answer.ranks.get(host.name), answer.planned.get(host.name, ()))
        for host in hosts
    }
    return judge_ranks(found, answer.said, len(hosts), context.clock() - began)


def _join_setup(setup: str | None, change: HostCure | None) -> str | None:
    return "\n".join(line for line in (setup, change and change.setup) if line) or None


def _work(world: int, seconds: float) -> dict[str, Any]:
    return {
        "seed": secrets.randbelow(1 << 30),
        "timeout_seconds": seconds,
        "world_size": world,
        "cases": [case("all_reduce", "float32", count, 0) for count in ELEMENTS],
        "sweep": None,
    }


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


def try_connection(
    bench: Bench,
    source: Host,
    target: Host,
    address: str,
    end: tuple[str, int | None],
    _enough: threading.Event,
) -> TrialResult:
    """Connect ``source`` to a port that ``target`` opens for it at ``address``.

    Args:
        end: By which name or address, and to which port; None for one of the kernel's choice.
    """
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
