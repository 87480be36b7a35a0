"""Unix sockets whose paths may be long."""

from __future__ import annotations

import os
import socket
import struct

MAX_PATH_BYTES = 107
"""sun_path holds 108 bytes with the final zero (unix(7))."""


def connect(path: str, timeout: float | None) -> socket.socket:
    """Return a connection to the socket at ``path``, with ``timeout`` in seconds; raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        with _Address(path) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def listen(path: str, backlog: int) -> socket.socket:
    """Return a listener at ``path`` (0600), in place of any file there; raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The folder is 0700, so between bind and chmod no other user can reach the socket.
        aside = f"{path}.{os.getpid()}"
        with _Address(aside) as address:
            sock.bind(address)
        os.chmod(aside, 0o600)
        sock.listen(backlog)
        os.rename(aside, path)
    except BaseException:
        sock.close()
        raise
    return sock


def peer_uid(sock: socket.socket) -> int:
    """Return the user at the other end, as the kernel knows it (SO_PEERCRED)."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def peer_pid(sock: socket.socket) -> int:
    """Return the pid here of the process at the other end, or of the listener there; 0 without one."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def peer_environment(sock: socket.socket) -> dict[str, str] | None:
    """Return the environment of the process at the other end; None if it cannot be read.

    It is the environment at its exec (proc(5), ``/proc/pid/environ``): a bridge's, as its login shell
    and ``--setup`` made it. Only the same user's processes can be read, and only those connect here.
    """
    try:
        with open(f"/proc/{peer_pid(sock)}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return None
    pairs = (os.fsdecode(word).partition("=") for word in words)
    return {name: value for name, equals, value in pairs if name and equals}


class _Address:
    """An address for ``path`` that fits: a long one is reached through its folder's descriptor."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= MAX_PATH_BYTES:
            return self._path
        folder, name = os.path.split(self._path)
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._folder}/{name}"

    def __exit__(self, *_exc: object) -> None:
        if self._folder >= 0:
            os.close(self._folder)
