"""Programs that run on a host from outside, without SSH, to their end. How one starts there the host knows."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


class Programs:
    """A place where programs run."""

    def popen(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program (or a line for bash), by default in the home; ``options`` are those of Popen."""
        raise NotImplementedError

    def exec(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        timeout: float = 30.0,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program (or a line for bash) on the host, not over SSH.

        Raises:
            subprocess.CalledProcessError: if it fails and ``check`` is set.
            subprocess.TimeoutExpired: after ``timeout`` seconds; the program is killed.
        """
        process = self.popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            kill_group(process)
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check:
            done.check_returncode()
        return done


def argv_of(command: str | Sequence[str]) -> list[str]:
    """Return a program's words; a line is bash's."""
    return ["bash", "-c", command] if isinstance(command, str) else list(command)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a program started by ``popen`` and what shares its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
