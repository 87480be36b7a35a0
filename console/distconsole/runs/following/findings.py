"""Findings about a run's journals and its store while it is followed."""

from __future__ import annotations

import time
from typing import Any

from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import RunFinding
from distconsole.runs.detectors.ranks import RanksSeen
from distconsole.ssh.plain import plain_text


def unread_finding(run: str, host: str, count: int) -> RunFinding:
    return _finding(
        run,
        "run.journal_unread",
        f"{count_text(count, 'journal entry', 'journal entries')} of {host} cannot be read; "
        "such entries are left out",
        host,
        expected="entries as the agent's version has them",
        hint=f"a damaged disk or memory of {host} does this: look at its kernel's log",
    )


def gap_finding(run: str, host: str, gap: range) -> RunFinding:
    return _finding(
        run,
        "run.journal_gap",
        f"{len(gap)} journal entries of {host} are missing",
        host,
        seen=f"entries {gap[0]} to {gap[-1]}",
        expected="every number from 1 on",
    )


def loss_finding(run: str, host: str, first: int, last: int, *, known: bool) -> RunFinding:
    """Return that a journal has lost entries that are kept here.

    Unless the writer is ``known``, they may not be lost: the journal is read again.
    """
    lost = last - first + 1
    entries = f"{lost} entries" if lost > 1 else "entry"
    return _finding(
        run,
        "run.journal_lost",
        f"{host} has lost the last {entries} of its journal; what it told is kept here"
        if known
        else f"the journal of {host} is read anew from its beginning: who wrote what is "
        "kept here is not known",
        host,
        severity=Severity.WARN if known else Severity.INFO,
        seen=f"entries {first} to {last}",
        expected="a node keeps what it has told",
        hint=f"a loss of power or a failed disk does this: look at the kernel's log and the uptime of {host}; "
        "nobody else can fetch these entries",
    )


def trouble_finding(run: str, host: str, why: str) -> RunFinding:
    """Return why a host cannot write its journal for now; ``why`` is empty when it can again."""
    why = plain_text(why)
    if not why:
        summary = f"{host} keeps the record of this run again"
        return _finding(run, "run.journal", summary, host, severity=Severity.INFO)
    return _finding(
        run,
        "run.journal",
        f"{host} cannot keep the record of this run: {why}",
        host,
        expected="room in the node folder",
        hint=f"{_for_a_disk(why)} on {host}; its ranks go on unseen, and what they did is told then",
    )


def lines_finding(run: str, host: str, rank: int | None) -> RunFinding:
    who = "what starts the ranks" if rank is None else f"rank {rank}"
    ranks = "" if rank is None else f" --rank {rank}"
    return _finding(
        run,
        "run.output_left_out",
        f"lines of {who} on {host} come faster than this console takes them: some "
        "are not shown, and a line says so where they are missing",
        host,
        hint=f"they are kept: distconsole logs {run}{ranks}",
    )


def store_finding(run: str, failure: str) -> RunFinding:
    return _finding(
        run,
        "run.store",
        "the rest of this run is not kept here",
        seen=failure,
        hint=f"{_for_a_disk(failure)} on this machine; the nodes keep their journals, distconsole attach fetches them again",
    )


def full_finding(run: str, limit_bytes: int) -> RunFinding:
    return _finding(
        run,
        "run.store_limit",
        "what its ranks print from here on is shown, and not kept on this machine",
        seen=f"the run takes {limit_bytes // (1 << 20)} MiB here, its limit",
        hint="steps, metrics, findings and the end are kept; --store-limit allows more",
    )


def _finding(run: str, check: str, summary: str, host: str = "", **more: Any) -> RunFinding:
    hosts = (host,) if host else ()
    return RanksSeen(run).finding(time.time(), check, summary, hosts=hosts, **more)


def _for_a_disk(why: str) -> str:
    """Return the remedy for a disk that refused a write for ``why``: more room helps a full one only."""
    full = any(words in why.lower() for words in ("space", "full", "quota"))
    return "make room" if full else "look at the disk and its mount"
