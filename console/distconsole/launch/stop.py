"""A run stopped on every node. It waits for nobody to be gone; the journals say when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distconsole.launch.everywhere import on_every
from distconsole.model.names import HostName
from distconsole.model.outcome import Outcome
from distconsole.session import Session

STOP_SECONDS = 15.0


def stop(
    session: Session, hosts: Sequence[HostName], run: str, reason: str, grace_seconds: float | None
) -> list[Outcome[dict[str, Any]]]:
    """Ask every node to end the run: SIGTERM, and SIGKILL after ``grace_seconds``.

    One node that hears it suffices, because the coordinator tells the others; asking all of them
    makes it independent of which one can be reached.

    Args:
        session: Where to ask.
        hosts: Where the run is.
        run: Its id.
        reason: ``user``, ``sigint`` or ``sigterm``: decides the exit code.
        grace_seconds: None takes the run's own, 0 kills.
    """
    arguments: dict[str, Any] = {"run": run, "reason": reason}
    if grace_seconds is not None:
        arguments["grace"] = grace_seconds
    return on_every(session, hosts, lambda link: link.request("stop", STOP_SECONDS, **arguments))
