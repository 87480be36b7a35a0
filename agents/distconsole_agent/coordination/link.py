"""Messages between a shim and the run's other nodes, as the shim sees them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from io import BufferedReader
from typing import Callable, NamedTuple, TypeVar

from distconsole_agent.contract import records
from distconsole_agent.contract.records import RecordError
from distconsole_agent.contract.runspec import RunSpec, read_spec
from distconsole_agent.coordination import channel
from distconsole_agent.coordination.blame import (
    MAX_ERROR_CHARS,
    MAX_TRACEBACK_CHARS,
    STOP_EXIT_CODES,
    Failure,
    RunVerdict,
    StopRequest,
)
from distconsole_agent.coordination.restarts import Restart
from distconsole_agent.supervisor.notes import RunNote
from distconsole_agent.supervisor.runlog import ENDPOINT_FILE

SHIM_GONE = "shim_gone"
"""The ``op`` by which a node's agent reports the end of its shim; ``why`` if more is known."""

OUTLIVED = "outlived"
"""The ``op`` of a failure that need not end the run."""

DEATH_NOTICE_TRIES = 10
MAX_WHY_CHARS = 200
MAX_RANK = 1 << 31

_Record = TypeVar("_Record", bound=NamedTuple)


class LinkEvents(NamedTuple):
    """Callbacks for messages from the rest of the run.

    Attributes:
        stop: The run is to end: reason and grace in seconds. May come more than once.
        verdict: The run's verdict, once.
        note: Something the operator should know, as a ``note`` of ``shim.jsonl``.
        finished: The link may be closed.
        command: Node 0 has something to run here, by this name; only in runs that an engine steers.
        command_ended: A command of node 0, run on a node under this name, has ended with this exit code.
        outlived: A rank failed by itself, and the engine decides on the run.
        node_lost: The node with this index is lost, and the run goes on without it.
        renew: Only on node 0: returns the port at which restarted ranks find each other,
            and the checkpoint that they resume from. May raise OSError.
        restart: Only on node 0: an attempt has failed, and another follows after a pause in seconds.
        again: Restart the ranks.
    """

    stop: Callable[[str, float], None]
    verdict: Callable[[RunVerdict], None]
    note: Callable[[RunNote], None]
    finished: Callable[[], None]
    command: Callable[[str, str], None]
    command_ended: Callable[[int, str, int], None]
    outlived: Callable[[Failure], None]
    node_lost: Callable[[int], None]
    renew: Callable[[], tuple[int, str | None]]
    restart: Callable[[Restart, RunVerdict, float], None]
    again: Callable[[Restart], None]


def read_message(cls: type[_Record], message: channel.Message) -> _Record:
    """Return a message as a record, or raise LinkError."""
    try:
        return records.read(cls, message)
    except RecordError as error:
        raise channel.LinkError(str(error)) from None


def read_failure_message(message: channel.Message, node: int, spec: RunSpec) -> Failure:
    """Return the failure in a message from ``node``, which may only report its own ranks.

    They include ranks that its processes started: of a number outside the plan; of any number if it has one process.
    """
    failure, own = read_message(Failure, {**message, "node": node}), spec.nodes[node].ranks
    rank = failure.rank
    planned = spec.ranks_are_planned and len(own) > 1
    is_of_another = planned and any(rank in each.ranks for each in spec.nodes)
    if rank not in own and (is_of_another or not 0 <= rank < MAX_RANK):
        rank = own[0] if own else 0
    return failure._replace(
        rank=rank,
        error=failure.error[:MAX_ERROR_CHARS],
        traceback=failure.traceback[-MAX_TRACEBACK_CHARS:],
        final=failure.final[:MAX_WHY_CHARS],
    )


def read_stop_message(message: channel.Message, node: int) -> StopRequest:
    stop = read_message(StopRequest, {**message, "node": node})
    if stop.reason not in STOP_EXIT_CODES:
        raise channel.LinkError(f"a stop for no known reason: {stop.reason!r}")
    return stop


def read_integer(message: channel.Message, key: str) -> int:
    """Return the integer under ``key``. Raises LinkError when there is none, as all that read messages."""
    value = message.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise channel.LinkError(f"{key} is not an integer")
    return value


def read_grace(message: channel.Message) -> float:
    value = message.get("grace")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e6:
        raise channel.LinkError("grace is not a number of seconds")
    return float(value)


def tell_death_in_background(run_dir: str, why: str) -> threading.Thread:
    thread = threading.Thread(target=tell_death, args=(run_dir, why), daemon=True)
    thread.start()
    return thread


def tell_death(run_dir: str, why: str, times: channel.LinkTimes = channel.LinkTimes()) -> bool:  # noqa: B008
    """Report to a run's coordinator, as this node's agent, that its shim is gone; return True if it took that.

    It would else wait for the shim to come back for as long as for a node that is cut off.
    """
    try:
        spec = read_spec(os.path.join(run_dir, "spec.json"))
        with open(os.path.join(run_dir, ENDPOINT_FILE), encoding="ascii") as file:
            address, port = json.load(file)
        endpoint = (str(address), int(port))
    except (OSError, ValueError, TypeError):
        return False
    for attempt in range(DEATH_NOTICE_TRIES):
        if attempt:
            time.sleep(times.retry)
        with contextlib.suppress(OSError, channel.LinkError):
            _tell_death_once(endpoint, spec, why, times)
            return True
    return False


def _tell_death_once(
    endpoint: tuple[str, int], spec: RunSpec, why: str, times: channel.LinkTimes
) -> None:
    with socket.create_connection(endpoint, timeout=times.connect) as sock:
        sock.settimeout(times.handshake)
        with sock.makefile("rb") as heard:
            nonce = channel.read_greeting(_read_line(heard))
            proof = channel.SecretProof(
                spec.secret, spec.run, spec.node_index, nonce, channel.fresh_nonce()
            )
            sock.sendall(channel.introduce(proof) + b"\n")
            channel.check_admission(_read_line(heard), proof)
            message: channel.Message = {"op": SHIM_GONE, "why": why[:MAX_WHY_CHARS]}
            sock.sendall(channel.seal(proof.key("client"), 1, message) + b"\n")
            while heard.read1(channel.MAX_HELLO_BYTES):
                pass


def _read_line(heard: BufferedReader) -> bytes:
    line = heard.readline(channel.MAX_HELLO_BYTES)
    if not line.endswith(b"\n"):
        raise channel.LinkError("the connection was closed")
    return line[:-1]
