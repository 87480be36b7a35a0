"""The checks that findings of a run are of, and the findings that a node's own words make."""

from __future__ import annotations

import msgspec

from distconsole.model.findings import Severity
from distconsole.model.run_events import RunFinding
from distconsole.model.run_summary import FirstFailure
from distconsole.rpc.frames import NoteEntry, RestartEntry
from distconsole.runs.detectors.ranks import Ranks, first_of, ranks_text
from distconsole.runs.detectors.remedies import LEFT_FIRST, remedy

NODE_LOST, RANK_LOST = "run.node_lost", "run.rank_lost"
"""Checks that say that a node or a rank is gone; of severity ``warn`` where the run goes on."""

FIRST_FAILURE = "run.first_failure"
STRAGGLER = "run.straggler"
NOT_FINITE = "run.not_finite"
UNSOUND = ("run.desync", "run.alone", "run.world", "run.split", "run.same_batch", "run.same_epoch")
"""Checks that say that the ranks do not train one model as they should; that does not pass by itself."""

MAX_HOSTS_NAMED = 4
MAX_SUMMARY_CHARS = 240
"""Of an error in a summary; the whole of it is in the traceback."""


def first_failure_finding(
    ranks: Ranks, first: FirstFailure, left: tuple[int, ...], t: float
) -> RunFinding:
    """Return who failed first, with its traceback in ``seen``; ``left`` are ranks that had ended well before."""
    advice = remedy(first.error, first.traceback)
    if left:
        who = f"{ranks_text(left)} on {first_of(ranks.hosts_of(left), MAX_HOSTS_NAMED)}"
        advice = advice.replace(LEFT_FIRST, f"{who} left first, with exit code 0")
    logs = f"distconsole logs {ranks.run}" + (f" --rank {first.rank}" if first.of_rank else "")
    error = first.error or f"exit code {first.exit_code}"
    if len(error) > MAX_SUMMARY_CHARS:
        error = f"{error[:MAX_SUMMARY_CHARS]}…"
    return ranks.finding(
        t,
        FIRST_FAILURE,
        msgspec.structs.replace(first, error=error).blame,
        (first.rank,) if first.of_rank else (),
        hosts=(first.host,),
        severity=Severity.FAIL,
        seen=first.traceback,
        expected="every rank ends with exit code 0",
        hint="; ".join(filter(None, (advice, logs))),
    )


def restart_finding(
    ranks: Ranks, first: FirstFailure, left: tuple[int, ...], entry: RestartEntry, t: float
) -> RunFinding:
    """Return who failed first in an attempt that another follows, and what that one goes on from."""
    soon = f" in {entry.pause:.3g} s" if entry.pause else ""
    since = f"with the checkpoint {entry.checkpoint}" if entry.checkpoint else "with no checkpoint"
    told = first_failure_finding(ranks, first, left, t)
    return msgspec.structs.replace(
        told,
        check="run.restart",
        severity=Severity.WARN,
        summary=f"{told.summary}; restart {entry.restart} of {entry.of}{soon}, {since}",
    )


def note_finding(ranks: Ranks, host: str, entry: NoteEntry, t: float) -> RunFinding:
    """Return what a node has to say about ``host``."""
    known = entry.severity in set(Severity)
    return ranks.finding(
        t,
        entry.check,
        entry.summary,
        () if entry.rank is None else (entry.rank,),
        hosts=(host,),
        severity=Severity(entry.severity) if known else Severity.INFO,
        seen=entry.seen or "",
        hint=entry.hint or "",
    )


def is_unsound(finding: RunFinding) -> bool:
    """Whether what ``finding`` says makes the training worthless until it is started anew.

    A metric that is no number says so itself, and may be one again; ``seen`` has its value.
    """
    of_gradient = finding.check == NOT_FINITE and not finding.seen
    return finding.check in UNSOUND or of_gradient
