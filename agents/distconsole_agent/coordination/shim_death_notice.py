"""What a node's agent tells the run's coordinator when the node's shim has died without a word.

The coordinator would else wait for the shim to come back for as long as for a node that is cut off.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from io import BufferedReader

from distconsole_agent.contract.runspec import RunSpec, SpecError, read_spec
from distconsole_agent.coordination.channel import (
    MAX_HELLO_BYTES,
    LinkError,
    LinkTimes,
    Proof,
    check_admission,
    fresh_nonce,
    introduce,
    read_greeting,
    seal,
)
from distconsole_agent.coordination.link import MAX_WHY_CHARS, SHIM_GONE
from distconsole_agent.supervisor.runlog import ENDPOINT_FILE

TRIES = 10


def tell_in_background(run_dir: str, why: str) -> threading.Thread:
    """Tell it from a thread, which ends by itself; return that thread."""
    thread = threading.Thread(
        target=tell, args=(run_dir, why), daemon=True, name="shim death notice"
    )
    thread.start()
    return thread


def tell(run_dir: str, why: str, times: LinkTimes = LinkTimes()) -> bool:  # noqa: B008
    """Tell the coordinator that this node's shim is gone; return whether it took that."""
    try:
        spec = read_spec(os.path.join(run_dir, "spec.json"))
        with open(os.path.join(run_dir, ENDPOINT_FILE), encoding="ascii") as file:
            address, port = json.load(file)
        endpoint = (str(address), int(port))
    except (OSError, ValueError, TypeError, SpecError):
        return False
    for attempt in range(TRIES):
        if attempt:
            time.sleep(times.retry)
        with contextlib.suppress(OSError, LinkError):
            _tell_once(endpoint, spec, why, times)
            return True
    return False


def _tell_once(endpoint: tuple[str, int], spec: RunSpec, why: str, times: LinkTimes) -> None:
    """Tell it over one connection, which the coordinator closes once it has taken it."""
    with socket.create_connection(endpoint, timeout=times.connect) as sock:
        sock.settimeout(times.handshake)
        with sock.makefile("rb") as heard:
            nonce = read_greeting(_line(heard))
            proof = Proof(spec.secret, spec.run, spec.node_index, nonce, fresh_nonce())
            sock.sendall(introduce(proof) + b"\n")
            check_admission(_line(heard), proof)
            message = {"op": SHIM_GONE, "why": why[:MAX_WHY_CHARS]}
            sock.sendall(seal(proof.key("client"), 1, message) + b"\n")
            while heard.read1(MAX_HELLO_BYTES):
                pass


def _line(heard: BufferedReader) -> bytes:
    line = heard.readline(MAX_HELLO_BYTES)
    if not line.endswith(b"\n"):
        raise LinkError("the connection was closed")
    return line[:-1]
