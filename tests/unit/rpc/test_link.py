"""A link whose way to the node is slow: nothing is started on a node that nobody waits for any more."""

import threading

import pytest

from distconsole.errors import ConnectError, LinkLostError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.rpc.link import NodeLink
from distconsole.ssh.transport import Channel


class SlowMachine:
    """A machine that lets somebody in when told to, and notes what is done there."""

    peer, reached_at, alive = "me@node1:22", "192.0.2.1", True

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()
        self.done: list[str] = []

    def connect(self, host: Host) -> "SlowMachine":
        self.asked.set()
        assert self.answers.wait(30)
        return self

    def open(self, command: str, timeout: float) -> Channel:
        self.done.append(command)
        raise LinkLostError("the connection ended")

    def close(self) -> None:
        self.done.append("closed")


def test_a_node_that_answers_after_the_link_was_closed_is_left_at_once() -> None:
    machine = SlowMachine()
    link = NodeLink(Host(HostName("node1")), machine)
    connecting = threading.Thread(target=pytest.raises, args=(LinkLostError, link.connect))
    connecting.start()
    assert machine.asked.wait(30)
    link.close()
    machine.answers.set()
    connecting.join()
    assert machine.done == ["closed"]


def test_a_machine_that_starts_no_further_thread_is_told_with_the_limits_to_raise() -> None:
    class FullMachine(SlowMachine):
        def connect(self, host: Host) -> SlowMachine:
            raise RuntimeError("can't start new thread")  # as paramiko does, which starts some

    with pytest.raises(
        ConnectError, match="no further thread for us, and node1 needs one"
    ) as found:
        NodeLink(Host(HostName("node1")), FullMachine()).connect()
    assert "ulimit -u" in found.value.hint
