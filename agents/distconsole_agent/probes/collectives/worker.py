"""Script: one rank of a short job that verifies collectives to the last bit and times them.

``collective_worker.py SECONDS ENGINE JOB``; the environment holds rank and addresses in the form
that the engine reads. ENGINE is ``gloo``, ``nccl``, ``horovod`` or ``mpi``. JOB is
JSON: ``{"seed", "timeout_seconds", "cases": [{"op", "dtype", "elements", "iterations"}], "sweep":
{"ops", "bytes", "dtype", "case_seconds", "seconds"} | null, "linked": by the linker's MPI, "preloaded": server that forks ranks}``. Each line printed is a mark and an
object: ``stage`` (progress of the rank), ``group`` (its rank and world), ``case`` (one
verified case), ``left_out`` (cases without time), ``took`` (transports between ranks).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Callable

from distconsole_agent.probes.collectives.by_mpi import ByteValues, Mpi
from distconsole_agent.probes.collectives.by_torch import Horovod, TensorValues, Torch
from distconsole_agent.probes.collectives.engine_words import own_sockets, record_nccl, recorded
from distconsole_agent.probes.collectives.preloaded import be_forked
from distconsole_agent.probes.collectives.values import (
    ITEM_BYTES,
    Case,
    cases_of,
    measure,
    say,
    stage,
)

CASE_SECONDS = 0.05
SAME, LARGER = 2, 5
"""How much longer the next case of a sweep may take at the same size, and at the next (fourfold)."""

LACKS = (
    *("not support", "nsupported", "not implemented", "Invalid scalar type", "not built"),
    *("Invalid data type", "Invalid datatype", "has no "),
)

Measure = Callable[[Any, Case, int, float], Any]


def join_ranks(name: str, job: dict[str, Any]) -> tuple[Any, Any]:
    """Return the engine, once all ranks have met, and the values for its cases."""
    timeout_seconds, seed = float(job["timeout_seconds"]), int(job["seed"])
    if name == "mpi":
        mpi = Mpi(timeout_seconds, bool(job.get("linked")))
        return mpi, ByteValues(mpi.world, seed)
    engine = Horovod() if name == "horovod" else Torch(name, timeout_seconds)
    return engine, TensorValues(engine.torch, engine.world, seed)


def run_case(engine: Any, measure_on: Measure, case: Case, number: int, seconds: float) -> None:
    """One case; a type or an operation that this build lacks is reported, and is no failure."""
    stage(f"case {case.op} {case.dtype} {case.elements}")
    said = {"case": case.op, "dtype": case.dtype, "elements": case.elements}
    try:
        timed = measure_on(engine, case, number, seconds)
    except (NotImplementedError, AttributeError, TypeError, ValueError) as error:
        say(**said, unsupported=str(error)[:300])
    except RuntimeError as error:
        if not any(word in str(error) for word in LACKS):
            raise
        say(**said, unsupported=str(error)[:300])
    else:
        say(
            **said,
            element_bytes=ITEM_BYTES[case.dtype],
            wrong=timed.wrong,
            verified=timed.verified,
            iterations=timed.iterations,
            time_us=None if timed.seconds is None else timed.seconds * 1e6,
        )


def run_cases(
    engine: Any,
    measure_on: Measure,
    job: dict[str, Any],
    began: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Do every case, if all ranks are there, until the job's time for them is over.

    All ranks stop at the same case: the slowest one decides, by the duration of the case before.
    Time counts from ``began``, by ``clock``, when this rank started: imports count, too.
    """
    if job.get("world_size", engine.world) != engine.world:
        return
    cases = cases_of(job, engine.world)
    sweep = job.get("sweep") or {}
    seconds, took = sweep.get("seconds"), 0.0
    for number, case in enumerate(cases):
        swept = seconds and number >= len(job["cases"])
        larger = number > 0 and case.elements > cases[number - 1].elements
        ahead = (LARGER if larger else SAME) * took
        if swept and engine.greatest(clock() - began + ahead) > seconds:
            say(left_out=[list(each[:3]) for each in cases[number:]], seconds=seconds)
            return
        before = clock()
        run_case(engine, measure_on, case, number, sweep.get("case_seconds", CASE_SECONDS))
        took = clock() - before


def tell_ways(name: str, words: int | None) -> None:
    """Say which ways the engine took, by NCCL's own words or, of Gloo, the kernel's."""
    if words is not None:
        took = recorded(words)
    else:
        store = os.environ.get("MASTER_PORT", "")
        pairs = own_sockets(int(store) if store.isdigit() else None) if name == "gloo" else []
        took = {"engine": "Gloo", "sockets": pairs} if pairs else None
    if took is not None:
        say(took=took)


def main(seconds: float, name: str, job: dict[str, Any]) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 5.0)
    sys.path[:] = globals().get("PATH", sys.path)
    began = time.monotonic()
    if loaded := job.pop("preloaded", None):
        be_forked(loaded, ["-c", repr(seconds), name, json.dumps(job)])
    stage("started")
    words = record_nccl() if name == "nccl" else None
    try:
        engine, values = join_ranks(name, job)
        signal.setitimer(signal.ITIMER_REAL, seconds + 5.0)
        stage("joined the group")
        say(group=engine.place())

        def measure_on(engine: Any, case: Case, number: int, seconds: float) -> Any:
            return measure(engine, values, case, number, seconds)

        run_cases(engine, measure_on, job, began)
    finally:
        # Also of a job that failed: NCCL's warnings are the reason.
        tell_ways(name, words)
    stage("done")
    engine.close()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
