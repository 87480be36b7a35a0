"""When what is done once a second is done: on all nodes at the same moment, as far as their clocks agree.

What they tell then arrives together, so that whoever draws it does so once a second.
"""

from __future__ import annotations

EARLY_SECONDS = 0.1
"""Who wakes so little before a second counts as having reached it: clocks do not run alike."""


def to_next_second(t: float) -> float:
    """Return how long from ``t`` (UNIX seconds) to the next whole second; at least ``EARLY_SECONDS``."""
    rest = 1.0 - t % 1.0
    return rest if rest >= EARLY_SECONDS else rest + 1.0
