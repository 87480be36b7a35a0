"""What Slurm says of a step that it ended, as a run's folder keeps it; it asks Slurm nothing."""

from __future__ import annotations

import os
import re

MAX_TAIL_BYTES = 16 * 1024

_CANCELLED = re.compile(
    r"\*\*\* (?:STEP|JOB) (?P<id>\d+)\S* ON \S+ CANCELLED AT \S+(?: DUE (?:TO|to) (?P<why>[A-Za-z ]+?))?"
    r"(?: ON NODE \S+)? \*\*\*"
)
_NOISE = re.compile(r"^(srun|slurmstepd[^:]*): (error: |fatal: )?")

_REASONS = {
    "TIME LIMIT": "Slurm ended job {job}: its time limit was reached",
    "PREEMPTION": "Slurm preempted job {job}",
    "NODE FAILURE": "Slurm ended job {job}: a node of it failed",
    "JOB REQUEUE": "Slurm job {job} was requeued",
}


def read_reason(run_dir: str) -> str:
    """Return why Slurm ended a run's step, in words; empty while it said nothing."""
    found = _CANCELLED.search(_read_log(run_dir))
    if found is None:
        return ""
    why = (found["why"] or "").upper()
    told = _REASONS.get(why, "Slurm job {job} was cancelled" + (f": {why.lower()}" if why else ""))
    return told.format(job=found["id"])


def read_last_words(run_dir: str) -> str:
    """Return the first line that srun complained with; empty when it said nothing."""
    lines = [_NOISE.sub("", line).strip() for line in _read_log(run_dir).splitlines()]
    return next((line[:300] for line in lines if line), "")


def _read_log(run_dir: str) -> str:
    try:
        with open(os.path.join(run_dir, "step.log"), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MAX_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
