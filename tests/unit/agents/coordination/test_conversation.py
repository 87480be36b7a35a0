"""What must arrive does, once and in order, over as many connections as it takes."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from distconsole_agent.coordination.channel import LinkError, LinkSession, LinkTimes, Wire
from distconsole_agent.coordination.conversation import NodeConversation
from distconsole_agent.system.loop import Loop

Heard = list[dict[str, Any]]


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def conversation(loop: Loop, heard: Heard, cuts: list[bool]) -> NodeConversation:
    return NodeConversation(loop, LinkTimes(), heard.append, lambda: cuts.append(True))


def link(loop: Loop, left: NodeConversation, right: NodeConversation) -> Callable[[], None]:
    """Link both; return what has each take what the other has said."""
    wires = [Wire(loop, sock, lambda: None) for sock in socket.socketpair()]
    left.attach(LinkSession(wires[0], b"k1", b"k2"))
    right.attach(LinkSession(wires[1], b"k2", b"k1"))

    def exchange() -> None:
        for _ in range(3):
            left.receive(wires[0].lines())
            right.receive(wires[1].lines())

    return exchange


def test_what_a_lost_connection_swallowed_is_said_again_and_taken_once(loop: Loop) -> None:
    heard: Heard = []
    left, right = conversation(loop, [], []), conversation(loop, heard, [])
    exchange = link(loop, left, right)
    left.post({"op": "a"})
    exchange()
    assert left.settled
    left.post({"op": "b"})
    left.cut()
    right.cut()
    left.post({"op": "c"})
    assert not left.settled
    link(loop, left, right)()
    assert [message["op"] for message in heard] == ["a", "b", "c"]
    assert left.settled
    left.close()
    right.close()


@pytest.mark.parametrize("number", [9, "2", None])
def test_a_connection_on_which_a_message_is_missing_is_cut(loop: Loop, number: object) -> None:
    heard: Heard = []
    cuts: list[bool] = []
    left, right = conversation(loop, [], []), conversation(loop, heard, cuts)
    exchange = link(loop, left, right)
    exchange()
    left.tell({"op": "a", "n": number})
    with suppress(LinkError):  # it was cut
        exchange()
    assert (heard, cuts) == ([], [True])
    left.close()


def test_the_longest_silence_of_all_is_known(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(loop, "clock", lambda: now[0])
    left, right = conversation(loop, [], []), conversation(loop, [], [])
    now[0] += 50  # before the first connection nobody is missed
    exchange = link(loop, left, right)
    told = []
    for quiet, reconnect in ((1, False), (5, False), (2, True), (7, True)):
        now[0] += quiet
        exchange = link(loop, left, right) if reconnect else exchange
        right.tell({"op": "beat"})
        exchange()
        told.append(left.longest_quiet)
    assert told == [1, 5, 5, 7]
    left.close()
    right.close()
