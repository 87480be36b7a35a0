"""A folder for the sockets of ssh and the program it asks with: this user's alone, gone at the end.

Where this program was killed, the next one that needs such a folder takes it away.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from distconsole.errors import ConnectError

PREFIX = "dc-ssh-"
MAX_FOLDER_CHARS = 60
"""A Unix socket's path has 104 bytes at most, and ssh makes it in two steps, with a longer name first."""
YOUNG_SECONDS = 60.0
"""A folder is locked soon after it was made; one that is older and is not locked is nobody's."""
SCRIPT, PROGRAM = "ask.py", "ask"

ASKPASS = """
import os, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect(os.environ["DISTCONSOLE_ASK"])
kind = os.environ.get("SSH_ASKPASS_PROMPT", "").encode()
asked.sendall(kind + b"\\n" + os.fsencode(" ".join(sys.argv[1:])) + b"\\0")
answer = b""
while part := asked.recv(4096):
    answer += part
os.write(1, answer)
sys.exit(not answer.endswith(b"\\n"))
"""


class PrivateFolder:
    """Made at once; raises ConnectError if it can be made nowhere.

    Attributes:
        askpass: The program that ssh asks with.
    """

    def __init__(self) -> None:
        for may_run in (True, False):  # without the program all but questions works
            for place in _places():
                with suppress(OSError):
                    _sweep(place)
                    self._folder = tempfile.TemporaryDirectory(
                        prefix=PREFIX, dir=place, ignore_cleanup_errors=True
                    )
                    self.path = Path(self._folder.name)
                    self._lock = _lock(self.path)
                    self.askpass = _write_askpass(self.path)
                    if os.access(self.askpass, os.X_OK) >= may_run:
                        return
                    self.close()
        raise ConnectError(
            "there is no folder for the sockets of ssh", "set TMPDIR to a short path"
        )

    def close(self) -> None:
        with suppress(OSError):
            self._folder.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _places() -> list[str]:
    # In the home last: it may be of a kind that has no sockets. The others may be mounted with noexec.
    found = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp", str(Path.home()))  # noqa: S108 - 0700, by mkdtemp
    return [place for place in found if place and len(place) < MAX_FOLDER_CHARS]


def _lock(folder: Path) -> int | None:
    """Return the lock, which ends with this process; None if somebody has it, or there are none here."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(place: str) -> None:
    """Remove what others of this user's have left in ``place``."""
    oldest = time.time() - YOUNG_SECONDS
    for folder in Path(place).glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.getuid() or found.st_mtime > oldest:
                continue
            if (folder / SCRIPT).is_file() and (lock := _lock(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _write_askpass(folder: Path) -> Path:
    script, program = folder / SCRIPT, folder / PROGRAM
    script.write_text(ASKPASS)
    words = shlex.join([sys.executable, "-I", "-S", str(script)])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o700)
    return program
