"""How long a run will still take, by what its first rank prints (``epoch 3/10``, ``step 400 of 2000``) or reports.

Two such words tell how fast it is. A count that begins anew, as of steps in an epoch, is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

LOOKED_AT_CHARS = 200
SAID = re.compile(
    r"\b(epoch|step|steps|iter|iteration|batch|round)\b[\s:#=\[(]{0,3}(\d{1,12})\s{0,2}(?:/|of)\s{0,2}(\d{1,12})\b",
    re.IGNORECASE,
)
TOTAL = "total_steps"
"""A metric by which a script may say how many steps it will make."""


class Said(NamedTuple):
    """The first and the newest word on one count; ``t`` in UNIX seconds."""

    total: int
    first: int
    first_t: float
    newest: int
    newest_t: float


class EtaEstimator:
    """Learns when a run will be over; its size is that of the few words it knows."""

    def __init__(self) -> None:
        self._said: dict[str, Said] = {}
        self._inner: set[str] = set()

    def read(self, line: str, t: float) -> None:
        """Look at a line that the first rank printed at ``t``."""
        head = line[:LOOKED_AT_CHARS]
        if "/" not in head and " of " not in head:
            return
        found = SAID.search(head)
        if found is None:
            return
        word = found[1].lower()
        done, total = int(found[2]), int(found[3])
        before = self._said.get(word)
        if word in self._inner or done > total or total < 2:
            return
        if before is None:
            self._said[word] = Said(total, done, t, done, t)
        elif done < before.newest or total != before.total:
            self._inner.add(word)
            del self._said[word]
        elif done > before.newest:
            self._said[word] = before._replace(newest=done, newest_t=t)

    def seconds_left(
        self, now: float, step: int | None, step_ms: float | None, metrics: Mapping[str, float]
    ) -> float | None:
        """Return how long it will still take at ``now`` (UNIX seconds); None where nobody said how much there is to do.

        ``step`` is the last step done, counted from 0; ``metrics`` has the newest values.
        """
        total = metrics.get(TOTAL, math.nan)
        if math.isfinite(total) and step is not None and step_ms:
            return max(0.0, (total - step - 1) * step_ms / 1000)
        known = [each for each in self._said.values() if each.newest > each.first]
        if not known:
            return None
        said = max(known, key=lambda each: each.newest_t - each.first_t)
        each_seconds = (said.newest_t - said.first_t) / (said.newest - said.first)
        left = (said.total - said.newest) * each_seconds - (now - said.newest_t)
        return max(0.0, left)

    def begin_again(self) -> None:
        """Forget what was said: the ranks were started anew."""
        self._said.clear()
        self._inner.clear()
