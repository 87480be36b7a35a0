"""Sealed frames: nothing that was not said by the other side, in this order, is believed."""

import socket
from collections.abc import Iterator

import pytest

from distconsole_agent.coordination.blame import MAX_ERROR_CHARS, MAX_TRACEBACK_CHARS, Failure
from distconsole_agent.coordination.channel import (
    MAX_FRAME_BYTES,
    LinkError,
    LinkSession,
    SecretProof,
    Wire,
    check_admission,
    check_introduction,
    fresh_nonce,
    greet,
    introduce,
    read_greeting,
)
from distconsole_agent.coordination.link import MAX_RANK, MAX_WHY_CHARS, read_failure_message
from distconsole_agent.system.loop import Loop
from fakes.links import spec

SECRET = bytes(range(32))


@pytest.fixture
def sessions() -> Iterator[tuple[LinkSession, LinkSession]]:
    loop = Loop()
    left, right = socket.socketpair()
    wires = [Wire(loop, sock, lambda: None) for sock in (left, right)]
    yield LinkSession(wires[0], b"k1", b"k2"), LinkSession(wires[1], b"k2", b"k1")
    for wire in wires:
        wire.close()
    loop.close()


@pytest.mark.parametrize(
    "forge",
    [
        lambda lines: [lines[0].replace(b"one", b"ten")],
        lambda lines: [lines[1]],
        lambda lines: [lines[0], lines[0]],
        lambda lines: [b"0" * 64 + b" {}"],
        lambda lines: [b'{"op": "stop"}'],
        lambda lines: [b""],
        lambda lines: [b"\xff\xfe \xff"],
    ],
    ids=["changed", "dropped", "repeated", "made up", "bare", "empty", "bytes"],
)
def test_a_frame_that_was_tampered_with_ends_the_session(sessions, forge) -> None:  # type: ignore[no-untyped-def]
    left, right = sessions
    left.send({"op": "one"})
    left.send({"op": "two"})
    forged = forge(right.wire.lines())
    with pytest.raises(LinkError):
        [right.open(line) for line in forged]


def test_a_frame_cannot_be_reflected(sessions: tuple[LinkSession, LinkSession]) -> None:
    left, right = sessions
    left.send({"op": "one"})
    with pytest.raises(LinkError):
        left.open(right.wire.lines()[0])


def test_a_message_that_is_too_long_is_not_sent(sessions: tuple[LinkSession, LinkSession]) -> None:
    with pytest.raises(LinkError):
        sessions[0].send({"text": "x" * MAX_FRAME_BYTES})


def test_the_longest_failure_fits_into_a_frame(sessions: tuple[LinkSession, LinkSession]) -> None:
    planless = spec(
        2, 0, engine_ranks=False
    )  # a rank's node is then known from its own word alone
    failure = Failure(
        1,
        MAX_RANK - 1,
        2**22,
        2**63 - 1,
        255,
        64,
        "\U0001f600" * MAX_ERROR_CHARS,
        "\U0001f600" * MAX_TRACEBACK_CHARS,
        "\U0001f600" * MAX_WHY_CHARS,
    )
    left, right = sessions
    left.send({"op": "failed", **failure.as_json(), "n": 2**53})
    text = b""
    while not text.endswith(b"}"):
        text += b"".join(right.wire.lines()) or bytes(right.wire._unread)
        right.wire._unread.clear()
    assert read_failure_message(right.open(text), 1, planless) == failure


@pytest.mark.parametrize(("rank", "kept"), [(2, 2), (7, 7), (0, 2), (-1, 2), (2**31, 2)])
def test_a_failure_keeps_a_rank_that_a_process_of_its_node_started(rank: int, kept: int) -> None:
    two_nodes = spec(2, 0)
    assert two_nodes.ranks_are_planned
    message = {**Failure(1, rank, 7, 9, 1, None, "", "").as_json(), "op": "failed"}
    assert read_failure_message(message, 1, two_nodes).rank == kept


def test_proofs_differ_by_everything_that_both_sides_know() -> None:
    base = SecretProof(SECRET, "run", 1, fresh_nonce(), fresh_nonce())
    others = [
        base._replace(secret=b"other"),
        base._replace(run="run2"),
        base._replace(node=2),
        base._replace(server_nonce=fresh_nonce()),
        base._replace(client_nonce=fresh_nonce()),
    ]
    derived = [
        (p.of("client"), p.of("server"), p.key("client"), p.key("server")) for p in (base, *others)
    ]
    flat = [str(value) for values in derived for value in values]
    assert len(set(flat)) == len(flat)


def test_the_secret_is_never_sent() -> None:
    nonce = fresh_nonce()
    proof = SecretProof(SECRET, "run", 1, nonce, fresh_nonce())
    assert SECRET.hex().encode() not in greet(nonce) + introduce(proof)
    assert check_introduction(introduce(proof), SECRET, "run", nonce) == proof


@pytest.mark.parametrize(
    "line", [b"", b"SSH-2.0-OpenSSH_9.2", b'{"hello": "other", "nonce": ""}', b"[" * 100_000]
)
def test_what_is_not_a_coordinator_is_not_answered(line: bytes) -> None:
    with pytest.raises(LinkError):
        read_greeting(line)


def test_an_admission_needs_the_servers_proof() -> None:
    proof = SecretProof(SECRET, "run", 1, fresh_nonce(), fresh_nonce())
    with pytest.raises(LinkError):
        check_admission(b'{"proof": "' + proof.of("client").encode() + b'"}', proof)
