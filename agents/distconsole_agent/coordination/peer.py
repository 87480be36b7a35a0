"""A node's line to the coordinator on node 0: connects, proves itself, measures the clock's offset.

It starts and ends no process; a coordinator that stays away too long is judged like a lost node.
"""

from __future__ import annotations

import errno
import socket
from typing import Callable

from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.coordination import blame, channel
from distconsole_agent.coordination.blame import Failure, RunVerdict, StopRequest
from distconsole_agent.coordination.conversation import NodeConversation, Supervision
from distconsole_agent.coordination.link import (
    OUTLIVED,
    LinkEvents,
    read_grace,
    read_integer,
    read_message,
)
from distconsole_agent.coordination.restarts import Restart
from distconsole_agent.coordination.whose import ASK, answer_of
from distconsole_agent.supervisor import notes
from distconsole_agent.system import steady
from distconsole_agent.system.loop import Loop, Timer

CLOCK_PINGS = 8
"""Measurements of which the one with the shortest round trip counts, as in NTP (RFC 5905)."""


class Peer:
    """Holds the connection to the coordinator at ``endpoint`` (address and port)."""

    def __init__(
        self,
        loop: Loop,
        spec: RunSpec,
        endpoint: tuple[str, int],
        events: LinkEvents,
        times: channel.LinkTimes = channel.LinkTimes(),  # noqa: B008 - a NamedTuple of constants
        now_ns: Callable[[], int] = steady.now_ns,
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._endpoint = endpoint
        self._events = events
        self._times = times
        self._now_ns = now_ns
        self._conversation = NodeConversation(loop, times, self._heard, self._cut)
        self._supervision = Supervision(times, events.note)
        self._meeting: tuple[channel.Wire, channel.SecretProof | None] | None = None
        self._attempt_timer: Timer | None = None
        self._clock_timer: Timer | None = None
        self._tick_timer: Timer | None = None
        self._pings_left = 0
        # No verdict is fair before this clock is known, so "ended" waits for a measurement.
        self._measured = False
        self._best: tuple[int, int] | None = None
        self._restart = 0
        self._failures: list[Failure] = []
        self._stops: list[StopRequest] = []
        self._verdict: RunVerdict | None = None
        self._cut_ns: int | None = None
        self._refused_since: float | None = None
        self._why_alone = ""
        self._alone_ns = 0
        self._alone = False
        self._has_ended = False
        self._finished = False

    def begin(self) -> None:
        self._conversation.unlinked_since = self._loop.clock()
        self._tick_timer = self._loop.call_later(self._times.heartbeat, self._tick)
        self._connect()

    def failed(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._post({"op": "failed", **failure.as_json()})

    def stopping(self, stop: StopRequest, grace_seconds: float) -> None:
        self._look_before(stop.t_ns)
        self._stops.append(stop)
        message = {"op": "stopping", "reason": stop.reason, "t_ns": stop.t_ns}
        self._post({**message, "grace": grace_seconds})

    def idle(self) -> None:
        """Report that no rank is left here, though the engine that started them may run."""
        self._post({"op": "idle"})

    def command_ended(self, name: str, exit_code: int) -> None:
        self._post({"op": "command_ended", "name": name, "exit_code": exit_code})

    def outlived(self, failure: Failure) -> None:
        """Tell that a rank of this node failed by itself, which need not end the run."""
        self._conversation.post({"op": OUTLIVED, **failure.as_json()})

    def ended(self) -> None:
        """Tell that nothing of the attempt is left here; its clock is measured once more if it matters."""
        self._has_ended = True
        if self._failures or self._stops:
            self._measured = False
            self._measure_clock()
        if self._measured:
            self._post({"op": "ended"})
        self._conclude_alone()
        self._part()

    def _post(self, message: channel.Message) -> None:
        self._conversation.post({**message, "restart": self._restart})

    def close(self) -> None:
        for timer in (self._attempt_timer, self._clock_timer, self._tick_timer):
            if timer is not None:
                timer.cancel()
        self._drop_attempt()
        self._conversation.close()

    # Connecting

    def _connect(self) -> None:
        self._drop_attempt()
        if self._alone or self._finished:
            return
        self._attempt_timer = self._loop.call_later(self._times.connect, self._retry)
        try:
            family, kind, proto, _, where = socket.getaddrinfo(
                *self._endpoint, type=socket.SOCK_STREAM
            )[0]
            sock = socket.socket(family, kind, proto)
            sock.setblocking(False)
            number = sock.connect_ex(where)
        except OSError:
            self._retry()
            return
        if number in (0, errno.EINPROGRESS):
            self._meeting = (channel.Wire(self._loop, sock, self._meet), None)
        else:
            sock.close()
            self._not_connected(number)

    def _not_connected(self, number: int | None) -> None:
        """Try again, unless the host of a coordinator that was linked refuses its port for long."""
        if number != errno.ECONNREFUSED or self._cut_ns is None:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = self._loop.clock()
        elif self._loop.clock() - self._refused_since >= self._times.refused:
            self._go_alone(blame.SHIM_GONE)
            return
        self._retry()

    def _retry(self) -> None:
        self._drop_attempt()
        self._attempt_timer = self._loop.call_later(self._times.retry, self._connect)

    def _drop_attempt(self) -> None:
        if self._attempt_timer is not None:
            self._attempt_timer.cancel()
            self._attempt_timer = None
        if self._meeting is not None:
            self._meeting[0].close()
            self._meeting = None

    def _meet(self) -> None:
        assert self._meeting is not None
        wire = self._meeting[0]
        met = False
        try:
            lines = wire.lines()
            while lines and not met:
                met = self._shake(wire, lines.pop(0))
        except channel.LinkError as error:
            if isinstance(error.__cause__, OSError):
                self._not_connected(error.__cause__.errno)
            else:
                self._cut()
            return
        if met:
            self._conversation.receive(lines)

    def _shake(self, wire: channel.Wire, line: bytes) -> bool:
        """Take one line of the handshake; return True if it was the last."""
        assert self._meeting is not None
        proof = self._meeting[1]
        if proof is None:
            self._refused_since = None
            spec = self._spec
            server_nonce = channel.read_greeting(line)
            proof = channel.SecretProof(
                spec.secret, spec.run, spec.node_index, server_nonce, channel.fresh_nonce()
            )
            self._meeting = (wire, proof)
            wire.write(channel.introduce(proof))
            return False
        channel.check_admission(line, proof)
        self._meeting = None
        self._drop_attempt()
        self._cut_ns = None
        wire.hand_to(self._conversation.read)
        self._conversation.attach(
            channel.LinkSession(wire, proof.key("client"), proof.key("server"))
        )
        self._measure_clock()
        return True

    def _look_before(self, t_ns: int) -> None:
        """Read the socket empty: a coordinator that has hung up did so before ``t_ns``."""
        for _ in range(2):  # the last message, and the end
            if self._meeting is not None:
                self._meet()
            else:
                self._conversation.read()
        if self._cut_ns is not None:
            self._cut_ns = min(self._cut_ns, t_ns - 1)

    def _cut(self) -> None:
        self._cut_ns = self._now_ns()
        if not self._finished:
            self._retry()

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(self._times.heartbeat, self._tick)
        self._conversation.beat()
        seconds = self._conversation.quiet_seconds
        if self._alone or self._verdict is not None:
            return
        first = self._spec.nodes[0].host
        self._supervision.look({first: seconds})
        if seconds is not None and seconds > self._times.give_up:
            self._go_alone("")

    # Messages of the coordinator

    def _heard(self, message: channel.Message) -> None:
        op = message.get("op")
        if op == "pong":
            self._take_pong(read_integer(message, "t0"), read_integer(message, "t1"))
        elif op == "stop":
            self._events.stop(str(message.get("reason")), read_grace(message))
        elif op == "command":
            self._events.command(str(message.get("name")), str(message.get("command")))
        elif op == "node_lost":
            self._events.node_lost(read_integer(message, "node"))
        elif op == ASK:
            self._conversation.post(answer_of(message))
        elif op == "again":
            self._take_again(read_message(Restart, {**message, "number": message.get("restart")}))
        elif op == "verdict":
            self._take_verdict(read_message(RunVerdict, message))
        else:
            raise channel.LinkError(f"an unknown message: {op!r}")

    def _take_verdict(self, verdict: RunVerdict) -> None:
        if self._verdict is None:
            self._verdict = verdict
            self._events.verdict(verdict)
            self._part()

    def _take_again(self, restart: Restart) -> None:
        if not self._has_ended or self._verdict is not None:
            raise channel.LinkError("another attempt, while this node is not done with its own")
        self._restart = restart.number
        self._failures, self._has_ended = [], False
        self._events.again(restart)

    def _part(self) -> None:
        if self._verdict is not None and self._has_ended and not self._finished:
            self._finished = True
            self._events.finished()

    # A coordinator that is gone

    def _go_alone(self, why: str) -> None:
        if self._alone or self._verdict is not None:
            return
        self._alone = True
        self._why_alone = why
        # A shim that is gone was gone when it hung up: a stop asked after that came too late.
        self._alone_ns = self._cut_ns if why and self._cut_ns is not None else self._now_ns()
        self._drop_attempt()
        host, by, seconds = self._spec.nodes[0].host, self._spec.host, self._times.give_up
        note = notes.node_lost(host, by, "the run was stopped", seconds, why)
        if self._spec.may_lose_nodes and not why:
            note = notes.cut_off(by, host, seconds)
        self._events.note(note)
        self._events.stop(blame.FAILURE, self._spec.failure_grace)
        self._conclude_alone()

    def _conclude_alone(self) -> None:
        if self._alone and self._has_ended:
            lost = [blame.NodeLost(0, self._alone_ns, self._why_alone)]
            evidence = blame.Evidence(self._failures, self._stops, lost, {})
            verdict = blame.determine_verdict(evidence, self._spec.nodes)
            if self._spec.may_lose_nodes and not self._why_alone and verdict.state == "failed":
                # The others may go on: only they know how the run ends.
                verdict = verdict._replace(state=blame.LOST)
            self._take_verdict(verdict)

    # Clocks

    def _measure_clock(self) -> None:
        if self._clock_timer is not None:
            self._clock_timer.cancel()
        self._clock_timer = self._loop.call_later(self._times.clock, self._measure_clock)
        self._pings_left, self._best = CLOCK_PINGS, None
        self._ping()

    def _ping(self) -> None:
        self._pings_left -= 1
        self._conversation.tell({"op": "ping", "t0": self._now_ns()})

    def _take_pong(self, sent_ns: int, there_ns: int) -> None:
        now_ns = self._now_ns()
        round_trip_ns = now_ns - sent_ns
        offset_ns = there_ns - (sent_ns + round_trip_ns // 2)
        if round_trip_ns >= 0 and (self._best is None or round_trip_ns < self._best[0]):
            self._best = (round_trip_ns, offset_ns)
            self._conversation.tell({"op": "clock", "offset_ns": offset_ns})
        if self._pings_left > 0:
            self._ping()
        elif not self._measured:
            self._measured = True
            if self._has_ended:
                self._post({"op": "ended"})
