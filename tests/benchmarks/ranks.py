"""Processes of this machine that work when they are asked to: the ranks of one job, or a single program. It measures
nothing.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Self

from suite.programs import free_port


class Job:
    """The ranks of one job, which do something for each line that they read; killed with the block's end."""

    def __init__(self, commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> None:
        self._ranks = [
            subprocess.Popen(
                words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for words, env in commands
        ]
        self.pid = self._ranks[0].pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()

    def ask(self, number: int) -> str:
        """Give every rank a line with ``number`` and return what the first answers, once all have."""
        for rank in self._ranks:
            rank.stdin.write(f"{number}\n")
            rank.stdin.flush()
        first, *_ = [_line(rank) for rank in self._ranks]
        return first

    def result(self) -> str:
        """Return the last line that the first rank prints, once all have left."""
        lines = list(self._ranks[0].stdout)
        self.end()
        return lines[-1]

    def end(self) -> None:
        """Let the ranks leave."""
        for rank in self._ranks:
            rank.stdin.close()
        for rank in self._ranks:
            if code := rank.wait(timeout=60):
                raise RuntimeError(f"a rank ended with {code}")


def _line(rank: subprocess.Popen[str]) -> str:
    line = rank.stdout.readline()
    if not line:
        raise RuntimeError(f"a rank ended with {rank.wait()}")
    return line


def bare_environment() -> dict[str, str]:
    """Return what a rank on one thread starts with, without anything of ours."""
    ours = {name: value for name, value in os.environ.items() if "DISTCONSOLE_" not in name}
    return {**ours, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def places(ranks: int) -> list[dict[str, str]]:
    """Return the variables of ``env://`` for each rank of a job on this machine."""
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
