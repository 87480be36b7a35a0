"""Listeners and connections of the reach tests, over loopback for real."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from distconsole_agent import probes
from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.probes.network import handshake
from fakes.shims import listens, wait_until

SECRET = "ab" * 32
HERE = "127.0.0.1"


@pytest.fixture
def listening() -> Iterator[list[int]]:
    """Ports that are listened on for this test."""
    answer = listen(ephemeral=3)
    yield [entry["port"] for entry in answer["ports"]]
    close(answer["token"])


def listen(**args: Any) -> dict[str, Any]:
    given = {"address": HERE, "secret": SECRET, "ttl_seconds": 30.0, **args}
    return probes.run("net.listen", given, 5.0)


def close(token: str) -> None:
    probes.run("net.close", {"token": token}, 5.0)
    wait_until("closed", lambda: not probes.run("net.close", {"token": token}, 5.0)["closed"])


def connect(*targets: tuple[str, int], seconds: float = 10.0, **args: Any) -> list[dict[str, Any]]:
    listed = [
        {"id": f"t{index}", "address": address, "port": port, "bulk": True}
        for index, (address, port) in enumerate(targets)
    ]
    given = {"targets": listed, "secret": SECRET, "timeout_seconds": 2.0, "pings": 3, **args}
    results: list[dict[str, Any]] = probes.run("net.connect", given, seconds)["results"]
    return results


def test_every_port_is_reached_and_timed_by_hundreds_of_connections(listening: list[int]) -> None:
    for entry in connect(*((HERE, port) for port in listening * 200)):
        assert entry["ok"]
        assert entry["rtt_us"] > 0
        assert entry["bulk"] is True
        assert entry["source"] == entry["seen_source"] == HERE


def test_ports_are_spread_over_the_kernels_range() -> None:
    answer = listen(ephemeral=16)
    ports = [entry["port"] for entry in answer["ports"]]
    close(answer["token"])
    assert len(set(ports)) == 16
    assert max(ports) - min(ports) > 15000


def test_a_closed_port_is_refused(listening: list[int]) -> None:
    with socket.create_server((HERE, 0)) as other:
        port = other.getsockname()[1]
    (entry,) = connect((HERE, port))
    assert (entry["error"], entry["errno"]) == ("refused", "ECONNREFUSED")


def test_an_address_without_a_route_is_told_by_its_code() -> None:
    (entry,) = connect(("255.255.255.255", 1))  # a broadcast address, which TCP has no route to
    assert entry["errno"] in ("ENETUNREACH", "EACCES")
    assert not entry["ok"]


def test_who_does_not_know_the_secret_gets_no_answer(listening: list[int]) -> None:
    assert connect((HERE, listening[0]), secret="cd" * 32)[0]["error"] == "closed"


def test_a_stranger_who_says_nothing_wrong_is_closed_too(listening: list[int]) -> None:
    with socket.create_connection((HERE, listening[0]), timeout=5) as stranger:
        assert stranger.recv(64).startswith(handshake.HELLO)
        stranger.sendall(b"x" * handshake.CLAIM_BYTES)
        assert stranger.recv(64) == b""


def test_a_listener_of_somebody_else_is_a_wrong_answer() -> None:
    with socket.create_server((HERE, 0)) as server:
        server.settimeout(5)

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and more bytes\n")

        thread = threading.Thread(target=answer)
        thread.start()
        results = connect((HERE, server.getsockname()[1]))
        thread.join(5)
    assert results[0]["error"] == "wrong_answer"


def test_a_connection_that_does_not_come_about_times_out_before_the_end() -> None:
    with socket.create_server((HERE, 0), backlog=0) as full:
        address = full.getsockname()[:2]
        with socket.create_connection(address, timeout=5):
            began = time.monotonic()
            results = connect(address, timeout_seconds=0.3)
            assert time.monotonic() - began < 4
    assert results[0]["error"] == "timeout"


def test_who_connects_and_says_nothing_is_silent_and_not_unreachable() -> None:
    with socket.create_server((HERE, 0)) as busy:
        results = connect((HERE, busy.getsockname()[1]), timeout_seconds=0.1, seconds=0.6)
    assert results[0]["error"] == "silent"
    assert results[0]["source"] == HERE


def test_a_busy_listener_is_waited_for_beyond_the_time_for_connecting() -> None:
    answer = listen(ephemeral=1)
    secret, there = SECRET, (HERE, answer["ports"][0]["port"])
    with socket.create_server((HERE, 0)) as busy:
        busy.settimeout(5)

        def relay_late() -> None:
            accepted, _ = busy.accept()
            with accepted, socket.create_connection(there, timeout=5) as onward:
                time.sleep(0.4)  # what is late is the point
                accepted.sendall(onward.recv(handshake.GREETING_BYTES))
                accepted.recv(handshake.CLAIM_BYTES)

        thread = threading.Thread(target=relay_late)
        thread.start()
        results = connect(
            (HERE, busy.getsockname()[1]), timeout_seconds=0.1, seconds=5.0, secret=secret
        )
        thread.join(5)
    close(answer["token"])
    assert results[0]["error"] == "closed"


def test_listeners_go_by_themselves_when_nobody_closes_them() -> None:
    answer = listen(ephemeral=1, ttl_seconds=0.3)
    there = {"address": HERE, "port": answer["ports"][0]["port"]}
    wait_until("the end of the listener", lambda: not listens(there))


def test_a_taken_port_is_told_and_the_others_are_listened_on() -> None:
    with socket.create_server((HERE, 0)) as held:
        port = held.getsockname()[1]
        answer = listen(ports=[port], ephemeral=1)
    close(answer["token"])
    assert answer["ports"][0]["error"] == "Address already in use"
    assert answer["ports"][1]["port"] > 0


def test_an_address_of_another_host_cannot_be_listened_on() -> None:
    with pytest.raises(probes.ProbeError, match=r"203\.0\.113\.7"):
        listen(address="203.0.113.7", ephemeral=1)


def test_listeners_are_bounded() -> None:
    tokens = [listen(ephemeral=1)["token"] for _ in range(4)]
    try:
        with pytest.raises(probes.ProbeError) as raised:
            listen(ephemeral=1)
        assert raised.value.code == ErrorCode.TOO_MANY
    finally:
        for token in tokens:
            close(token)


def test_a_stream_is_counted_by_who_receives_it(listening: list[int]) -> None:
    args = {"address": HERE, "port": listening[0], "secret": SECRET, "stream_seconds": 0.2}
    facts = probes.run("net.bandwidth", args, 5.0)
    assert facts["bytes"] > 1_000_000
    assert facts["gbit_s"] > 0.01


def test_a_stream_to_nobody_is_a_probe_that_failed() -> None:
    args = {"address": HERE, "port": 9, "secret": SECRET}
    with pytest.raises(probes.ProbeError, match=r"127\.0\.0\.1:9"):
        probes.run("net.bandwidth", args, 2.0)


def test_a_proof_is_for_one_port_and_one_role_only() -> None:
    key, greeting, nonce = bytes(32), b"g" * 36, b"n" * 16
    proofs = {
        handshake.proof(key, role, greeting, nonce, port)
        for role in (b"connector", b"listener")
        for port in (1, 2)
    }
    assert len(proofs) == 4
