"""A run's plan and end as they are stored, the bound of its ranks by the plan, and the reducer that keeps to it."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import msgspec

from distconsole.model.decoding import threadsafe
from distconsole.model.run_events import PlanMade, RunEnded
from distconsole.model.time_text import is_time
from distconsole.runs.detectors.all_ranks import Earlier
from distconsole.runs.reduce import RunReducer
from distconsole.runs.store.run_file import RunRecord

SPAWNED_A_HOST = 256
"""Most ranks that a script which is started once a host may start there itself."""
UNPLANNED_RANKS = 16_384
"""Ranks of a run whose plan is not known, as of one that was attached to."""

E = TypeVar("E", PlanMade, RunEnded)


def stored_plan(record: RunRecord) -> PlanMade | None:
    """Return the run's plan as stored; None if it is not there or cannot be read."""
    return _decode_event(record, PlanMade, record.plan)


def stored_end(record: RunRecord) -> RunEnded | None:
    """Return the run's end as stored; None if it is not there or cannot be read."""
    return _decode_event(record, RunEnded, record.end)


def reducer_of(record: RunRecord) -> RunReducer:
    earlier = None
    with suppress(msgspec.MsgspecError):
        if record.earlier:
            earlier = msgspec.json.decode(record.earlier, type=threadsafe(Earlier))
    plan = stored_plan(record)
    starts = plan.starts if plan is not None and plan.starts is not msgspec.UNSET else ""
    return RunReducer(record.run, record.hosts, rank_count(plan), earlier, starts)


def rank_count(plan: PlanMade | None) -> int:
    """Return how many ranks a run can have at most; their numbers are smaller."""
    if plan is None:
        return UNPLANNED_RANKS
    planned = max((rank + 1 for host in plan.hosts for rank in host.ranks), default=0)
    spawns = all(len(host.ranks) <= 1 for host in plan.hosts)
    return max(planned, plan.world_size, len(plan.hosts) * SPAWNED_A_HOST if spawns else 0)


def _decode_event(record: RunRecord, kind: type[E], stored: bytes) -> E | None:
    """Return an event kept beside the entries; one that is at no moment is at the run's start."""
    with suppress(msgspec.DecodeError):
        event = msgspec.json.decode(stored, type=threadsafe(kind))
        return event if is_time(event.t) else msgspec.structs.replace(event, t=record.started)
    return None
