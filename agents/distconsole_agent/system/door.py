"""Listeners: on TCP, and in a loop that does not spin when no descriptor is left but looks away and tries again."""

from __future__ import annotations

import errno
import socket
import sys
from typing import TYPE_CHECKING, Callable

from distconsole_agent.system.descriptors import is_scarce
from distconsole_agent.system.loop import READ

if TYPE_CHECKING:
    from distconsole_agent.system.loop import Loop, Timer

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LOOK_AWAY_SECONDS = 0.1


def listen_on(address: str, backlog: int, port: int = 0) -> socket.socket:
    """Return a non-blocking listener on ``address``, by default on a free port; raises OSError."""
    family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class Door:
    """Calls ``enter`` with each connection, ``always`` with the last descriptors; counts ``refused`` ones."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        enter: Callable[[socket.socket], None],
        *,
        always: bool = False,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._enter = enter
        self._always = always
        self._timer: Timer | None = None
        self.refused = 0
        self._watch()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()

    def _watch(self) -> None:
        self._loop.watch(self._listener.fileno(), READ, self._accept)

    def _accept(self, _events: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in EXHAUSTED:
                self._look_away()
            return
        if self._always or not is_scarce(sock.fileno()):
            self._enter(sock)
        else:
            sock.close()  # the client tries again
            self._look_away()

    def _look_away(self) -> None:
        if not self.refused:
            sys.stderr.write(
                "distconsole: too few descriptors are left: connections wait; ulimit -Hn\n"
            )
        self.refused += 1
        self._loop.unwatch(self._listener.fileno())
        self._timer = self._loop.call_later(LOOK_AWAY_SECONDS, self._watch)
