"""Why Slurm ended a step: its messages, as the run's folder keeps them."""

from __future__ import annotations

import os
import re
import socket
from typing import NamedTuple

from distconsole_agent.contract import records
from distconsole_agent.system.kernel_files import end_of

STEP_SCRIPT, STEP_LOG, STEP_ENDED, STEP_ASK = "step.sh", "step.log", "step.ended", "step.ask"
"""In the folder of a run's first node: srun's parent, its output, its end, and the pipe of ``ask_slurm``."""

MAX_TAIL_BYTES = 16 * 1024

_CANCELLED = re.compile(
    r"\*\*\* (?:STEP|JOB) (?P<id>\d+)\S* ON \S+ (?:CANCELLED AT \S+"
    r"(?: DUE (?:TO|to) (?P<why>[A-Za-z ]+?))?(?:,[^*]*| ON NODE \S+)?|(?P<failed>FAILED) [^*]*) \*\*\*"
)
_PLAIN = ("", "SIGNAL TERMINATED")
"""The reason after scancel's own signal; from 25.05 on slurmstepd names every signal."""

_ANSWER = re.compile(r"^JobId=\d+ .*", re.MULTILINE)
"""A job with a GraceTime gets the signals of scancel first, and only scontrol knows of the preemption."""

_OVER_MEMORY = re.compile(
    r"(?:slurmstepd-(\S+): )?error: StepId=(\d+)\S* exceeded (?:virtual )?memory limit"
)
"""By JobAcctGatherParams=OverMemoryKill; the other nodes then say that the step was cancelled."""

_NODE_FAILED = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
_COMPLAINT = re.compile(
    r"^(?:(?:srun|slurmstepd[^:]*):|\[[^\]]+\]) (?:error|fatal): |^(?=/\S*sh: )"
)
"""From 25.05 on, and with LogTimeFormat=format_stderr, slurmstepd begins with the time in place of its name."""

_KILLED = re.compile(r"^\S*sh: line \d+: +\d+ \S.* srun ", re.MULTILINE)
"""bash's own words on a child that a signal ended: its ``$?`` may as well be srun's own exit code."""

_NOT_BY_SLURM = re.compile(r"^srun: (?:error: \S+: tasks? |forcing job termination)", re.MULTILINE)
"""Before srun aborts the step: a task has ended by itself, or srun has received a signal."""

_REASONS = {
    "TIME LIMIT": "Slurm ended job {job}: its time limit was reached",
    "PREEMPTION": "Slurm preempted job {job}",
    "NODE FAILURE": "Slurm ended job {job}: {node}",
    "JOB REQUEUE": "Slurm job {job} was requeued",
    "FAILED": "Slurm ended job {job}: it failed",
}


def ask_slurm(run_dir: str) -> bool:
    """Have srun's parent append to the log what Slurm knows of the job; return False if there is no such parent."""
    try:
        pipe = os.open(os.path.join(run_dir, STEP_ASK), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(pipe, "wb") as asked:
        asked.write(b"\n")
    return True


def read_reason(run_dir: str, *, final: bool = False, asked: bool = False) -> str:
    """Return why Slurm ended a run's step, in words; empty while it has given no reason.

    slurmstepd's words may be lost with the step. ``final``, a step that srun aborted by itself has lost them.
    ``asked``: after ``ask_slurm``, whose answer decides whether a step that was cancelled was preempted.
    """
    log = _read_log(run_dir)
    if over := _OVER_MEMORY.search(log):
        where = f" on {over[1]}" if over[1] else ""
        return f"Slurm job {over[2]}: its step exceeded its memory limit{where}"
    found, failed = _CANCELLED.search(log), _NODE_FAILED.search(log)
    node = "a node of it failed"
    if failed is not None:
        # It may be this one, which slurmctld asks by way of other nodes.
        is_this = failed[1] == socket.gethostname().partition(".")[0]
        counted = f"it counted {failed[1]} as failed, though {failed[1]} answers"
        node = counted if is_this else f"{failed[1]} failed"
    if found is None and failed is None:
        before, aborted, _ = log.partition("srun: Job step aborted")
        lost = final and aborted and not _NOT_BY_SLURM.search(before)
        return "Slurm ended the job's step, and its reason was lost" if lost else ""
    if found is None:
        return f"Slurm ended the job: {node}"
    why, answer = (found["why"] or found["failed"] or "").upper(), _ANSWER.search(log)
    if why in _PLAIN:
        if answer is None and asked:
            return ""
        why = "PREEMPTION" if answer and re.search(r" PreemptTime=\d", answer[0]) else why
    # scancel of a step kills the shims at once, that of a job signals them first.
    of_step = " JobState=RUNNING " in answer[0] if answer else final and "STEP" in found[0]
    cancelled = ": its step was cancelled or signalled" if of_step else " was cancelled"
    told = _REASONS.get(why, f"Slurm job {{job}}{cancelled}")
    if why not in _REASONS and why not in _PLAIN:
        told += f": {why.lower()}"
    return told.format(job=found["id"], node=node)


class SrunDeath(NamedTuple):
    """A signal ended srun itself; the exit code is 128 and the signal's number."""

    error: str
    exit_code: int


def read_srun_death(run_dir: str) -> SrunDeath | None:
    """Return how a signal ended a run's srun; None if none did, or srun has not ended."""
    exit_code = read_exit_code(os.path.join(run_dir, STEP_ENDED), 0)
    if exit_code <= 128 or _KILLED.search(_read_log(run_dir)) is None:
        return None
    from distconsole_agent.supervisor.failures import describe_exit  # late: a start needs no ends

    how = describe_exit(exit_code, exit_code - 128, out_of_memory=False)
    return SrunDeath(f"srun was {how}", exit_code)


class _Ended(NamedTuple):
    exit_code: int


def read_exit_code(path: str, otherwise: int) -> int:
    ended = records.read_file(_Ended, path)
    return otherwise if ended is None else ended.exit_code


def has_srun(run_dir: str) -> bool:
    ended = os.path.join(run_dir, STEP_ENDED)
    return os.path.exists(os.path.join(run_dir, STEP_SCRIPT)) and not os.path.exists(ended)


def read_complaint(run_dir: str) -> str:
    """Return the first thing that srun complained of; empty when it did not complain."""
    told = _KILLED.sub("", _read_log(run_dir))
    lines = [line for line in told.splitlines() if _COMPLAINT.match(line)]
    return next((_COMPLAINT.sub("", line).strip()[:300] for line in lines), "")


def _read_log(run_dir: str) -> str:
    return end_of(os.path.join(run_dir, STEP_LOG), MAX_TAIL_BYTES)
