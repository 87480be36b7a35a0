"""GPUs while something is copied to them, by another process. It loads none that anybody uses."""

from __future__ import annotations

import json
import sys
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.errors import failed
from distconsole_agent.probes.gpu.gpus import library_path
from distconsole_agent.probes.host.procfs import read_process, uptime_seconds
from distconsole_agent.probes.programs import Ended, last_words, run_script
from distconsole_agent.probes.sources import LOAD, packed_script
from distconsole_agent.probes.tokens import Tokens

MARK = "distconsole-load "
MAX_WANTED = 64
SHARE = 0.8
"""Of the time for copies; the rest is for CUDA to start and to go."""

_TOKENS = Tokens()


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"gpus": [...]}``, an object for each GPU: see ``load_gpus.py``.

    One with ``skipped`` was left alone, and ``process`` uses it; ``error`` is CUDA's, also where CUDA
    did not answer.

    Args:
        args: ``uuids``: only these GPUs, all if there are none; ``token``, for ``stop``.
        seconds: After so long the process that copies is killed.

    Raises:
        ProbeError: where there is nothing to ask.
    """
    wanted = read.texts(args, "uuids")[:MAX_WANTED]
    with _TOKENS.going(read.text(args, "token", "")) as stopped:
        ended = run_script(
            packed_script(LOAD).encode(),
            [repr(seconds * SHARE), library_path(), *wanted],
            seconds,
            python=sys.executable,
            stop=stopped,
        )
    entries = _entries(ended)
    if ended.exit_code and not entries:
        raise failed(f"the process that copies ended: {last_words(ended)}")
    for entry in entries.values():
        if entry.pop("begun", False):
            entry["error"] = _explain_silence(ended, stopped.is_set())
        _name_process(entry)
    return {"gpus": [entries[index] for index in sorted(entries)]}


def stop(args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """Kill the process that copies for ``token``: nobody waits for it any more."""
    found = _TOKENS.give_up(read.text(args, "token"))
    if found is not None:
        found.set()
    return {"stopping": found is not None}


def _entries(ended: Ended) -> dict[int, dict[str, Any]]:
    """Return what was said last of each GPU."""
    found: dict[int, dict[str, Any]] = {}
    for line in ended.out.splitlines():
        if line.startswith(MARK):
            try:
                entry = json.loads(line[len(MARK) :])
            except ValueError:  # killed in the middle of a line
                continue
            found[int(entry["index"])] = entry
    return found


def _explain_silence(ended: Ended, stopped: bool) -> str:
    if stopped:
        return "the check was given up"
    if ended.exit_code is None:
        return f"CUDA did not answer in {ended.seconds:.1f} s"
    return f"the process that copies ended: {last_words(ended)}"


def _name_process(entry: dict[str, Any]) -> None:
    pid = entry.pop("pid", None)
    process = read_process(int(pid), uptime_seconds()) if pid else None
    if pid:
        entry["process"] = process.told() if process is not None else {"pid": pid}
