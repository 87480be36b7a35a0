"""The links of one run: a coordinator and its peers over real loopback sockets, in a loop with our clock."""

from collections.abc import Callable
from typing import Any

from distconsole_agent.contract.runspec import RunSpec, parse_spec
from distconsole_agent.coordination.blame import Failure
from distconsole_agent.coordination.channel import LinkTimes, times_for
from distconsole_agent.coordination.coordinator import Coordinator
from distconsole_agent.coordination.link import LinkEvents
from distconsole_agent.coordination.peer import Peer
from distconsole_agent.system.loop import Loop
from fakes.relay import Relay

SECOND = 10**9
TIMES = times_for(40.0)


class World:
    """Nodes of one run, a network between them, and time that moves when told to."""

    def __init__(
        self,
        nodes: int = 2,
        skews_ns: tuple[int, ...] = (),
        *,
        min_nodes: int | None = None,
        max_restarts: int = 0,
        times: LinkTimes = TIMES,
    ) -> None:
        more = {"min_nodes": min_nodes, "max_restarts": max_restarts}
        self.now = 1000.0
        self.port = 4000
        self.no_port: OSError | None = None
        self.loop = Loop(clock=lambda: self.now)
        self.told: list[list[tuple[str, Any]]] = [[] for _ in range(nodes)]
        self.skews_ns = (*skews_ns, *([0] * nodes))[:nodes]
        self.coordinator = Coordinator(
            self.loop, spec(nodes, 0, **more), self._events(0), times, self._now(0)
        )
        assert self.coordinator.endpoint is not None
        self.relay = Relay(self.loop, self.coordinator.endpoint)
        self.peers = [
            Peer(
                self.loop,
                spec(nodes, i, **more),
                self.relay.endpoint,
                self._events(i),
                times,
                self._now(i),
            )
            for i in range(1, nodes)
        ]
        self.links = [self.coordinator, *self.peers]

    def renew(self) -> tuple[int, str | None]:
        """Give the next attempt a port and a checkpoint, as the first node's shim does."""
        if self.no_port is not None:
            raise self.no_port
        self.port += 1
        return self.port, "/ckpt/last.pt"

    def begin(self) -> None:
        for link in self.links:
            link.begin()

    def turn(self, seconds: float) -> None:
        """Let so much time go by, in steps that let every message arrive."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            self.settle()

    def settle(self) -> None:
        for wait_seconds in (0.0, 0.001, 0.0):
            for _ in range(10 if not wait_seconds else 1):
                self.loop.run_once(wait_seconds)

    def until(self, condition: Callable[[], Any], seconds: float = 120.0) -> float:
        """Let time go by until something is true; return how much went by."""
        began = self.now
        while not condition():
            assert self.now - began < seconds, "it never became true"
            self.turn(0.05)
        return self.now - began

    def heard(self, node: int, kind: str) -> list[Any]:
        return [what for name, what in self.told[node] if name == kind]

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.relay.close()
        self.settle()
        self.loop.close()

    def _events(self, node: int) -> LinkEvents:
        told = self.told[node]
        return LinkEvents(
            stop=lambda reason, grace: told.append(("stop", (reason, grace))),
            verdict=lambda verdict: told.append(("verdict", verdict)),
            note=lambda note: told.append(("note", note)),
            finished=lambda: told.append(("finished", None)),
            command=lambda name, command: told.append(("command", (name, command))),
            command_ended=lambda *ended: told.append(("command_ended", ended)),
            outlived=lambda failure: told.append(("outlived", failure)),
            node_lost=lambda node: told.append(("node_lost", node)),
            renew=self.renew,
            restart=lambda *what: told.append(("restart", what)),
            again=lambda restart: told.append(("again", restart)),
        )

    def _now(self, node: int) -> Callable[[], int]:
        return lambda: int(self.now * SECOND) + self.skews_ns[node]


def spec(
    nodes: int, index: int, secret: str = "ab" * 32, run: str = "r1", **more: object
) -> RunSpec:
    return parse_spec({**raw_spec(nodes, index, secret, run), **more})


def raw_spec(
    nodes: int, index: int, secret: str = "ab" * 32, run: str = "r1"
) -> dict[str, object]:
    return {
        "run": run,
        "secret": secret,
        "node_index": index,
        "nodes": [
            {"host": f"host{i}", "address": "127.0.0.1", "ranks": [2 * i, 2 * i + 1]}
            for i in range(nodes)
        ],
        "ranks": [],
        "grace": 10.0,
    }


def failure(node: int, t_ns: int, error: str = "ValueError: boom") -> Failure:
    return Failure(node, 2 * node, 77, t_ns, 1, None, error, "")
