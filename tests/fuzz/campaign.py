"""One target, for some time: inputs that reach new code are kept and changed further, and what fails is written down.

Atheris (libFuzzer) guides it where it is installed, else a trace of the product's lines, which is slower.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz.judging import PRODUCT, Failure, Target, judge, leave_sandbox
from fuzz.mutation import mutate

MAX_POOL = 2000
MORE_THAN = 3
"""Cases that are written of one defect."""


@dataclass
class Campaign:
    """What came of one target so far.

    Attributes:
        folder: Where kept inputs (``corpus``) and failures go.
        seconds: Of a processor, so that other work on the machine takes nothing from a target.
    """

    target: Target
    folder: Path
    seconds: float
    seed: int
    tried: int = 0
    kept: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    pool: list[bytes] = field(default_factory=list)

    def run(self) -> None:
        """Try inputs until the time is over."""
        for path in self.target.cases():
            self._judge(self.target.read_case(path))
        self._ends = time.process_time() + self.seconds
        if self.target.make is not None:
            self._by_dice(self.target.make)
            return
        files = [*sorted(self._corpus.glob("*")), *self.target.cases()]
        self.pool = [path.read_bytes() for path in files]
        (self._by_atheris if "atheris" in sys.modules else self._by_lines)()

    @property
    def _corpus(self) -> Path:
        folder = self.folder / "corpus" / self.target.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def finish(self) -> None:
        """Say what came of it, and end this process."""
        line = {
            "target": self.target.name,
            "tried": self.tried,
            "kept": self.kept,
            "cpu_seconds": round(time.process_time(), 1),
            "failures": self.failures,
        }
        print(json.dumps(line), flush=True)
        leave_sandbox()
        os._exit(bool(self.failures))  # libFuzzer's own end would print its report

    def _judge(self, data: Any) -> None:
        self.tried += 1
        failure = judge(self.target, data)
        if failure is not None:
            self._note(failure, data)

    def _note(self, failure: Failure, data: Any) -> None:
        known = self.failures[failure.place] = self.failures.get(failure.place, 0) + 1
        if known <= MORE_THAN:
            path = self.target.write_case(self.folder / "failures" / self.target.name, data)
            text = f"{failure.place}\n{failure.text}\n"
            path.with_suffix(".txt").write_text(text, encoding="utf-8", errors="backslashreplace")

    def _by_dice(self, make: Callable[[random.Random], Any]) -> None:
        while time.process_time() < self._ends:
            self._judge(make(random.Random(f"{self.seed}/{self.tried}")))

    def _by_lines(self) -> None:
        dice, seen = random.Random(self.seed), set[tuple[str, int]]()
        new: list[tuple[str, int]] = []

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            name = frame.f_code.co_filename
            if not any(part in name for part in PRODUCT) or "/tests/" in name:
                return None
            place = (name, frame.f_lineno)
            if event == "line" and place not in seen:
                seen.add(place)
                new.append(place)
            return trace

        for first in [*self.pool, None]:
            while first is not None or time.process_time() < self._ends:
                data = (
                    first
                    if first is not None
                    else mutate(dice.choice(self.pool), self.pool, dice, self.target.max_bytes)
                )
                sys.settrace(trace)
                try:
                    self._judge(data)
                finally:
                    sys.settrace(None)
                if new and first is None:
                    self._keep(data)
                new.clear()
                if first is not None:
                    break

    def _keep(self, data: bytes) -> None:
        self.kept += 1
        if len(self.pool) < MAX_POOL:
            self.pool.append(data)
        (self._corpus / f"{random.Random(data).getrandbits(64):016x}").write_bytes(data)

    def _by_atheris(self) -> None:
        import atheris

        dice = random.Random(self.seed)
        corpus, before = self._corpus, len(list(self._corpus.iterdir()))

        def one(data: bytes) -> None:
            self._judge(data)
            if time.process_time() > self._ends:
                self.kept = len(list(corpus.iterdir())) - before
                self.finish()

        def change(data: bytes, max_size: int, seed: int) -> bytes:
            if dice.random() < 0.5:
                return bytes(atheris.Mutate(data, max_size))
            return mutate(data, self.pool, random.Random(seed), max_size)

        seeds = self.folder / "seeds" / self.target.name
        seeds.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(self.pool):
            (seeds / str(number)).write_bytes(data)
        options = [
            f"-seed={self.seed + 1}",
            f"-max_len={self.target.max_bytes}",
            f"-artifact_prefix={self.folder}/",
            "-verbosity=0",
            "-rss_limit_mb=4096",
            "-timeout=300",
        ]
        atheris.Setup([sys.argv[0], *options, str(corpus), str(seeds)], one, custom_mutator=change)
        atheris.Fuzz()
