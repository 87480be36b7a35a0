"""Starts this node's ranks of a short collective job and hands back what each one said."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.environment import change_environment, launch_environment
from distconsole_agent.probes.errors import ProbeError, bad_arguments
from distconsole_agent.probes.programs import Ended
from distconsole_agent.probes.scripts import run_script, worker_script
from distconsole_agent.probes.tokens import Tokens

MARK = "distconsole-rank "
MAX_LOCAL_RANKS = 64
MAX_LINES = 2000
MAX_ERROR_LINES = 12
GRACE_SECONDS = 1.5
POLL_SECONDS = 0.05

_TOKENS = Tokens()


def run_ranks(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Run ranks to their end and return ``{"ranks": [...]}``.

    A rank's entry is ``{"rank", "exit_code" (null: killed at the deadline), "seconds", "said":
    [what it printed], "error": [its last lines on stderr]}``.

    Args:
        args: ``ranks`` (global, of this node), ``world_size``, ``master_address``, ``master_port``,
            ``interface``, ``backend``, ``job`` (what the worker shall do, see its docstring),
            ``python``, ``setup``, ``token`` (for ``stop_ranks``); ``env`` and ``unset`` of a
            launch, which then also says the interface; ``set`` and ``remove``: variables, after
            all others.
    """
    ranks = read.items(args, "ranks")
    world = read.whole(args, "world_size", 1, 1, 100_000)
    if not 0 < len(ranks) <= MAX_LOCAL_RANKS or not all(
        isinstance(rank, int) and 0 <= rank < world for rank in ranks
    ):
        raise bad_arguments("ranks is not a list of this node's ranks")
    job = json.dumps(args.get("job", {}))
    if len(job) > read.MAX_TEXT:
        raise bad_arguments("the job is too long")
    environments = [
        _environment(args, rank, index, len(ranks), world) for index, rank in enumerate(ranks)
    ]
    entries: list[dict[str, Any]] = [{} for _ in ranks]
    with _TOKENS.going(read.text(args, "token", "")) as stop:
        threads = [
            threading.Thread(
                target=_run_rank,
                args=(args, environment, job, seconds, stop, entry),
                name=f"rank {rank}",
            )
            for rank, environment, entry in zip(ranks, environments, entries)
        ]
        for thread in threads:
            thread.start()
        _wait(threads, entries, stop)
    return {"ranks": [{"rank": rank, **entry} for rank, entry in zip(ranks, entries)]}


def stop_ranks(args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """Kill the ranks of the job ``token`` a moment from now, in which they may end by themselves."""
    stop = _TOKENS.give_up(read.text(args, "token"))
    if stop is None:
        return {"stopping": False}
    stop.wait(GRACE_SECONDS)
    stop.set()
    return {"stopping": True}


def _wait(
    threads: list[threading.Thread], entries: list[dict[str, Any]], stop: threading.Event
) -> None:
    """Wait for all ranks; once one has failed the others get a moment to say what they saw."""
    failed_at = None
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(POLL_SECONDS)
        if failed_at is None and any(entry.get("exit_code", 0) != 0 for entry in entries):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE_SECONDS:
            stop.set()


def _environment(
    args: dict[str, Any], rank: int, local_rank: int, local_size: int, world: int
) -> dict[str, str]:
    interface = read.optional_text(args, "interface")
    env = {"OMP_NUM_THREADS": "1", **launch_environment(args)}
    if interface is not None and "env" not in args:
        env["GLOO_SOCKET_IFNAME"] = interface
        # NCCL takes a list of prefixes; "=" asks for the exact name.
        env["NCCL_SOCKET_IFNAME"] = f"={interface}"
    env.update(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(local_size),
            "MASTER_ADDR": read.text(args, "master_address"),
            "MASTER_PORT": str(read.whole(args, "master_port", 0, 1, 65535)),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }
    )
    return change_environment(env, args)


def _run_rank(
    args: dict[str, Any],
    env: dict[str, str],
    job: str,
    seconds: float,
    stop: threading.Event,
    entry: dict[str, Any],
) -> None:
    try:
        ended = run_script(
            worker_script(),
            [repr(seconds), read.text(args, "backend", "gloo"), job],
            seconds,
            python=read.optional_text(args, "python") or sys.executable,
            setup=read.optional_text(args, "setup"),
            env=env,
            stop=stop,
        )
    except ProbeError as error:
        entry.update(exit_code=127, seconds=0.0, said=[], error=[error.message])
    else:
        entry.update(_entry(ended))


def _entry(ended: Ended) -> dict[str, Any]:
    said: list[Any] = []
    for line in ended.out.splitlines():
        if line.startswith(MARK) and len(said) < MAX_LINES:
            try:
                said.append(json.loads(line[len(MARK) :]))
            except ValueError:
                continue
    return {
        "exit_code": ended.exit_code,
        "seconds": round(ended.seconds, 3),
        "said": said,
        "error": [line[:500] for line in ended.err.strip().splitlines()[-MAX_ERROR_LINES:]],
    }
