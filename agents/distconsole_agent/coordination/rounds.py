"""The rounds of a job below an elastic torchrun: ends the ranks of one that has lost a node.

torchrun begins a round again, without the node that is gone, when its ranks fail. Ranks that wait in a
collective for a node without power or network wait as long as TCP and the collective's time limit let them.
"""

from __future__ import annotations

import os
import signal

from distconsole_agent.contract.runspec import TORCHRUN, RunSpec
from distconsole_agent.coordination.blame import NODE_LOST, Failure
from distconsole_agent.coordination.link import FAILURE_GRACE_SECONDS
from distconsole_agent.supervisor.proctree import Stat, descendants, read_environ, send
from distconsole_agent.system.loop import Loop

ROUND_NODES = b"GROUP_WORLD_SIZE"
"""torchrun's variable that says over how many nodes a rank's round goes."""


class Rounds:
    """What a lost node means for the ranks of this one."""

    def __init__(self, loop: Loop, spec: RunSpec) -> None:
        self._loop = loop
        self._spec = spec
        self._left = len(spec.nodes)
        self._ended = False

    def node_lost(self, _node: int) -> None:
        """End the ranks whose round goes over more nodes than are left: SIGTERM, then SIGKILL."""
        self._left -= 1
        if self._spec.launcher != TORCHRUN:
            return
        doomed = ranks_over(os.getpid(), self._left)
        self._ended = self._ended or bool(doomed)
        for pid, stat in doomed.items():
            send(pid, stat, signal.SIGTERM)
            send(pid, stat, signal.SIGCONT)
        grace = min(self._spec.grace, FAILURE_GRACE_SECONDS)
        self._loop.call_later(grace, lambda: _kill(doomed))

    def explained(self, failure: Failure) -> Failure:
        """Return ``failure``, of which it is said if it is an end that ``node_lost`` made."""
        if self._ended and failure.signal in (signal.SIGTERM, signal.SIGKILL):
            return failure._replace(error=f"{failure.error}{NODE_LOST}")
        return failure


def ranks_over(root: int, nodes: int) -> dict[int, Stat]:
    """Return the processes below ``root`` that are of a round over more than ``nodes`` nodes."""
    return {
        pid: stat
        for pid, stat in descendants(root).items()
        if (value := read_environ(pid).get(ROUND_NODES, b"")).isdigit() and int(value) > nodes
    }


def _kill(processes: dict[int, Stat]) -> None:
    for pid, stat in processes.items():
        send(pid, stat, signal.SIGKILL)
