"""The owner's end of the pipe to the keeper; when it closes, the bed ends."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from testbed import keeper
from testbed.claims import write_owner

END_SECONDS = 30.0


class Lifeline:
    """A keeper that belongs to this process.

    Args:
        folder: The bed's folder.
        prefix: The command that gives the keeper its network namespace.
        uplink: The network interface there that leads to this process.
    """

    def __init__(self, folder: Path, *, prefix: Sequence[str], uplink: str) -> None:
        self._lock = threading.Lock()
        program = [sys.executable, "-I", "-S", keeper.__file__]
        self._process = subprocess.Popen(
            [*prefix, *program, str(os.getpid()), str(folder), uplink],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.folder = folder
        self.pid = self._process.pid
        self._ask({"hello": True})
        write_owner(folder, os.getpid(), self.pid)

    def start(self, name: str, argv: Sequence[str]) -> int:
        """Start a host's first process and return its pid, as seen from here."""
        pid = int(self._ask({"start": name, "argv": list(argv)})["pid"])
        if not pid:
            log = (self.folder / f"{name}.log").read_text(errors="replace")
            raise RuntimeError(f"{name} did not start: {log.strip()[-2000:]}")
        return pid

    def stop(self, *names: str) -> None:
        """Return when no process of these hosts is left."""
        self._ask({"stop": list(names)})

    def close(self) -> None:
        """End the bed and return when nothing is left of it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: dict[str, object]) -> dict[str, int]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._lock:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            raise RuntimeError(f"the testbed's keeper ended with {self._process.wait()}")
        reply: dict[str, int] = json.loads(line)
        return reply
