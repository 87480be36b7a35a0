"""Starts real ranks of a script, by hand or by a launcher, and reads what each has to say."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from suite.lean_torch import LEAN_TORCH
from suite.programs import free_port
from suite.warm import Script, Warm

if importlib.util.find_spec("torch"):
    exec(LEAN_TORCH, {})  # noqa: S102  # before the tests import it

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_SECONDS = 150
PEACEFUL = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}


@dataclass(frozen=True)
class Ended:
    """How one process ended."""

    code: int
    out: str
    err: str


class Starter:
    """Starts processes and waits for them; each writes its answer to ``RESULTS/RANK.json``."""

    def __init__(self, folder: Path, warm: Warm) -> None:
        self.folder = folder
        self._warm = warm

    def ranks(self, script: Path, world_size: int, *words: str) -> list[Any]:
        """Return what the ranks of ``script`` said, started with env:// variables."""
        return self.answers(self.forked(script, world_size, *words))

    def forked(self, script: Path, world_size: int, *words: str) -> list[Ended]:
        """Return how the ranks ended, each in a fork of an interpreter that has torch already."""
        scripts = [
            Script(
                script,
                self.folder,
                {"RESULTS": str(self.folder), **environment},
                self.folder / f"{rank}.out",
                self.folder / f"{rank}.err",
                words,
            )
            for rank, environment in enumerate(self._meeting(world_size))
        ]
        return [
            Ended(code, one.out.read_text(), one.err.read_text())
            for code, one in zip(self._warm.run(*scripts), scripts, strict=True)
        ]

    def ended(self, script: Path, world_size: int, *words: str) -> list[Ended]:
        """Return how the ranks ended, each in an interpreter of its own, whose end is its own too."""
        command = [sys.executable, self._lean(script), *words]
        return self.together([(command, place) for place in self._meeting(world_size)])

    def _meeting(self, world_size: int) -> list[dict[str, str]]:
        """Return each rank's variables for env://."""
        port = free_port()
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size)}
        return [
            {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)
        ]

    def launched(
        self, launcher: Sequence[str], script: Path, world_size: int, *words: str
    ) -> list[Any]:
        """Return what the ranks of ``script`` said that ``launcher`` started."""
        command = [*launcher, sys.executable, self._lean(script), *words]
        (ended,) = self.together([(command, {})])
        return self.answers([ended] * world_size)

    def _lean(self, script: Path) -> str:
        """Return a copy of the script that imports less of torch."""
        copy = self.folder / script.name
        copy.write_text(LEAN_TORCH + script.read_text())
        return str(copy)

    def together(self, commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> list[Ended]:
        started = [
            subprocess.Popen(
                command,
                env={**os.environ, **PEACEFUL, "RESULTS": str(self.folder), **extra},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.folder,
            )
            for command, extra in commands
        ]
        try:
            said = [process.communicate(timeout=LIMIT_SECONDS) for process in started]
        finally:
            for process in started:
                process.kill()
                process.communicate()
        return [
            Ended(process.returncode, out, err)
            for process, (out, err) in zip(started, said, strict=True)
        ]

    def answers(self, ended: Sequence[Ended]) -> list[Any]:
        """Return what the ranks said, which must have ended well."""
        assert {one.code for one in ended} == {0}, "\n".join(one.err + one.out for one in ended)
        return [
            json.loads((self.folder / f"{rank}.json").read_text()) for rank in range(len(ended))
        ]


@pytest.fixture(scope="session")
def warm_ranks() -> Iterator[Warm]:
    """One interpreter with torch for all ranks that need no start of their own."""
    made = Warm({**os.environ, **PEACEFUL}, LEAN_TORCH)
    yield made
    made.close()


@pytest.fixture
def starter(tmp_path: Path, warm_ranks: Warm) -> Starter:
    return Starter(tmp_path, warm_ranks)


@pytest.fixture(scope="session")
def scripts() -> Path:
    return SCRIPTS


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute in one thread: several that share a busy core wait for each other."""
    pytest.importorskip("torch").set_num_threads(1)
