"""One run in the list of a node's runs, also one of which something cannot be read; it changes nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from distconsole_agent.contract.protocol import RUN_FIELDS
from distconsole_agent.journal.journal import JournalError
from distconsole_agent.node_folder.proofs import is_unborn
from distconsole_agent.node_folder.run_files import read_end, read_spec, read_summary

if TYPE_CHECKING:
    from distconsole_agent.journal.active import ActiveRun

UNREADABLE = (OSError, ValueError, KeyError, JournalError)


def describe(folder: str, active: ActiveRun | None) -> dict[str, Any]:
    """Return ``RUN_FIELDS`` of the run in ``folder``, which ``active`` attends to if anybody does.

    Raises:
        FileNotFoundError: when it has gone meanwhile, or holds nothing yet.
    """
    try:
        # Who reads along what another agent writes may not have come to its end yet.
        if active is not None and read_end(folder) is None:
            spec, state, journal = active.spec, active.state, active.journal
            last_seq, writer = journal.last_seq, journal.journal_id
        else:
            spec, end = read_spec(folder), find_end(folder)
            state, last_seq, writer = end["state"], end["seq"], end.get("journal", "")
    except UNREADABLE as error:
        if is_unborn(folder):
            raise FileNotFoundError(folder) from None
        return _unreadable(folder, trouble_with(folder, error))
    known = {name: spec.get(name) for name in RUN_FIELDS}
    told = {"state": state, "last_seq": last_seq, "journal": writer}
    return {**known, **told, "trouble": None}


def find_end(folder: str) -> dict[str, Any]:
    """Return the ``end`` of a run that nobody attends to.

    Raises:
        OSError: one of ``UNREADABLE``, when there is none, or it cannot be read.
    """
    end = read_end(folder)
    if end is None:
        read_spec(folder)  # without it nobody can attend to the run: that is what to tell
        end = read_summary(folder)
    return end


def trouble_with(folder: str, error: Exception) -> str:
    """Return in words what in a run's folder cannot be read."""
    if isinstance(error, OSError):
        return f"{error.filename or folder}: {error.strerror or error}"
    return f"{folder}/{'journal' if isinstance(error, JournalError) else 'spec.json'}: {error}"


def _unreadable(folder: str, trouble: str) -> dict[str, Any]:
    """Return what is known of a run by its folder alone."""
    created = os.stat(folder).st_mtime
    known = {"run": os.path.basename(folder), "name": "", "script": "", "launcher": ""}
    none = {"world_size": 0, "node_index": 0, "nodes": [], "last_seq": 0, "journal": ""}
    told = {"state": "unreadable", "trouble": trouble[:500]}
    return {**known, "created": created, **none, **told}
