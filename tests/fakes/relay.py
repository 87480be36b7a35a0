"""A network between a shim and its coordinator that can be cut, and can fall silent."""

import contextlib
import socket

from distconsole_agent.system.loop import READ, Loop


class Relay:
    """Forwards connections on ``endpoint`` to ``target``, as long as it is told to."""

    def __init__(self, loop: Loop, target: tuple[str, int]) -> None:
        self._loop = loop
        self._target = target
        self._pairs: dict[socket.socket, socket.socket] = {}
        self.silent = False
        self.refuses = False
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.endpoint: tuple[str, int] = self._listener.getsockname()[:2]
        loop.watch(self._listener.fileno(), READ, self._accept)

    def cut(self) -> None:
        """End every connection; new ones are accepted unless it ``refuses``."""
        for sock in list(self._pairs):
            self._drop(sock)

    def close(self) -> None:
        """Go away."""
        self.cut()
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()

    def _accept(self, _events: int) -> None:
        near, _ = self._listener.accept()
        if self.refuses:
            near.close()
            return
        self.connections += 1
        far = socket.create_connection(self._target)
        for one, other in ((near, far), (far, near)):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs[one] = other
            self._loop.watch(one.fileno(), READ, lambda _events, one=one: self._pass_on(one))

    def _pass_on(self, source: socket.socket) -> None:
        try:
            data = source.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(source)
        elif not self.silent:
            with contextlib.suppress(OSError):
                self._pairs[source].sendall(data)

    def _drop(self, sock: socket.socket) -> None:
        other = self._pairs.pop(sock, None)
        self._loop.unwatch(sock.fileno())
        sock.close()
        if other is not None:
            self._drop(other)
