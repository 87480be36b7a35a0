"""What a script's own spawner says of "process N": which rank it is and how it ended.

It reads rings' headers and judges nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal

from distconsole_agent.supervisor.failures import EngineSaid, Raised

MAX_RINGS = 4096

_TERMINATED = re.compile(
    r"\b(?:in spawned process (?=\d)|process (?=\d{1,6} terminated with))(\d{1,6})", re.IGNORECASE
)
"""Of ``wrapped.headline``, and of ProcessRaisedException and ProcessExitedException in
torch/multiprocessing/spawn.py, which catches what a child raises, so that its own hook never sees it."""


_ENDED = re.compile(r"\bprocess \d{1,6} terminated with (?:exit code (\d{1,3})|signal (SIG\w+))$")
"""Of ProcessExitedException alone: a child that did not raise."""


def end_of_spawned(raised: Raised) -> EngineSaid | None:
    """Return how the child ended of which a spawner's exception tells, if it did not raise."""
    told = _ENDED.search(raised.error)
    if told is None:
        return None
    if told[1] is not None:
        return EngineSaid(raised.rank, int(told[1]), None)
    number = getattr(signal, told[2], None)
    return None if number is None else EngineSaid(raised.rank, 128 + number, int(number))


def rank_of_spawned(error: str, parent_pid: int, rings: str) -> int:
    """Return the rank of the child of ``parent_pid`` that ``error`` names; -1 where unknown.

    Children are numbered in the order in which they were started, which is that of their pids.
    """
    named = _TERMINATED.search(error)
    if named is None:
        return -1
    # Late: a shim needs to know nothing of rings otherwise.
    from distconsole_agent.journal.rings import Ring

    ranks: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(rings))[:MAX_RINGS]:
            with contextlib.suppress(OSError, ValueError):
                ring = Ring(os.path.join(rings, name))
                ring.close()
                if ring.header.parent_pid == parent_pid:
                    ranks[ring.header.pid] = ring.header.rank
    in_order = [ranks[pid] for pid in sorted(ranks)]
    index = int(named[1])
    return in_order[index] if index < len(in_order) else -1
