"""Describes the data or runs that a request would destroy, for a confirmation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from distconsole.config.paths import expand_home, runs_dir
from distconsole.errors import RunNotFoundError
from distconsole.model import requests as ask
from distconsole.model.names import count_text, join_some
from distconsole.model.run_events import PlanMade
from distconsole.model.time_text import span_text
from distconsole.model.verbs import verb_of
from distconsole.runs.store.planned import stored_end, stored_plan
from distconsole.runs.store.store import RunStore
from distconsole.tui.prompt.question import Danger

NAMED_HOSTS = 4
NAMED_FILES = 3


def assess(request: ask.Request, now: float) -> tuple[ask.Request, Danger | None]:
    """Return ``request`` with its run resolved, and its danger at ``now`` (UNIX seconds).

    It reads files, which may take long. Raises ConsoleError if the run is ambiguous, or its file cannot be read.
    """
    if isinstance(request, ask.Stop):
        return _assess_stop(request, now)
    if isinstance(request, ask.Export) and request.run is not None:
        with contextlib.suppress(RunNotFoundError):  # the verb itself says that
            request = replace(request, run=RunStore(runs_dir()).resolve(request.run))
    return request, overwriting(verb_of(request).writes, now)


def overwriting(paths: Sequence[str], now: float) -> Danger | None:
    """Return the danger of writing these files, and folders, which end with a slash; or None."""
    found = []
    for given in paths:
        path = expand_home(given)
        with contextlib.suppress(OSError):
            status = path.stat()
            ago = span_text(max(0.0, now - status.st_mtime))
            if path.is_file():
                found.append((path, f"{path} ({status.st_size:,} bytes) was written {ago} ago"))
            elif given.endswith("/") and path.is_dir():
                found.append((path, f"{path} was written {ago} ago"))
    if not found:
        return None
    names = join_some((path for path, _ in found), NAMED_FILES)
    details = tuple(words for _, words in found[:NAMED_FILES])
    return Danger(f"Overwrite {names}?", details, "overwrite")


def _assess_stop(request: ask.Stop, now: float) -> tuple[ask.Request, Danger | None]:
    store = RunStore(runs_dir())
    try:
        run = store.resolve(request.run)
    except RunNotFoundError:
        if any(record.run.startswith(request.run) for record in store.runs()):
            raise  # it may be several
        where = "this machine does not know it; the hosts are asked"
        return request, Danger(f"Stop {request.run}?", (where, _means(request)), "stop it")
    with store.open(run) as run_file:
        record = run_file.record()
    request = replace(request, run=run)
    if stored_end(record) is not None:
        return request, None
    plan = stored_plan(record)
    age = span_text(max(0.0, now - record.started))
    script = plan.script.rpartition("/")[2] if plan else ""
    about = ", ".join(filter(None, (script, f"begun {age} ago")))
    verb = "Kill" if request.grace_seconds == 0 else "Stop"
    details = (f"{_ranks(plan, record.hosts)}: {_means(request, _own_grace(record.request))}",)
    return request, Danger(f"{verb} {run} ({about})?", details, f"{verb.lower()} it")


def _ranks(plan: PlanMade | None, hosts: Sequence[str]) -> str:
    each = {host.host: len(host.ranks) for host in plan.hosts} if plan else dict.fromkeys(hosts, 0)
    named = [f"{host} ({count})" if count else host for host, count in each.items()]
    where = join_some(named, NAMED_HOSTS)
    count = sum(each.values())
    what = count_text(count, "rank") if count else "every rank"
    return f"{what} on {count_text(len(each), 'host')}: {where}"


def _means(request: ask.Stop, own_seconds: float | None = None) -> str:
    """Return the signals of a stop in words; ``own_seconds`` is the run's own grace, None if unknown."""
    grace = own_seconds if request.grace_seconds is None else request.grace_seconds
    if grace == 0:
        return "SIGKILL at once; nothing is saved"
    after = "the run's own grace" if grace is None else f"{grace:g} s"
    return f"SIGTERM to all, SIGKILL to what is left after {after}"


def _own_grace(request: bytes) -> float | None:
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(request) if request else None
        grace = found.get("grace_seconds") if isinstance(found, dict) else None
        return float(grace) if isinstance(grace, int | float) else None
    return None
