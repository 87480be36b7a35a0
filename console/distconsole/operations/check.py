"""``check``: a session is opened for the judges. It judges nothing itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from distconsole.config.paths import passports_dir
from distconsole.errors import ConfigError
from distconsole.model.events import CheckEnded, Event
from distconsole.model.requests import Check, Explain
from distconsole.operations.control import interrupt
from distconsole.operations.sessions import SessionSource
from distconsole.session import Session


def check(request: Check, sessions: SessionSource, began: float | None = None) -> Iterator[Event]:
    """Judge the hosts.

    Args:
        began: As ``Control`` has it; None takes this moment.
    """
    began = time.monotonic() if began is None else began
    from distconsole.checks.engine.baseline import Passports  # noqa: PLC0415  (for this verb alone)
    from distconsole.checks.engine.run import run_check  # noqa: PLC0415
    from distconsole.operations.launch.short_run import short_run  # noqa: PLC0415

    plan = None
    if request.target is not None:
        from distconsole.operations.launch.targeting import make_planner  # noqa: PLC0415

        plan = make_planner(request, request.target)
    with sessions(request.where) as session:
        passports = Passports(passports_dir())
        events = run_check(
            request, session, passports=passports, start=short_run, plan=plan, began=began
        )
        if request.write_profile is None:
            yield from events
        else:
            yield from _written(request.write_profile, events, session)


def _written(file: str, events: Iterator[Event], session: Session) -> Iterator[Event]:
    """Write proven cures at the end, not after Ctrl-C; the report is told also where that fails."""
    from distconsole.operations.profile import profile_path, write_profile  # noqa: PLC0415

    path = profile_path(file)
    for event in events:
        if not isinstance(event, CheckEnded) or event.report.cancelled:
            try:
                yield event
            except KeyboardInterrupt as by:
                yield from interrupt(events, by)
                return
            continue
        report = event.report
        try:
            profile = write_profile(path, report.findings, session.config, session.cluster)
        except ConfigError:
            yield event
            raise
        yield CheckEnded(report=msgspec.structs.replace(report, profile=profile))


def explain(request: Explain) -> Iterator[Event]:
    """Say what one check does."""
    from distconsole.checks.engine.reference import explain_check  # noqa: PLC0415

    yield from explain_check(request)
