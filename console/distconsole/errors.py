"""What can go wrong so far that an operation cannot be done at all.

::

    ConsoleError                 exit code   raised when
    ├── UsageError                    2      a command line means nothing
    ├── ConfigError                   2      a configuration or host file cannot be read
    │   └── UntrustedError                   a project's file could execute something, and nobody trusted it
    ├── PlanError                     2      a job cannot be placed on these hosts
    ├── UnreachableError              3      hosts that are needed cannot be reached
    ├── RunNotFoundError              2      no run has this id, prefix or name
    ├── UnavailableError              1      this installation cannot do it
    ├── OutputError                   1      stdout or stderr cannot be written: a full disk
    └── NodeError                     3      one node; becomes ``Failed(node, error)`` in a fan-out
        ├── ResolveError                     its name has no address
        ├── ConnectError                     nothing answers, or not an SSH server
        ├── UnknownHostKeyError              its key is not in known_hosts
        ├── ChangedHostKeyError              its key is another one than in known_hosts
        ├── AuthError                        nothing that was tried lets us in
        ├── LinkLostError                    the connection ended
        │   └── AgentEndedError              on a host that is up: its agent or bridge alone ended
        ├── ShellNoiseError                  its shell prints more than 1 MiB
        ├── PythonError                      no Python, or one too old
        ├── StorageError                     disk full, not writable, noexec, or another's folder
        ├── AgentError                       the agent could not start or broke the protocol
        └── RequestError                     the agent refused: ``code`` says why

An error carries a message for a person (what and where), a hint (what to type) and no secret.
"""

from __future__ import annotations

import re

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but for tab and newline
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # directions of text, halves of characters
)


class ConsoleError(Exception):
    """Could not be done: what and where in a line, and a ``hint`` of what to do, which may be empty."""

    exit_code = 1
    option = ""
    """The parameter of the grammar that it is about, where that is known."""

    def __init__(self, message: str, hint: str = "") -> None:
        message, hint = _plain(message), _plain(hint)
        super().__init__(message)
        self.message = message
        self.hint = hint


class Terminated(KeyboardInterrupt):
    """SIGTERM, where Ctrl-C would be a KeyboardInterrupt: who ends well by that does so by this."""


def _plain(text: str) -> str:
    """Return ``text`` with what a terminal obeys, or cannot show, as escapes: it may quote a file, a name or a node."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


OUT_OF_THREADS = "this machine starts no further thread for us"
MORE_THREADS = (
    "raise the limits of processes and memory (ulimit -u, ulimit -v), or ask fewer hosts at once"
)


def is_out_of_threads(error: RuntimeError) -> bool:
    """Whether ``threading.Thread.start`` has raised it: login nodes limit processes and address space."""
    return "start new thread" in str(error)


class UsageError(ConsoleError):
    exit_code = 2


class ConfigError(ConsoleError):
    exit_code = 2


class UntrustedError(ConfigError):
    """A project's file that could have something executed, and that nobody said is trusted."""


class PlanError(ConsoleError):
    exit_code = 2


class RunNotFoundError(ConsoleError):
    exit_code = 2


class UnreachableError(ConsoleError):
    exit_code = 3


class UnavailableError(ConsoleError):
    """Something that this installation, or this version, cannot do."""


class OutputError(ConsoleError):
    """What is printed cannot be written; a reader who has gone is no error."""


class NodeError(ConsoleError):
    """One node cannot be used. ``kind`` is the stable word for it in JSON and in findings.

    ``ssh_may`` is set where paramiko raised it, and the system's ssh may reach the node all the same.
    """

    exit_code = 3
    kind = "node"
    ssh_may = False


class ResolveError(NodeError):
    kind = "resolve"


class ConnectError(NodeError):
    kind = "connect"


def thread_error(host: str) -> ConnectError:
    """Return why a host is not reached for which this machine starts no thread."""
    return ConnectError(f"{OUT_OF_THREADS}, and {host} needs one", MORE_THREADS)


class UnknownHostKeyError(NodeError):
    """A key that a person may yet trust.

    Args:
        shown: The host and its key, as a person compares them.
        file: The known_hosts to which ``line`` is added then.
    """

    kind = "host_key_unknown"

    def __init__(
        self, message: str, hint: str = "", *, shown: str = "", file: str = "", line: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.shown, self.file, self.line = shown, file, line


class ChangedHostKeyError(NodeError):
    kind = "host_key_changed"


class AuthError(NodeError):
    """Nobody is let in; ``offers`` are the ways to log in that the server names, where it was asked."""

    kind = "auth"

    def __init__(self, message: str, hint: str = "", offers: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.offers = offers


class LinkLostError(NodeError):
    kind = "link_lost"


class AgentEndedError(LinkLostError):
    """The node is up and its SSH server says that our program there ended: the agent, or its bridge."""


class ShellNoiseError(NodeError):
    kind = "shell_noise"


class PythonError(NodeError):
    kind = "python"


class StorageError(NodeError):
    kind = "storage"


class AgentError(NodeError):
    kind = "agent"


class RequestError(NodeError):
    kind = "request"

    def __init__(self, message: str, hint: str = "", *, code: str = "") -> None:
        super().__init__(message, hint)
        self.code = code
