"""``check``: a session is opened for the judges. It judges nothing itself."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.config.paths import passports_dir
from distconsole.model.events import Event
from distconsole.model.requests import Check, Explain
from distconsole.operations.sessions import SessionSource


def check(request: Check, sessions: SessionSource) -> Iterator[Event]:
    """Judge the hosts."""
    from distconsole.checks import Passports, run_check  # noqa: PLC0415  (for this verb alone)
    from distconsole.operations.short_run import short_run  # noqa: PLC0415

    plan = None
    if request.target is not None:
        from distconsole.operations.targeting import targeted  # noqa: PLC0415

        plan = targeted(request, request.target)
    with sessions(request.where) as session:
        passports = Passports(passports_dir())
        yield from run_check(request, session, passports=passports, start=short_run, plan=plan)


def explain(request: Explain) -> Iterator[Event]:
    """Say what one check does."""
    from distconsole.checks import explain_check  # noqa: PLC0415

    yield from explain_check(request)
