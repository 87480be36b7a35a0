"""Whoever waits where no descriptor is left waits in peace: nobody spins, and one is kept for the most urgent."""

import errno
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from distconsole_agent.system.door import LOOK_AWAY_SECONDS, Door
from distconsole_agent.system.loop import Loop


class Exhausted(socket.socket):
    """A listener in a process that has ``left`` descriptors for connections."""

    left = 0
    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        if self.left <= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        self.left -= 1
        return super().accept()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Exhausted]:
    with Exhausted(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        listener.setblocking(False)
        yield listener


def test_a_door_looks_away_while_there_is_no_descriptor(listener: Exhausted) -> None:
    now = [0.0]
    let_in: list[socket.socket] = []
    with (
        closing(Loop(lambda: now[0])) as loop,
        socket.socket(socket.AF_UNIX) as caller,
        closing(Door(loop, listener, let_in.append)) as door,
    ):
        caller.connect(listener.getsockname())
        for _ in range(5):
            loop.run_once(0.0)
        assert (listener.asked, door.refused, let_in) == (1, 1, [])
        now[0] += LOOK_AWAY_SECONDS
        listener.left = 1
        loop.run_once(0.0)
        loop.run_once(0.0)
        assert (door.refused, len(let_in)) == (1, 1)
        let_in.pop().close()
