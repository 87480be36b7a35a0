"""Small tests that can be made to fail: a few ranks by an engine, and both ways of running one.

A trial says what came of it. Which one belongs to which finding is known in ``proofs``.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from distconsole.checks.facts.jobs import RankReport
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
from distconsole.checks.gather.engine_job import EngineJob, StartJob
from distconsole.checks.gather.nodes import Gathering, interpreter
from distconsole.checks.rules.software.ranks import DONE, NOT_STARTED, last_stage, reason
from distconsole.errors import ConsoleError, NodeError
from distconsole.model.cluster import Host
from distconsole.model.findings import HostCure
from distconsole.model.names import HostName
from distconsole.model.requests import LauncherName

TRIAL_SECONDS = 40.0
"""Of one trial at most, with its imports on a slow disk."""

PATIENCE_SECONDS, PATIENCE = 2.0, 0.5
"""Once the trial with the cure has ended, the one without may take so much more, and so many times
as long, before it is ended as one that hangs."""

ENDING_SECONDS = 20.0
GLOO_NAME = "GLOO_SOCKET_IFNAME"
WORDS = 160
ELEMENTS = (1003, 1 << 18)
"""One message that fits into a packet's way anywhere, and one of a MiB, which finds MTU holes."""

SOURCE_LINE = re.compile(r"\[rank\d+\]: |\[(?:enforce fail at )?/[\w/.-]+\.(?:cc|cpp|h):\d+\]:? ?")
"""Where in its source Gloo says something, which helps nobody here."""

MPI_NETWORK = (
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"),
)
"""What ``run`` sets and a person who types ``mpirun`` does not."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a trial; not ``able`` where what it needs is not there, which says nothing."""

    ok: bool
    words: str
    seconds: float = 0.0
    able: bool = True


BEFORE_TORCH = (NOT_STARTED, "started")
"""Where a rank ends that has no torch, or takes too long to import it: no matter of the cure."""

Trial = Callable[[threading.Event], Came]
"""Runs to its end, or soon after the event is set."""


def both(without: Trial, with_cure: Trial) -> tuple[Came, Came]:
    """Run a trial without and with the cure at the same time; one that hangs is not waited for long."""
    came: list[Came | BaseException] = [Came(False, "it did not end")] * 2
    enough = [threading.Event(), threading.Event()]
    # Not by join: an interrupted one takes its thread for ended (bpo-45274 in Python 3.11).
    ended = [threading.Event(), threading.Event()]

    def run(index: int, trial: Trial) -> None:
        try:
            came[index] = trial(enough[index])
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            came[index] = error
        finally:
            ended[index].set()

    threads = [
        threading.Thread(target=run, args=each, name="proof", daemon=True)
        for each in enumerate((without, with_cure))
    ]
    try:
        for thread in threads:
            thread.start()
        ended[1].wait()
        cured = came[1]
        took = cured.seconds if isinstance(cured, Came) else 0.0
        ended[0].wait(PATIENCE_SECONDS + PATIENCE * took)
        enough[0].set()
        ended[0].wait()
    finally:
        for event in enough:
            event.set()
        for thread, event in zip(threads, ended, strict=True):
            if thread.ident is not None:
                event.wait(ENDING_SECONDS)
    return _result_or_raise(came[0]), _result_or_raise(came[1])


def _result_or_raise(entry: Came | BaseException) -> Came:
    if isinstance(entry, ConsoleError):
        return Came(False, entry.message[:WORDS], able=False)
    if isinstance(entry, BaseException):
        raise entry
    return entry


def gloo(
    gathering: Gathering,
    hosts: Sequence[Host],
    meet: Mapping[str, Endpoint],
    changes: Mapping[str, HostCure],
    enough: threading.Event,
    *,
    bound: bool,
    seconds: float,
) -> Came:
    """Sum over one rank a host by torch and Gloo.

    Args:
        meet: Where each host would be met; the first one's address is the rendezvous.
        changes: To what the host's processes have by themselves.
        bound: Whether ranks are bound to their interface of ``meet``, as ``run`` does.
    """
    began = gathering.clock()
    job = Job(
        tuple(hosts),
        {host.name: (index,) for index, host in enumerate(hosts)},
        {name: replace(end, interface=None) for name, end in meet.items()},
        "gloo",
        free_port(gathering, hosts[0], meet[hosts[0].name].address),
    )

    def conditions_on(host: Host) -> dict[str, Any]:
        change = changes.get(host.name, HostCure())
        nic = meet[host.name].interface if bound else None
        names = {GLOO_NAME: nic, "NCCL_SOCKET_IFNAME": f"={nic}"} if nic else {}
        change = msgspec.structs.replace(change, env={**names, **change.env})
        return conditions(gathering, host, change, by_hand=not bound)

    with _stop_when(enough, gathering, job):
        found = {
            outcome.host: reports_of(job, outcome)
            for outcome in start_ranks(
                gathering, job, _work(len(hosts), seconds), seconds, conditions_on
            )
        }
    came = conclude(found, (), len(hosts), gathering.clock() - began)
    bad = [rank for ranks in found.values() for rank in ranks if rank.exit_code != 0]
    early = [rank for rank in bad if last_stage(rank) in BEFORE_TORCH]
    by_itself = any(rank.exit_code and rank not in early for rank in bad)
    return replace(came, able=by_itself or not early)


@contextmanager
def _stop_when(enough: threading.Event, gathering: Gathering, job: Job) -> Iterator[None]:
    """Stop the ranks of ``job`` once ``enough`` is set or nobody waits for the check any more."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if enough.is_set() or gathering.given_up.is_set():
                gathering.stop(job.hosts, STOP, job.token, STOP_SECONDS)
                return

    watcher = threading.Thread(target=watch, name="proof-end", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(ENDING_SECONDS)


def conditions(
    gathering: Gathering, host: Host, change: HostCure, *, by_hand: bool = False
) -> dict[str, Any]:
    """Return what a probe on ``host`` needs to start processes as ranks are, and with ``change``.

    Args:
        by_hand: Of the variables of a launch, only with those that its user gives.
    """
    own = interpreter(gathering, host)
    if by_hand and gathering.launch is not None:
        own |= {"env": dict(gathering.launch.env), "unset": []}
    return {
        **own,
        "setup": _join_setup(own["setup"], change),
        "set": dict(change.env),
        "remove": list(change.unset),
    }


def mpi(
    gathering: Gathering,
    start: StartJob,
    hosts: Sequence[Host],
    env: Mapping[str, str],
    changes: Mapping[str, HostCure],
    enough: threading.Event,
    *,
    by_hand: bool,
    seconds: float,
) -> Came:
    """Sum over one rank a host by mpirun, started as ``run`` does but for what it sets of the network.

    Args:
        changes: Of which ``setup`` holds for the host.
        by_hand: Without the network that ``run`` names.
    """
    began = gathering.clock()
    job = EngineJob(
        LauncherName.MPI,
        tuple(
            replace(host, slots=1, setup=_join_setup(host.setup, changes.get(host.name)))
            for host in hosts
        ),
        _work(len(hosts), seconds),
        seconds,
        env,
        without=MPI_NETWORK if by_hand else (),
        given_up=lambda: enough.is_set() or gathering.given_up.is_set(),
    )
    answer = start(gathering.session, job)
    found = {
        host.name: reports(answer.ranks.get(host.name), answer.planned.get(host.name, ()))
        for host in hosts
    }
    return conclude(found, answer.said, len(hosts), gathering.clock() - began)


def _join_setup(setup: str | None, change: HostCure | None) -> str | None:
    """Return a host's own setup, and after it what ``change`` adds to it."""
    return "\n".join(line for line in (setup, change and change.setup) if line) or None


def _work(world: int, seconds: float) -> dict[str, Any]:
    return {
        "seed": secrets.randbelow(1 << 30),
        "timeout_seconds": seconds,
        "world_size": world,
        "cases": [case("all_reduce", "float32", count, 0) for count in ELEMENTS],
        "sweep": None,
    }


def conclude(
    found: Mapping[HostName, tuple[RankReport, ...]] | Mapping[str, tuple[RankReport, ...]],
    engine: Sequence[str],
    world: int,
    seconds: float,
) -> Came:
    """Return what came of ranks: exact sums everywhere, or why not, in a line."""
    ranks = [(name, rank) for name, each in found.items() for rank in each]
    sizes = {
        said["group"].get("world_size")
        for _, rank in ranks
        for said in rank.said
        if isinstance(said.get("group"), dict)
    }
    if sizes and sizes != {world}:
        return Came(False, f"ranks say size {sorted(map(str, sizes))[0]}, not {world}", seconds)
    if any(said.get("wrong") for _, rank in ranks for said in rank.said):
        return Came(False, "wrong sums", seconds)
    bad = [(n, r) for n, r in ranks if last_stage(r) != DONE or r.exit_code != 0]
    if ranks and not bad:
        return Came(True, f"exact sums at {len(ranks)} ranks in {seconds:.1f} s", seconds)
    ended = [entry for entry in bad if entry[1].exit_code not in (None, 0)]
    if not ended:
        stages = [last_stage(rank) for _, rank in bad] or [NOT_STARTED]
        reached = next((each for each in stages if each != DONE), DONE)
        return Came(False, f"no end in {seconds:.1f} s, ranks hang: {reached}", seconds)
    name, rank = min(ended, key=lambda entry: entry[1].seconds)
    said = [line.strip() for line in engine if line.strip("-*= \n")]
    why = SOURCE_LINE.sub("", reason(rank, said)).removeprefix("RuntimeError: ")
    return Came(False, f"rank {rank.rank} ({name}): {why}"[:WORDS], seconds)


def ask_or_fail(
    gathering: Gathering, host: Host, group: str, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a probe's answer; one that has none gives an empty one with ``error``."""
    try:
        return gathering.ask(host, group, 5.0, args)
    except NodeError as error:
        return {"error": error.message}
