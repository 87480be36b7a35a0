"""What Slurm says of a step that it ended, as a run's folder keeps it; it asks Slurm nothing."""

from __future__ import annotations

import os
import re

MAX_TAIL_BYTES = 16 * 1024

_CANCELLED = re.compile(
    r"\*\*\* (?:STEP|JOB) (?P<id>\d+)\S* ON \S+ CANCELLED AT \S+"
    r"(?: DUE (?:TO|to) (?P<why>[A-Za-z ]+?))?(?:,[^*]*| ON NODE \S+)? \*\*\*"
)
_NODE_FAILED = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
_COMPLAINT = re.compile(r"^(?:srun|slurmstepd[^:]*): (?:error|fatal): |^(?=/\S*sh: )")

_REASONS = {
    "TIME LIMIT": "Slurm ended job {job}: its time limit was reached",
    "PREEMPTION": "Slurm preempted job {job}",
    "NODE FAILURE": "Slurm ended job {job}: {node} failed",
    "JOB REQUEUE": "Slurm job {job} was requeued",
}


def read_reason(run_dir: str) -> str:
    """Return why Slurm ended a run's step, in words; empty while it said nothing."""
    log = _read_log(run_dir)
    found = _CANCELLED.search(log)
    if found is None:
        return ""
    failed = _NODE_FAILED.search(log)
    why = (found["why"] or "").upper()
    told = _REASONS.get(why, "Slurm job {job} was cancelled" + (f": {why.lower()}" if why else ""))
    return told.format(job=found["id"], node=failed[1] if failed is not None else "a node of it")


def read_complaint(run_dir: str) -> str:
    """Return the first thing that srun complained of; empty when it did not complain."""
    lines = [line for line in _read_log(run_dir).splitlines() if _COMPLAINT.match(line)]
    return next((_COMPLAINT.sub("", line).strip()[:300] for line in lines), "")


def _read_log(run_dir: str) -> str:
    try:
        with open(os.path.join(run_dir, "step.log"), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MAX_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
