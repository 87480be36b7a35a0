"""The probes that the console may ask for on this node. Every probe is read-only and has a deadline."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.arguments import (
    Arguments,
    ProbeError,
    bad_arguments,
    probe_failure,
    probe_timeout,
)
from distconsole_agent.probes.environment import use_environment
from distconsole_agent.probes.gpu import gpus
from distconsole_agent.probes.host import kernel_log, leftovers, machine, slurm
from distconsole_agent.probes.network import between, connecting, listening, own_network
from distconsole_agent.probes.software import container, engines, python_env, script

__all__ = ["ProbeError", "run"]

Facts = dict[str, Any]
Probe = Callable[..., Mapping[str, object]]
"""Takes the seconds that it has, and its arguments by name; returns the facts of its group.

Raises a ProbeError for malformed arguments, and for a source that does not answer.
"""

MAX_MANY = 32
GRACE_SECONDS = 0.5
"""A probe that keeps to its deadline gets this much longer to hand in its results."""


def run(
    group: str,
    args: Arguments,
    deadline_seconds: float,
    environment: Mapping[str, str] | None = None,
) -> Facts:
    """Return the facts of ``group``.

    Args:
        group: A name of the table below, or ``many``: ``{"probes": [{"name", "group", "args",
            "seconds"}]}`` gives ``{"answers": {name: {"facts" or "error", "seconds"}}}``.
        deadline_seconds: After this long the answer is an error, even if the probe hangs.
        environment: Of the session that asks, for searches and programs; None for our own.

    Raises:
        ProbeError: ``bad_request`` for a group or arguments that mean nothing, ``timed_out``,
            ``probe_failed``.
    """
    with use_environment(environment):
        if group == "many":
            return _many(args, deadline_seconds)
        return _one(group, args, deadline_seconds)


def _one(group: str, args: Arguments, seconds: float) -> Facts:
    probe = _GROUPS.get(group)
    if probe is None:
        raise bad_arguments(f"there is no probe {group[:64]!r}")
    try:
        return dict(probe(seconds, **read.read_arguments(probe, args)))
    except ProbeError:
        raise
    # The guard of all probes: a surprise in one of them is an answer, not the end of the agent.
    except Exception as error:
        raise probe_failure(f"{type(error).__name__}: {error}"[:500]) from error


def _many(args: Arguments, seconds: float) -> Facts:
    asked = read.items(args, "probes")
    if len(asked) > MAX_MANY or not all(isinstance(item, dict) for item in asked):
        raise bad_arguments(f"probes is not a list of at most {MAX_MANY} objects")
    ends = time.monotonic() + seconds
    answers: dict[str, Facts] = {}
    threads: list[tuple[str, float, threading.Thread]] = []
    for item in asked:
        name = read.text(item, "name")
        own_seconds = read.number({"seconds": seconds, **item}, "seconds")
        own_seconds = read.bounded(own_seconds, min(0.05, seconds), seconds)
        thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(_answer, item, own_seconds, answers),
            name=f"probe {name}",
            daemon=True,
        )
        thread.start()
        threads.append((name, min(ends, time.monotonic() + own_seconds), thread))
    for name, due, thread in threads:
        thread.join(max(0.0, due + GRACE_SECONDS - time.monotonic()))
        if thread.is_alive():
            late = probe_timeout("the node was still looking when the time was up")
            answers.setdefault(name, {"error": {"code": late.code, "message": late.message}})
    return {"answers": dict(answers)}


def _answer(item: Facts, seconds: float, answers: dict[str, Facts]) -> None:
    began = time.monotonic()
    try:
        args = item.get("args", {})
        if not isinstance(args, dict):
            raise bad_arguments("args is not an object")
        answer: Facts = {"facts": _one(read.text(item, "group"), args, seconds)}
    except ProbeError as error:
        answer = {"error": {"code": error.code, "message": error.message}}
    answer["seconds"] = round(time.monotonic() - began, 6)
    answers.setdefault(item["name"], answer)


_GROUPS: dict[str, Probe] = {
    "os": machine.look,
    "container": container.look,
    "between": between.look,
    "python_env": python_env.look,
    "script": script.look,
    "script.there": script.look_whether_there,
    "folders": machine.look_at_folders,
    "mpi": engines.look,
    "mpi.ssh": between.mpirun,
    "engines": engines.look_before_run,
    "gpu": gpus.look,
    "port": own_network.look_at_ports,
    "proc": leftovers.look_at_processes,
    "shm": leftovers.look_at_shared_memory,
    "names": own_network.resolve,
    "import": python_env.import_torch,
    "import.end": python_env.end_import,
    "kernel": kernel_log.look,
    "fabric": own_network.look_at_fabric,
    "net": own_network.look,
    "net.listen": listening.listen,
    "net.close": listening.close,
    "net.connect": connecting.connect,
    "net.bandwidth": connecting.send,
    "slurm": slurm.look,
    "slurm.encode": slurm.encode,
    "slurm.decode": slurm.decode,
    "slurm.limits": slurm.step_limits,
    "build": engines.look_before_build,
    "build.wheel": engines.read_wheel,
    "launch": python_env.start,
}
