"""Messages between a shim and the run's other nodes, as the shim sees them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from io import BufferedReader
from typing import Any, Callable, NamedTuple

from distconsole_agent.contract.runspec import RunSpec, SpecError, read_spec
from distconsole_agent.coordination.blame import (
    MAX_ERROR_CHARS,
    MAX_TRACEBACK_CHARS,
    STOP_EXIT_CODES,
    Failure,
    RunVerdict,
    Stop,
)
from distconsole_agent.coordination.channel import (
    MAX_HELLO_BYTES,
    LinkError,
    LinkTimes,
    SecretProof,
    check_admission,
    fresh_nonce,
    introduce,
    read_greeting,
    seal,
)
from distconsole_agent.coordination.restarts import Restart
from distconsole_agent.supervisor.runlog import ENDPOINT_FILE

SHIM_GONE = "shim_gone"
"""The ``op`` by which a node's agent reports the end of its shim; ``why`` if more is known."""

OUTLIVED = "outlived"
"""The ``op`` of a failure that need not end the run."""

DEATH_NOTICE_TRIES = 10
MAX_WHY_CHARS = 200
MAX_RANK = 1 << 31

NODE_LOST = "run.node_lost"
"""The ``check`` of the note on a node that is lost."""


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
    note: Callable[[dict[str, Any]], None]
    finished: Callable[[], None]
    command: Callable[[str, str], None]
    command_ended: Callable[[int, str, int], None]
    outlived: Callable[[Failure], None]
    node_lost: Callable[[int], None]
    renew: Callable[[], tuple[int, str | None]]
    restart: Callable[[Restart, RunVerdict, float], None]
    again: Callable[[Restart], None]


def read_failure_message(message: dict[str, Any], node: int, spec: RunSpec) -> Failure:
    """Return the failure in a message from ``node``, which may only report its own ranks.

    They include ranks that its processes started: of a number outside the plan; of any number if it has one process.
    """
    rank, own = read_integer(message, "rank"), spec.nodes[node].ranks
    planned = spec.ranks_are_planned and len(own) > 1
    is_of_another = planned and any(rank in each.ranks for each in spec.nodes)
    if rank not in own and (is_of_another or not 0 <= rank < MAX_RANK):
        rank = own[0] if own else 0
    signal = message.get("signal")
    return Failure(
        node,
        rank,
        read_integer(message, "pid"),
        read_integer(message, "t_ns"),
        read_integer(message, "exit_code"),
        None if signal is None else read_integer(message, "signal"),
        _text(message, "error")[:MAX_ERROR_CHARS],
        _text(message, "traceback")[-MAX_TRACEBACK_CHARS:],
        str(message.get("final") or "")[:MAX_WHY_CHARS],
    )


def read_stop_message(message: dict[str, Any], node: int) -> Stop:
    reason = _text(message, "reason")
    if reason not in STOP_EXIT_CODES:
        raise LinkError(f"a stop for no known reason: {reason!r}")
    return Stop(node, read_integer(message, "t_ns"), reason)


def read_verdict_message(message: dict[str, Any]) -> RunVerdict:
    failure: dict[str, Any] | None = message.get("first_failure")
    if failure is not None and not isinstance(failure, dict):
        raise LinkError("a verdict whose first failure is not an object")
    return RunVerdict(_text(message, "state"), read_integer(message, "exit_code"), failure)


def read_again_message(message: dict[str, Any]) -> Restart:
    checkpoint = message.get("checkpoint")
    if checkpoint is not None and (not isinstance(checkpoint, str) or "\0" in checkpoint):
        raise LinkError("a checkpoint that is not a path")
    number, of, port = (read_integer(message, key) for key in ("restart", "of", "port"))
    return Restart(number, of, port, checkpoint)


def read_integer(message: dict[str, Any], key: str) -> int:
    """Return the integer under ``key``. Raises LinkError when there is none, as all that read messages."""
    value = message.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise LinkError(f"{key} is not an integer")
    return value


def read_grace(message: dict[str, Any]) -> float:
    value = message.get("grace")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e6:
        raise LinkError("grace is not a number of seconds")
    return float(value)


def _text(message: dict[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise LinkError(f"{key} is not text")
    return value


def tell_death_in_background(run_dir: str, why: str) -> threading.Thread:
    thread = threading.Thread(target=tell_death, args=(run_dir, why), daemon=True)
    thread.start()
    return thread


def tell_death(run_dir: str, why: str, times: LinkTimes = LinkTimes()) -> bool:  # noqa: B008
    """Report to a run's coordinator, as this node's agent, that its shim is gone; return True if it took that.

    It would else wait for the shim to come back for as long as for a node that is cut off.
    """
    try:
        spec = read_spec(os.path.join(run_dir, "spec.json"))
        with open(os.path.join(run_dir, ENDPOINT_FILE), encoding="ascii") as file:
            address, port = json.load(file)
        endpoint = (str(address), int(port))
    except (OSError, ValueError, TypeError, SpecError):
        return False
    for attempt in range(DEATH_NOTICE_TRIES):
        if attempt:
            time.sleep(times.retry)
        with contextlib.suppress(OSError, LinkError):
            _tell_death_once(endpoint, spec, why, times)
            return True
    return False


def _tell_death_once(endpoint: tuple[str, int], spec: RunSpec, why: str, times: LinkTimes) -> None:
    with socket.create_connection(endpoint, timeout=times.connect) as sock:
        sock.settimeout(times.handshake)
        with sock.makefile("rb") as heard:
            nonce = read_greeting(_read_line(heard))
            proof = SecretProof(spec.secret, spec.run, spec.node_index, nonce, fresh_nonce())
            sock.sendall(introduce(proof) + b"\n")
            check_admission(_read_line(heard), proof)
            message = {"op": SHIM_GONE, "why": why[:MAX_WHY_CHARS]}
            sock.sendall(seal(proof.key("client"), 1, message) + b"\n")
            while heard.read1(MAX_HELLO_BYTES):
                pass


def _read_line(heard: BufferedReader) -> bytes:
    line = heard.readline(MAX_HELLO_BYTES)
    if not line.endswith(b"\n"):
        raise LinkError("the connection was closed")
    return line[:-1]
