"""Collects the failures of a run, stops its nodes and gives the verdict; in the shim of node 0.

It listens on the training address for the life of the run, for shims that know the run's secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Callable

from distconsole_agent.contract import records
from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.coordination import blame
from distconsole_agent.coordination.blame import Failure, RunVerdict, StopRequest
from distconsole_agent.coordination.channel import (
    Admission,
    LinkError,
    LinkSession,
    LinkTimes,
    Message,
    SecretProof,
    Wire,
)
from distconsole_agent.coordination.conversation import Member, NodeConversation, Supervision
from distconsole_agent.coordination.link import (
    MAX_WHY_CHARS,
    OUTLIVED,
    SHIM_GONE,
    LinkEvents,
    read_failure_message,
    read_grace,
    read_integer,
    read_stop_message,
)
from distconsole_agent.coordination.restarts import Restart, Restarts
from distconsole_agent.coordination.whose import ANSWER, Whose
from distconsole_agent.supervisor import notes
from distconsole_agent.system import steady
from distconsole_agent.system.loop import Loop, Timer

OF_ATTEMPT = ("failed", "idle", "command_ended", "ended")
"""Messages that count only in the attempt in which they were sent; a ``final`` one is about the run."""


class Coordinator:
    """Serves the run's other nodes on a free port of its node's address; may raise OSError."""

    def __init__(
        self,
        loop: Loop,
        spec: RunSpec,
        events: LinkEvents,
        times: LinkTimes = LinkTimes(),  # noqa: B008 - a NamedTuple of constants
        now_ns: Callable[[], int] = steady.now_ns,
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._events = events
        self._times = times
        self._now_ns = now_ns
        self._failures: list[Failure] = []
        self._stops: list[StopRequest] = []
        self._lost: list[blame.NodeLost] = []
        self._outlived: list[blame.NodeLost] = []
        self._offsets_ns: dict[int, int] = {}
        self._verdict: RunVerdict | None = None
        self._farewell_at: float | None = None
        self._stop_grace: float | None = None
        self._begun = False
        self._restarts = Restarts(spec.max_restarts, loop.clock)
        self._restart = 0
        self._pause: Timer | None = None
        self._nodes = [
            Member(
                node, NodeConversation(loop, times, partial(self._heard, index)) if index else None
            )
            for index, node in enumerate(spec.nodes)
        ]
        self.whose = Whose(self._nodes)
        self._supervision = Supervision(times, events.note)
        self._timers: list[Timer] = []
        self._door: Admission | None = None
        if len(spec.nodes) > 1:
            self._door = Admission(
                loop,
                spec,
                times,
                lambda index: 0 < index < len(self._nodes) and not self._nodes[index].lost,
                self._admit,
            )
            self._tick_timer = loop.call_later(times.heartbeat, self._tick)

    @property
    def endpoint(self) -> tuple[str, int] | None:
        return self._door.endpoint if self._door is not None else None

    @property
    def has_outlived(self) -> bool:
        return bool(self._outlived)

    @property
    def quiet_seconds(self) -> dict[str, float]:
        """Return each host that answers -> its longest silence in seconds, in this attempt."""
        links = [(node.spec.host, node.conversation) for node in self._nodes]
        return {host: link.longest_quiet for host, link in links if link and link.linked}

    def begin(self) -> None:
        """Note that the ranks start: from now on a node without a connection may be lost."""
        self._begun = True
        self._restarts.begin()
        for node in self._nodes:
            if node.conversation is None:
                continue
            node.conversation.begin_quiet()
            if not node.conversation.linked:
                node.conversation.unlinked_since = self._loop.clock() + self._times.silent

    def failed(self, failure: Failure) -> None:
        """Note that a rank failed by itself in the present attempt, and stop the others."""
        self._restarts.failed()
        self._failures.append(failure)
        self._stop_all(blame.FAILURE, self._spec.failure_grace, but=failure.node)
        if self._pause is not None:
            self._conclude()

    def stopping(self, stop: StopRequest, grace_seconds: float) -> None:
        """Note that a node was asked to stop, or to stop faster, and stop the others."""
        self._stops.append(stop)
        self._stop_all(stop.reason, grace_seconds, but=stop.node)
        if self._pause is not None:
            self._conclude()

    def ended(self) -> None:
        """Note that nothing of the attempt is left on this node."""
        self._ended(0)

    def command(self, node: int, name: str, command: str) -> None:
        """Have another node run a shell command, over its authenticated connection."""
        conversation = self._nodes[node].conversation
        if conversation is not None:
            conversation.post({"op": "command", "name": name, "command": command})

    def give_up(self, failures: Sequence[Failure]) -> None:
        """End a run that was to outlive failures or losses of nodes, and cannot."""
        self._restarts.failed()
        self._failures.extend(failures)
        if not failures:
            self._lost, self._outlived = [*self._lost, *self._outlived], []
        self._stop_all(blame.FAILURE, self._spec.failure_grace, but=-1)

    def blame_host(self, host: str, error: str) -> None:
        """End the attempt by a host's failure that none of its ranks can report; its first rank stands for it."""
        index, spec = next(
            (index, node.spec) for index, node in enumerate(self._nodes) if node.spec.host == host
        )
        t_ns = self._now_ns() - self._offsets_ns.get(index, 0)
        rank = (spec.ranks or (0,))[0]
        self.give_up([Failure(index, rank, 0, t_ns, 1, None, error, "")])

    def idle(self, node: int) -> None:
        """Note that a stopping node has no rank left; once none has, have all kill the rest."""
        self._nodes[node].idle = True
        if all(each.idle or each.ended or each.lost for each in self._nodes):
            self._stop_all(blame.FAILURE, 0.0, but=-1)

    def close(self) -> None:
        if self._door is not None:
            self._door.close()
            self._tick_timer.cancel()
        self._cancel_timers()
        for node in self._nodes:
            if node.conversation is not None:
                node.conversation.close()

    # Connections

    def _admit(self, wire: Wire, proof: SecretProof, lines: list[bytes]) -> None:
        conversation = self._nodes[proof.node].conversation
        assert conversation is not None
        self.whose.met(proof.node, wire.peer_address)

        def read() -> None:
            conversation.read()
            self._finish()

        wire.hand_to(read)
        conversation.attach(LinkSession(wire, proof.key("server"), proof.key("client")))
        conversation.receive(lines)

    # Messages of the nodes

    def _heard(self, node: int, message: Message) -> None:
        op = message.get("op")
        of_attempt = op in OF_ATTEMPT and not message.get("final")
        if of_attempt and read_integer(message, "restart") != self._restart:
            return
        if op == "ping":
            pong = {"op": "pong", "t0": read_integer(message, "t0"), "t1": self._now_ns()}
            conversation = self._nodes[node].conversation
            assert conversation is not None
            conversation.tell(pong)
        elif op == "clock":
            self._offsets_ns[node] = read_integer(message, "offset_ns")
        elif op == "failed":
            self.failed(read_failure_message(message, node, self._spec))
        elif op == "stopping":
            self.stopping(read_stop_message(message, node), read_grace(message))
        elif op in ("idle", "command_ended", OUTLIVED):
            self._heard_below_engine(node, message)
        elif op == "ended":
            self._ended(node)
        elif op == ANSWER:
            self.whose.heard(node, message)
        elif op == SHIM_GONE:
            self._shim_gone(node, str(message.get("why") or blame.SHIM_GONE)[:MAX_WHY_CHARS])
        else:
            raise LinkError(f"an unknown message: {op!r}")

    def _heard_below_engine(self, node: int, message: Message) -> None:
        if message["op"] == "idle":
            self.idle(node)
        elif message["op"] == OUTLIVED:
            self._events.outlived(read_failure_message(message, node, self._spec))
        else:
            name, exit_code = str(message.get("name")), read_integer(message, "exit_code")
            self._events.command_ended(node, name, exit_code)

    # The run's end

    def _stop_all(self, reason: str, grace_seconds: float, but: int) -> None:
        if self._stop_grace is not None and grace_seconds >= self._stop_grace:
            return
        self._stop_grace = grace_seconds
        wait = grace_seconds + self._times.settle
        self._timers.append(self._loop.call_later(wait, self._settle))
        message = {"op": "stop", "reason": reason, "grace": grace_seconds}
        for index, node in enumerate(self._nodes):
            if index == but or node.lost:
                continue
            node.post(message)
            if node.conversation is None:
                self._events.stop(reason, grace_seconds)

    def _ended(self, index: int) -> None:
        self._nodes[index].ended = True
        self._conclude()

    def _settle(self) -> None:
        """Wait no longer: nodes without a link are lost, linked ones end later than the verdict."""
        if self._verdict is not None:
            return
        away = [
            index
            for index, node in enumerate(self._nodes)
            if node.conversation is not None and not node.conversation.linked and not node.ended
        ]
        if away and self._spec.max_restarts and not self._why_not_again(complete=True):
            # The ranks restart once these nodes are back. ``_tick`` gives up a node after --lost-after, as in a run.
            self._timers.append(self._loop.call_later(self._times.settle, self._settle))
            return
        for index in away:
            self._lose(index)
        self._conclude(complete=False)

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(self._times.heartbeat, self._tick)
        missed: dict[int, float | None] = {}
        for index, node in enumerate(self._nodes):
            if node.conversation is None or node.lost:
                continue
            node.conversation.beat()
            if self._begun and self._is_needed(node):
                missed[index] = node.conversation.quiet_seconds
        self._supervision.look({self._nodes[i].spec.host: s for i, s in missed.items()})
        for index, seconds in missed.items():
            if seconds is not None and seconds > self._times.give_up:
                self._lose(index)
        self._finish()

    def _shim_gone(self, index: int, why: str) -> None:
        """Count a node as lost: its agent reports that its shim is gone."""
        node = self._nodes[index]
        if node.conversation is not None:
            node.conversation.cut()
        if self._is_needed(node) and not node.lost:
            self._lose(index, why)

    def _is_needed(self, node: Member) -> bool:
        """Return True if a node has processes to end, or is about to start again."""
        return not node.ended or self._pause is not None

    def _lose(self, index: int, why: str = "") -> None:
        self._nodes[index].lost = True
        self.whose.lost(index)
        lost = blame.NodeLost(index, self._now_ns(), why)
        left = sum(not node.lost for node in self._nodes)
        if self._stop_grace is None and left >= self._spec.fewest_nodes:
            self._outlive(lost, left)
        else:
            self._lost.append(lost)
            self._note_loss(lost, "fail", "the run was stopped")
            self._stop_all(blame.FAILURE, self._spec.failure_grace, but=index)
        self._conclude()

    def _outlive(self, lost: blame.NodeLost, left: int) -> None:
        self._outlived.append(lost)
        self._note_loss(lost, "warn", f"the run goes on with {left} of {len(self._nodes)} nodes")
        for node in self._nodes:
            node.post({"op": "node_lost", "node": lost.node})
        self._events.node_lost(lost.node)

    def _note_loss(self, lost: blame.NodeLost, severity: str, then: str) -> None:
        node = self._nodes[lost.node]
        quiet = round((node.conversation and node.conversation.quiet_seconds) or 0.0, 1)
        seconds = min(self._times.give_up, quiet)
        note = notes.node_lost(node.spec.host, self._spec.host, then, seconds, lost.why)
        self._events.note(note._replace(severity=severity))

    def _conclude(self, complete: bool = True) -> None:
        if self._verdict is not None:
            self._finish()
            return
        if complete and not all(node.ended or node.lost for node in self._nodes):
            return
        if self._pause is not None and not self._why_not_again(complete=True):
            return
        evidence = blame.Evidence(
            self._failures, self._stops, self._lost, self._offsets_ns, self._outlived
        )
        verdict = blame.determine_verdict(evidence, self._spec.nodes)
        if not self._restarts_after(verdict, complete=complete):
            self._give_verdict(verdict)

    # Another attempt

    def _restarts_after(self, failed: RunVerdict, *, complete: bool) -> bool:
        if failed.state != "failed" or not self._spec.max_restarts:
            return False
        restart, why_not = None, self._why_not_again(complete)
        if not why_not:
            try:
                restart = self._restarts.next(*self._events.renew())
            except OSError as error:
                why_not = f"its ranks have no port to meet at: {error.strerror or error}"
        if restart is None:
            self._events.note(notes.no_restart(why_not))
            return False
        self._cancel_timers()
        seconds = self._restarts.pause_seconds()
        self._pause = self._loop.call_later(seconds, partial(self._again, restart))
        self._events.restart(restart, failed, seconds)
        return True

    def _why_not_again(self, complete: bool) -> str:
        """Return why the ranks cannot be restarted; empty if they can."""
        gone = [node.spec.host for node in self._nodes if node.lost]
        busy = [node.spec.host for node in self._nodes if not (complete or node.ended)]
        if self._stops:
            return "the run was asked to stop"
        return self._restarts.why_not(self._failures, gone, busy)

    def _again(self, restart: Restart) -> None:
        self._pause = None
        self._stop_grace = None
        self._failures = []
        self._restart = restart.number
        self._restarts.begin()
        for node in self._nodes:
            node.begin_again()
            node.post({"op": "again", **restart.as_json(), "port": restart.port})
        self._events.again(restart)

    # The verdict

    def _give_verdict(self, verdict: RunVerdict) -> None:
        self._cancel_timers()
        self._verdict = verdict
        self._farewell_at = self._loop.clock() + self._times.farewell
        for node in self._nodes:
            node.post({"op": "verdict", **records.write(self._verdict)})
        self._events.verdict(self._verdict)
        self._timers.append(self._loop.call_later(self._times.farewell, self._finish))
        self._finish()

    def _cancel_timers(self) -> None:
        """Cancel all timers of the attempt that is over."""
        for timer in (*self._timers, *([self._pause] if self._pause is not None else [])):
            timer.cancel()
        self._timers, self._pause = [], None

    def _finish(self) -> None:
        """Finish once every node has the verdict, or has had its time to take it."""
        if self._verdict is None or not self._nodes[0].ended or self._farewell_at is None:
            return
        waited = self._loop.clock() >= self._farewell_at
        if waited or all(node.has_everything for node in self._nodes):
            self._farewell_at = None
            self._events.finished()
