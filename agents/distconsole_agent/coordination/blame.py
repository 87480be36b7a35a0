"""Finds the first failure: failures, stops and clock offsets in, one verdict out. Pure: it reads nothing.

A rank that dies takes others with it, and a victim may notice before the parent of the dead one
does: the kernel closes a dying process's sockets before it tells the parent, so a peer's
``Connection reset`` can carry an earlier time than the death that caused it. Hence failures that
read like a consequence take the blame last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from distconsole_agent.contract.runspec import NodeSpec

CONSEQUENCE_SECONDS = 10.0
"""A failure this much later than the earliest one is not its cause."""

NOTICED_SECONDS = 60.0
"""A failure this much later than the loss of a node that the run outlived does not follow from it."""

USER, SIGINT, SIGTERM, FAILURE = "user", "sigint", "sigterm", "failure"
STOP_EXIT_CODES = {SIGINT: 130, USER: 143, SIGTERM: 143}

ABORTED = 6
"""SIGABRT."""

LOST = "lost"
"""The state of a run on a node that has lost the others, which may go on without it."""

SHIM_GONE = "its shim is gone"
"""Why a node is lost though its host answers."""

MAX_ERROR_CHARS = 1000
MAX_TRACEBACK_CHARS = 8000

BY_ENGINE = ", perhaps by mpirun"
"""Appended to the error of a rank below mpirun that died of a SIGTERM that no shim sent."""

ENDED_EARLY = "mpirun ended, and rank"
"""First words of the failure of an mpirun that exits with 0 before its ranks: Open MPI 5 does so when it loses a daemon."""

ENDED_BEFORE = " had ended before ("
"""In the last lines of a traceback that follows from a rank's end, which is no failure or not known to be one."""

NODE_LOST = ", after a node was lost"
"""Appended to the error of a rank that was ended with its round of an elastic job, after a node was lost."""

_CONSEQUENCE = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|closed by peer|broken pipe"
    r"|ConnectionResetError|BrokenPipeError|ConnectionRefusedError"
    r"|DistNetworkError|recvValue failed|sendBytes failed|recvBytes failed|socket (was )?closed"
    r"|failed to recv|ncclRemoteError|remote process (exited|has)|NCCL communicator was aborted"
    r"|watchdog (caught|thread terminated)|collective operation timeout|wait timeout"
    r"|gloo.{0,80}(timed out|transport)|Application timeout caused pair closure"
    r"|Horovod has been shut down|HorovodInternalError|HorovodAllreduce.{0,40}failed"
    rf"|{BY_ENGINE}|{NODE_LOST}|^mpirun exited with code|^{ENDED_EARLY}"
    r"|TCPStore.{0,80}(unreachable|timed? ?out)|No route to host|Connection timed out"
    r"|Detected at least one rank that exhausted inputs",
    re.IGNORECASE | re.DOTALL,
)

DISAGREE = "ranks disagree in a collective"
"""Beginning of such an error. The rank that reports it may be right: another one came with other data."""

_DISAGREEMENT = re.compile(
    r"Received data size doesn't match expected size|Mismatched [\w ]{1,60}: One rank"
    r"|Detected mismatch between collectives on ranks"
)
"""Gloo's words, Horovod's, and torch's with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
_CHECKPOINT = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,9})\)")
"""Of CheckpointException (torch/distributed/checkpoint/api.py): each rank raises those of all."""
_PAIR = re.compile(
    r"Rank (\d{1,9}) is running collective.{1,2000}?but Rank (\d{1,9}) is", re.DOTALL
)


class Failure(NamedTuple):
    """A rank that ended badly by itself, ``t_ns`` in its node's steady time; ``final``: why no restart helps."""

    node: int
    rank: int
    pid: int
    t_ns: int
    exit_code: int
    signal: int | None
    error: str
    traceback: str
    final: str = ""

    def as_json(self) -> dict[str, object]:
        """Return it as ``shim.jsonl`` and the other nodes have it."""
        fields = self._asdict()
        del fields["node"]
        bounded = {
            "error": self.error[:MAX_ERROR_CHARS],
            "traceback": self.traceback[-MAX_TRACEBACK_CHARS:],
        }
        return {**fields, **bounded}


class StopRequest(NamedTuple):
    """A request to end the run; ``reason`` is ``user``, ``sigint`` or ``sigterm``."""

    node: int
    t_ns: int
    reason: str


class NodeLost(NamedTuple):
    """A node that did not answer for too long, by the judging node's clock; ``why`` if more is known."""

    node: int
    t_ns: int
    why: str = ""


class Evidence(NamedTuple):
    """Evidence at the end: nodes that were lost, or ``outlived``; ``offsets_ns`` to node 0's clock."""

    failures: Sequence[Failure]
    stops: Sequence[StopRequest]
    lost: Sequence[NodeLost]
    offsets_ns: Mapping[int, int]
    outlived: Sequence[NodeLost] = ()


class BlamedRank(NamedTuple):
    """The failure that a run's others followed from."""

    rank: int
    host: str
    exit_code: int
    error: str = ""
    traceback: str = ""
    signal: int | None = None
    more: Mapping[str, object] = MappingProxyType({})


class RunVerdict(NamedTuple):
    """The end of the run as a whole, as in the journal's ``verdict``."""

    state: str
    exit_code: int
    first_failure: BlamedRank | None


def determine_verdict(evidence: Evidence, nodes: Sequence[NodeSpec]) -> RunVerdict:
    """Return the verdict: the exit code is that of the rank that failed first.

    A stop that came before every failure and loss makes the run ``stopped``: failures during its
    teardown are consequences.
    """
    stop = min(evidence.stops, key=lambda stop: _correct_time(evidence, stop), default=None)
    failure = first_failure(evidence)
    stopped_ns = float("inf") if stop is None else _correct_time(evidence, stop)
    failed_ns = (_correct_time(evidence, each) for each in evidence.failures)
    if failure is not None and not all(stopped_ns < each for each in failed_ns):
        lost = evidence.lost or _lost_shortly_before(evidence, failure)
        if lost and _follows_from_others(failure):
            return _node_lost(evidence, lost, nodes)
        error, end = failure.error[:MAX_ERROR_CHARS], failure.traceback[-MAX_TRACEBACK_CHARS:]
        how = failure.exit_code, error, end, failure.signal
        described = BlamedRank(failure.rank, nodes[failure.node].host, *how)
        if _DISAGREEMENT.search(failure.error):
            described = _describe_disagreement(described, evidence.failures, nodes)
        return RunVerdict("failed", failure.exit_code, described)
    follows_loss = any(_correct_time(evidence, lost) < stopped_ns for lost in evidence.lost)
    if stop is not None and not follows_loss:
        return RunVerdict("stopped", STOP_EXIT_CODES[stop.reason], None)
    if evidence.lost:
        return _node_lost(evidence, evidence.lost, nodes)
    return RunVerdict("succeeded", 0, None)


def first_failure(evidence: Evidence) -> Failure | None:
    """Return the failure that the others followed from, or None when nothing failed."""
    if not evidence.failures:
        return None
    in_order = sorted(evidence.failures, key=lambda failure: _correct_time(evidence, failure))
    latest = _correct_time(evidence, in_order[0]) + int(CONSEQUENCE_SECONDS * 1e9)
    causes = (
        failure
        for failure in in_order
        if not _follows_from_others(failure)
        and not _DISAGREEMENT.search(failure.error)
        and _correct_time(evidence, failure) <= latest
    )
    disagreements = (failure for failure in in_order if _DISAGREEMENT.search(failure.error))
    knowing = (
        failure
        for failure in in_order
        if ENDED_BEFORE in failure.traceback or "failed to pass monitoredBarrier" in failure.error
    )
    own = (each for each in in_order if str(each.rank) in _CHECKPOINT.findall(each.traceback))
    return next(chain(own, causes, disagreements, knowing, in_order))


def is_consequence(error: str, traceback: str) -> bool:
    """Return True if a process's end reads like another rank's end seen from outside."""
    return _CONSEQUENCE.search(f"{error}\n{traceback}") is not None


def _follows_from_others(failure: Failure) -> bool:
    """Return True if a failure reads like a consequence.

    The log of a rank that a signal killed is older than the kill, and may be of a round before.
    Only after an abort does it hold the cause.
    """
    killed = failure.signal not in (None, ABORTED)
    return is_consequence(failure.error, "" if killed else failure.traceback)


def _correct_time(evidence: Evidence, moment: Failure | StopRequest | NodeLost) -> int:
    if isinstance(moment, NodeLost):  # the time is the judging node's
        return moment.t_ns
    return moment.t_ns + evidence.offsets_ns.get(moment.node, 0)


def _lost_shortly_before(evidence: Evidence, failure: Failure) -> list[NodeLost]:
    """Return the outlived losses that a failure may follow from: the ranks notice at their pace."""
    failed_ns = _correct_time(evidence, failure)
    return [
        lost
        for lost in evidence.outlived
        if failed_ns - _correct_time(evidence, lost) <= int(NOTICED_SECONDS * 1e9)
    ]


def _node_lost(
    evidence: Evidence, losses: Sequence[NodeLost], nodes: Sequence[NodeSpec]
) -> RunVerdict:
    lost = min(losses, key=lambda lost: _correct_time(evidence, lost))
    node = nodes[lost.node]
    error = f"node {node.host} lost" + (f": {lost.why}" if lost.why else "")
    described = BlamedRank(node.ranks[0] if node.ranks else 0, node.host, 1, error)
    return RunVerdict("failed", 1, described)


def _describe_disagreement(
    described: BlamedRank, failures: Sequence[Failure], nodes: Sequence[NodeSpec]
) -> BlamedRank:
    """Name the rank that differs from two others; if the errors do not show it, name the reporting ranks."""
    pairs = [
        set(map(int, found.groups())) for each in failures if (found := _PAIR.search(each.error))
    ]
    odd = set.intersection(*pairs) if pairs else set()
    host = next((node.host for node in nodes if odd <= set(node.ranks)), None) if odd else None
    if len(odd) == 1 and host is not None:
        return described._replace(rank=odd.pop(), host=host)
    noticed = f"rank {described.rank} on {described.host} noticed it, which of them is wrong is not known"
    error = f"{DISAGREE}; {noticed}: {described.error}"
    return described._replace(error=error[:MAX_ERROR_CHARS])
