"""A master that is none, or says what it should not, and what ssh's words of a failed login mean."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from distconsole.errors import AuthError, ConfigError, ConnectError, ConsoleError, LinkLostError
from distconsole.ssh.multiplexing import HELLO, ControlSocket
from distconsole.ssh.openssh_login import failure


@contextmanager
def master_that_says(words: bytes) -> Iterator[str]:
    with TemporaryDirectory(prefix="cm", dir="/tmp") as folder:  # a socket's path may not be long
        path = str(Path(folder) / "m")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()

            def say() -> None:
                connection, _ = listener.accept()
                with connection, suppress(ConnectionError):
                    connection.sendall(words)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass

            thread = threading.Thread(target=say)
            thread.start()
            yield path
            thread.join()


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        struct.pack(">I", 0),
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">II", 100, HELLO),
        struct.pack(">II", 4, 0x80000002),
    ],
    ids=["nothing", "an sshd", "an empty packet", "a huge packet", "half a packet", "a refusal"],
)
def test_what_is_no_master_is_a_lost_link(words: bytes) -> None:
    with master_that_says(words) as path, pytest.raises(LinkLostError):
        ControlSocket(path)


def test_a_master_that_answers_something_else_is_a_lost_link() -> None:
    hello = struct.pack(">III", 8, HELLO, 4)
    with master_that_says(hello + struct.pack(">II", 4, 0x80000002)) as path:
        control = ControlSocket(path)
        with pytest.raises(LinkLostError):
            control.open_session("true", (0, 1, 2), 5)
        control.close()


DENIED = """debug1: Authentications that can continue: publickey,gssapi-with-mic,password
debug1: Next authentication method: gssapi-with-mic
debug1: Next authentication method: publickey
debug1: Offering public key: /home/ada/.ssh/id ED25519 SHA256:x explicit
debug1: Next authentication method: password
ada@gpu1: Permission denied (publickey,gssapi-with-mic,password).
"""


def means(said: str) -> ConsoleError:
    return failure(
        said, "gpu1", "ada@gpu1", by_hand="ssh gpu1 true", jump="", declined=False, asks=True
    )


def test_a_refused_login_says_what_was_tried_and_what_is_offered() -> None:
    error = means(DENIED)
    assert isinstance(error, AuthError)
    assert "(gssapi-with-mic, key /home/ada/.ssh/id, password)" in error.message
    assert error.message.endswith("the server offers: publickey, gssapi-with-mic, password")


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("Received disconnect: Too many authentication failures", AuthError, "nothing"),
        ("Bad owner or permissions on /home/ada/.ssh/config", ConfigError, "Bad owner"),
        ("Connection closed by 10.0.0.1 port 22", ConnectError, "closed by 10.0.0.1"),
        ("Permission denied to strangers\nConnection reset by peer", ConnectError, "reset"),
        ("\x1b]0;title\x07\x1b[31mred\x1b[0m", ConnectError, ": red"),
        ("", ConnectError, "it said nothing"),
    ],
    ids=["too many", "owner", "closed", "banner", "escapes", "silence"],
)
def test_a_failures_words_become_an_error(said: str, kind: type[ConsoleError], words: str) -> None:
    error = means(said)
    assert type(error) is kind
    assert words in error.message
    assert "\x1b" not in error.message
