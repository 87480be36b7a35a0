"""``--max-restarts``: whether failed ranks are restarted, after which pause, and with which variables.

The coordinator asks it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Callable, NamedTuple

from distconsole_agent.contract.records import Word
from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.coordination.blame import Failure
from distconsole_agent.system.kernel_files import read_foreign

ENV_RESTART, ENV_CHECKPOINT = "DISTCONSOLE_RESTART", "DISTCONSOLE_CHECKPOINT"

ENV_TORCHRUNS = "TORCHELASTIC_RESTART_COUNT"
"""torchrun's variables for the same; ranks get their true values."""

CHECKPOINT_FILE = "checkpoint"
"""In the run's folder on node 0: rank 0 writes there the path of the checkpoint that is newest."""

MAX_PATH_BYTES = 4096

QUICK_SECONDS = 5.0
"""An attempt that fails sooner is followed by a pause, which doubles while it goes on like that."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0


class Restart(NamedTuple):
    """The restart ``number`` of at most ``of``: on which port, and from which checkpoint, if there is one."""

    number: int
    of: int
    port: int
    checkpoint: Word | None = None

    def as_json(self) -> dict[str, object]:
        return {"restart": self.number, "of": self.of, "checkpoint": self.checkpoint}

    def applied(self, spec: RunSpec) -> RunSpec:
        news = {ENV_RESTART: str(self.number)}
        if ENV_TORCHRUNS in spec.env:
            news[ENV_TORCHRUNS] = str(self.number)
        if self.checkpoint is not None:
            news[ENV_CHECKPOINT] = self.checkpoint
        return spec._replace(env={**spec.env, **news}, restart=self.number)


class Restarts:
    def __init__(self, allowed: int, clock: Callable[[], float]) -> None:
        self._allowed = allowed
        self._clock = clock
        self._number = self._quick = 0
        self._begun: float | None = None
        self._failed: float | None = None
        self._pausing = False

    def why_not(
        self, failures: Sequence[Failure], gone: Sequence[str], busy: Sequence[str]
    ) -> str:
        """Return why ranks cannot be restarted: hosts are ``gone``, or ``busy`` ending; else ""."""
        if gone:
            return f"without {', '.join(gone)} its ranks have no place"
        if busy:
            return f"what runs on {', '.join(busy)} does not end"
        final = next((failure.final for failure in failures if failure.final), "")
        if final or self._number < self._allowed or self._pausing:
            return final
        if self._allowed == 1:
            return "its one restart is used up"
        return f"all {self._allowed} restarts are used up"

    def begin(self) -> None:
        self._begun, self._failed, self._pausing = self._clock(), None, False

    def failed(self) -> None:
        if self._failed is None:
            self._failed = self._clock()

    def next(self, port: int, checkpoint: str | None) -> Restart:
        self._number += 1
        self._pausing = True
        return Restart(self._number, self._allowed, port, checkpoint)

    def pause_seconds(self) -> float:
        """Return how long to wait before the next attempt; 0 after one that lived for a while."""
        now = self._clock()
        ended = now if self._failed is None else self._failed
        if self._begun is not None and ended - self._begun >= QUICK_SECONDS:
            self._quick = 0
            return 0.0
        self._quick += 1
        return min(FIRST_PAUSE_SECONDS * 2.0 ** (self._quick - 1), LONGEST_PAUSE_SECONDS)


def last_checkpoint(run_dir: str) -> str | None:
    """Return the path of the checkpoint that the job has noted in ``run_dir``."""
    try:
        told = read_foreign(os.path.join(run_dir, CHECKPOINT_FILE), MAX_PATH_BYTES)
    except OSError:
        return None
    path = os.fsdecode(told.split(b"\n")[0])
    return path if os.path.isabs(path) and path.isprintable() and os.path.exists(path) else None
