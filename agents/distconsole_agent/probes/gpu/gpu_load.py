"""GPUs that nobody uses, while another process copies to them."""

from __future__ import annotations

from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.errors import failed
from distconsole_agent.probes.gpu.gpus import library_environment
from distconsole_agent.probes.host.procfs import read_process, uptime_seconds
from distconsole_agent.probes.programs import Ended
from distconsole_agent.probes.scripts import ask_script
from distconsole_agent.probes.tokens import Tokens

MAX_WANTED = 64
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
    job = {"wanted": read.texts(args, "uuids")[:MAX_WANTED]}
    with _TOKENS.going(read.text(args, "token", "")) as stopped:
        parts, ended = ask_script(
            "load_gpus", job, seconds, env=library_environment(), stop=stopped
        )
    entries = sorted(parts.values(), key=lambda entry: int(entry["index"]))
    if ended.exit_code and not entries:
        raise failed(f"the process that copies ended: {ended.last_words}")
    for entry in entries:
        if entry.pop("begun", False):
            entry["error"] = _explain_silence(ended, stopped.is_set())
        _name_process(entry)
    return {"gpus": entries}


def stop(args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """Kill the process that copies for ``token``: nobody waits for it any more."""
    found = _TOKENS.give_up(read.text(args, "token"))
    if found is not None:
        found.set()
    return {"stopping": found is not None}


def _explain_silence(ended: Ended, stopped: bool) -> str:
    if stopped:
        return "the check was given up"
    if ended.exit_code is None:
        return f"CUDA did not answer in {ended.seconds:.1f} s"
    return f"the process that copies ended: {ended.last_words}"


def _name_process(entry: dict[str, Any]) -> None:
    pid = entry.pop("pid", None)
    process = read_process(int(pid), uptime_seconds()) if pid else None
    if pid:
        entry["process"] = process.told() if process is not None else {"pid": pid}
