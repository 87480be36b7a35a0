"""The small files of a run's folder, and the names that such a folder may have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from distconsole_agent.contract import records
from distconsole_agent.contract.protocol import RUN_FIELDS, ErrorCode, Values
from distconsole_agent.contract.refusal import Refusal, bad_request
from distconsole_agent.contract.runspec import RunSpec, SpecError, parse_spec, read_spec
from distconsole_agent.journal.active import RunEnd, last_entry
from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.reader import JournalError
from distconsole_agent.node_folder.proofs import is_unborn
from distconsole_agent.supervisor.proctree import read_environ
from distconsole_agent.telemetry.mapping import VISIBLE
from distconsole_agent.telemetry.mapping import visible_devices as chosen_devices

if TYPE_CHECKING:
    from distconsole_agent.journal.active import ActiveRun


_ID_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")

UNREADABLE = (OSError, ValueError, KeyError, JournalError)


def check_run_id(run: object) -> str:
    """Return ``run`` if it may name a folder. Raises Refusal (``bad_request``)."""
    if not isinstance(run, str) or not is_run_id(run):
        raise bad_request("run is 3 to 40 lower-case letters, digits and dashes")
    return run


def visible_devices(pid: object) -> str | None:
    """Return the GPUs that Slurm gave a process, numbered as on the node; None without any."""
    read = read_environ(pid) if isinstance(pid, int) else {}
    names = ("SLURM_STEP_GPUS", *VISIBLE)
    given = {n: read[n.encode()].decode("ascii", "replace") for n in names if read.get(n.encode())}
    return given.get(names[0]) or chosen_devices(given)


def is_run_id(name: str) -> bool:
    return 3 <= len(name) <= 40 and name[0] != "-" and _ID_LETTERS.issuperset(name)


def check_spec(run: str, raw: object) -> RunSpec:
    """Return the spec of ``run`` that a console sends; raises Refusal: ``bad_request``, ``no_script``."""
    try:
        parsed = parse_spec(raw)
    except SpecError as error:
        raise bad_request(str(error)) from None
    if parsed.run != run:
        raise bad_request(f"the spec is of run {parsed.run}, not {run}")
    # Variables of the image cannot be seen from here.
    needs = () if parsed.container else parsed.needs
    for path in map(os.path.expanduser, needs):
        if not is_script(path):
            raise Refusal(ErrorCode.NO_SCRIPT, f"the script {path} does not exist here")
    return parsed


def read_own_spec(folder: str) -> RunSpec:
    """Return a run's ``spec.json``; raises OSError, or SpecError if it is not this run's."""
    spec = read_spec(os.path.join(folder, "spec.json"))
    if spec.run != os.path.basename(folder):
        raise SpecError(f"the spec is of the run {spec.run}")
    return spec


def read_end(folder: str) -> RunEnd | None:
    """Return the ``end`` entry of a run's summary; None without one."""
    end = records.read_file(RunEnd, os.path.join(folder, "ended.json"))
    return end if end is not None and end.kind == "end" else None


def is_script(path: str) -> bool:
    """Return True if Python can run ``path``: a file, or a folder with ``__main__.py``."""
    return os.path.isfile(path) or os.path.isfile(os.path.join(path, "__main__.py"))


def describe(folder: str, active: ActiveRun | None) -> Values:
    """Return ``RUN_FIELDS`` of the run in ``folder``, by ``active`` if it attends; raises FileNotFoundError."""
    try:
        # An agent that reads along another's journal may not have come to its end yet.
        if active is not None and read_end(folder) is None:
            spec, state, journal = active.spec, active.state, active.journal
            last_seq, writer = journal.last_seq, journal.journal_id
        else:
            spec, end = read_own_spec(folder), find_end(folder)
            state, last_seq, writer = end.state, end.seq, end.journal or ""
    except UNREADABLE as error:
        if is_unborn(folder):
            raise FileNotFoundError(folder) from None
        return {
            **dict.fromkeys(("name", "script", "launcher", "journal"), ""),
            **dict.fromkeys(("world_size", "node_index", "last_seq"), 0),
            "run": os.path.basename(folder),
            "created": os.stat(folder).st_mtime,
            "nodes": [],
            "state": "unreadable",
            "trouble": trouble_with(folder, error)[:500],
        }
    written = records.write(spec)
    known = {name: written.get(name) for name in RUN_FIELDS} | {"world_size": spec.world_size or 0}
    return {**known, "state": state, "last_seq": last_seq, "journal": writer, "trouble": None}


def find_end(folder: str) -> RunEnd:
    """Return the ``end`` of a run that no agent collects, from summary or journal; raises one of ``UNREADABLE``."""
    end = read_end(folder)
    if end is not None:
        return end
    read_own_spec(folder)  # without a spec a run cannot be collected: report that
    journal = Journal(os.path.join(folder, "journal"))
    try:
        journal.refresh()
        if not journal.ended:
            raise JournalError("it has no end, and nobody attends to it")
        return last_entry(journal)
    finally:
        journal.close()


def trouble_with(folder: str, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or folder}: {error.strerror or error}"
    return f"{folder}/{'journal' if isinstance(error, JournalError) else 'spec.json'}: {error}"
