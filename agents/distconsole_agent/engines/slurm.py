"""Slurm's commands, run by a node's agent for a console.

A job that a console submits holds its nodes with a script that waits, on its first node, for the command to
start: Slurm has to choose the nodes first. In an existing allocation the first node's agent starts
it itself. ``attend_to_end`` and the functions below it run on the first node when the run's srun has ended: a
step outlives its srun, so a killed one would leave its ranks unwatched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

from distconsole_agent.contract.protocol import Values
from distconsole_agent.contract.refusal import Refusal, bad_request, start_failed, storage
from distconsole_agent.contract.requests import AgentRequest, ShimRequest
from distconsole_agent.coordination.restarts import last_checkpoint
from distconsole_agent.engines import slurm_words
from distconsole_agent.node_folder.folders import default_node_dir, own_folder, storage_refusal
from distconsole_agent.probes.host.slurm import CLIENT_VARIABLES
from distconsole_agent.probes.programs import run_program
from distconsole_agent.server.shim_calls import ask_shim, poll_shim

if TYPE_CHECKING:
    from distconsole_agent.node_folder.runs import NodeRuns

COMMAND_SECONDS = 30.0
HOLDER_SECONDS = 60.0
"""How long a job that runs may take until its script waits for words: prologs come first."""

NOT_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Slurm sends them to every process of a job that it ends."""

VERDICT = "verdict.json"
"""The first node's shim writes it when every other one has reported its end, or is lost."""

GONE_SECONDS = 60.0
"""How long a shim whose srun is gone may take to end its ranks."""

LOOK_SECONDS, OVER_SECONDS = 10.0, 90.0
"""A srun that still waits for a host this long after the run's end is killed, as it would keep the job's hosts for
good: srun (22.05) never hears of a host that lost its network and came back. It is looked for at the first pace."""

END_SECONDS, LINGER_SECONDS = 10.0, 1.0
"""If a host admits its user only while a job runs there, the last entries must be read before
the job ends: the agent has the first time to write them, and the console then the second to take them."""

SHIM_SECONDS = 60.0
"""How long srun may take until a shim answers."""

KEPT = (*CLIENT_VARIABLES, "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST")
"""Variables of Slurm that are no options of srun."""


def do(request: AgentRequest, environment: dict[str, str], runs: NodeRuns) -> Values:
    """Perform the op ``slurm``, or raise Refusal."""
    what = request.do
    if what == "submit":
        if request.argv[:1] != ("sbatch",):
            raise bad_request("argv is sbatch and its words")
        return {"job": submit(request.argv, environment)}
    if what == "show":
        argv = ("scontrol", "-d", "-o", "show", "job", _job(request))
        return {"text": command(argv, environment)}
    if what == "cancel":
        command(("scancel", "--quiet", _job(request)), environment)
        return {"cancelled": True}
    if what == "step":
        return _begin_step(request, environment, runs)
    if what == "checkpoint":
        return {"path": last_checkpoint(runs.folder(request.run))}
    if what == "shim":
        return await_shim(request.run, runs)
    raise bad_request(f"slurm cannot {what[:40]!r}")


def submit(argv: tuple[str, ...], environment: dict[str, str]) -> str:
    """Submit a job that holds its nodes until its command comes; return its number."""
    told = command(argv, environment)
    job = told.strip().splitlines()[-1].partition(";")[0] if told.strip() else ""
    if not job.isdigit():
        raise start_failed(f"sbatch named no job: {told.strip()[:200]}")
    return job


def command(argv: tuple[str, ...], environment: dict[str, str]) -> str:
    """Return the output of one of Slurm's commands, or raise Refusal with its error."""
    try:
        done = run_program(argv, COMMAND_SECONDS, env=environment)
    except FileNotFoundError:
        raise start_failed(
            f"there is no {argv[0]} on this host",
            "--slurm-login names a host that has Slurm's commands",
        ) from None
    except OSError as error:
        raise start_failed(f"{argv[0]} did not work: {error}") from None
    if done.exit_code is None:
        raise start_failed(f"{argv[0]} did not end within {COMMAND_SECONDS:g} s")
    if done.exit_code:
        words = done.err.strip().splitlines()[-3:]
        told = "; ".join(line.partition(": error: ")[2] or line for line in words)
        why = told[:500] or f"code {done.exit_code}"
        raise start_failed(f"{argv[0]}: {why}")
    return done.out


def _begin_step(request: AgentRequest, environment: dict[str, str], runs: NodeRuns) -> Values:
    job, folder = _job(request), runs.folder(request.run)
    ended = [*runs.program.argv, "step-ended", "--run", folder]
    path = os.path.join(folder, slurm_words.STEP_SCRIPT)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(step_script(folder, job, request.argv, ended))
    except OSError as error:
        raise storage_refusal(folder, error) from None
    if request.held:
        tell_holder(job, path)
    else:
        runs.start_detached(request.run, ["/bin/bash", path], environment)
    return {"started": True}


def step_script(folder: str, job: str, srun: Sequence[str], ended: list[str]) -> str:
    """Return the script that is srun's parent, and answers ``slurm_words.ask_slurm``.

    A step outlives its srun, so this script watches for its death. A job's options are in
    its variables, and srun would take them for its own (as many tasks as the job asked for, one
    GPU a task). Slurm signals every process of a job, so srun gets the signals that are ignored here. srun's
    exit status is written before Python starts: an agent that misses a shim looks there.
    """
    names = (slurm_words.STEP_LOG, slurm_words.STEP_ENDED, slurm_words.STEP_ASK, VERDICT)
    log, note, ask, verdict = (shlex.quote(os.path.join(folder, name)) for name in names)
    return f"""#!/bin/bash
trap : TERM INT HUP USR1 USR2
exec 2>>{log}
for name in ${{!SLURM_*}} ${{!SBATCH_*}} ${{!SRUN_*}} ${{!SALLOC_*}}; do
    case $name in
        {"|".join(KEPT)}) ;;
        *) unset "$name" ;;
    esac
done
cd /
(
    trap "" TERM INT HUP USR1 USR2
    # A read that waits is no further process.
    mkfifo -m 600 {ask} && exec 9<>{ask} || exec 9<> <(:)
    until [ -e {verdict} ]; do
        read -rt {LOOK_SECONDS} -u 9 && scontrol -o show job {job} >>{log}
    done
    read -rt {OVER_SECONDS} -u 9
    for child in $(</proc/$$/task/$$/children); do
        [ "$child" = "$BASHPID" ] || kill -KILL "$child"
    done
) </dev/null >&2 & watch=$!
{shlex.join(srun)} </dev/null >>{log}
code=$?
{{ kill -KILL "$watch"; wait "$watch"; }} 2>/dev/null
(umask 077; printf '{{"exit_code": %d}}\n' "$code" >{note}.new) && mv {note}.new {note}
exec {shlex.join(ended)} --code "$code" "$@"
"""


def tell_holder(job: str, script: str) -> None:
    """Pass the command to the script that holds a job on this node, or raise Refusal."""
    folder = default_node_dir()
    path = os.path.join(folder, f"slurm-{job}")
    deadline = time.monotonic() + HOLDER_SECONDS
    while True:
        with contextlib.suppress(FileNotFoundError):
            own_folder(folder)
            try:
                pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            except OSError as error:
                if error.errno not in (errno.ENXIO, errno.ENOENT):
                    raise storage(f"{path}: {error.strerror}") from None
            else:
                os.write(pipe, os.fsencode(script + "\n"))
                os.close(pipe)
                return
        if time.monotonic() > deadline:
            raise start_failed(
                f"job {job} runs, but its script does not wait in {folder}",
                "has the job a /tmp of its own (job_container/tmpfs, namespace/…)? "
                "Then take salloc, and distconsole run inside it",
            )
        time.sleep(0.02)


def await_shim(run: str, runs: NodeRuns) -> Values:
    """Return ``prepare``'s answer for this node's shim once srun has started it, or raise Refusal."""
    folder = runs.folder(run)
    ended = os.path.join(folder, slurm_words.STEP_ENDED)
    prepared = poll_shim(folder, SHIM_SECONDS, lambda: os.path.exists(ended))
    if prepared is not None:
        runs.adopt(run, prepared["shim_pid"])
        return prepared
    said = slurm_words.read_complaint(folder)
    own_tmp = "has the job a /tmp of its own (job_container/tmpfs, namespace/…)? Then it needs node_dir in the configuration"
    raise start_failed(
        f"srun did not start the run's supervisor: {said or 'it said nothing'}",
        "'scontrol show job' and slurmd's log on that host say more" if said else own_tmp,
    )


def _job(request: AgentRequest) -> str:
    if not request.job.isdigit():
        raise bad_request("job is the number of a job")
    return request.job


def attend_to_end(argv: list[str]) -> int:
    """Attend to the end of the srun of ``--run DIR``, with ``--code N``; return the run's code."""
    held = argv[-1:] == ["--held"]
    words = argv[:-1] if held else argv
    if len(words) != 4 or words[::2] != ["--run", "--code"] or not words[3].isdigit():
        sys.stderr.write("usage: step-ended --run DIR --code N [--held]\n")
        return 2
    run_dir, exit_code = os.path.abspath(words[1]), int(words[3])
    for number in NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    death = slurm_words.read_srun_death(run_dir)
    if death is not None:
        error = death.error
    else:
        complaint = slurm_words.read_complaint(run_dir)
        error = f"srun ended with code {exit_code}: {complaint}".rstrip(": ")
    shim = os.path.join(run_dir, "shim.sock")
    with contextlib.suppress(OSError, Refusal):
        ask_shim(shim, ShimRequest("fail", error=error, exit_code=exit_code or 1), 10.0)

    def shim_is_gone() -> bool:
        try:
            ask_shim(shim, ShimRequest("status"), 10.0)
        except OSError:
            return True
        except Refusal:
            pass
        return False

    _wait_until(shim_is_gone, GONE_SECONDS)
    if held:
        ended = os.path.join(run_dir, "ended.json")
        if _wait_until(lambda: os.path.exists(ended), END_SECONDS):
            time.sleep(LINGER_SECONDS)
    return slurm_words.read_exit_code(os.path.join(run_dir, VERDICT), exit_code)


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
