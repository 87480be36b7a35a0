"""Submits a Slurm job: its script, sbatch's words, and the meaning of its options.

The job's script only holds the nodes: the ranks' script depends on Slurm's choice of nodes, so the
first waits on the first node for the path of the second, and becomes that.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distconsole.errors import UsageError
from distconsole.model.names import is_whole

REQUEUE = ("--requeue", "--no-requeue")

UNUSED_SECONDS = 300
"""A job that gets nothing to start from its console ends after these seconds."""

NEVER_AGAIN = 'if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then exit 75; fi\n'
"""Keeps a job that Slurm requeues without ``--requeue`` from running: no console would watch it."""


@dataclass(frozen=True, slots=True)
class Options:
    """Values in the options of sbatch; None if not set.

    Attributes:
        nodes: The least number of nodes.
        tasks_a_node: Tasks; as many ranks unless ``--nproc`` is given.
        cpus: Processors of a task; Slurm gives one unless it is configured otherwise.
        requeue: Whether Slurm may start the job again.
    """

    nodes: int | None = None
    tasks_a_node: int | None = None
    cpus: int = 1
    gpus_a_node: int | None = None
    requeue: bool = False


def words_of(options: str | None) -> list[str]:
    """Return the words of ``--slurm``, none without it; raises UsageError if the quotes do not match."""
    try:
        return shlex.split(options or "")
    except ValueError as error:
        raise UsageError(f"--slurm {options!r}: {error}", "close the quotes") from None


def split_container_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of ``--slurm`` without pyxis's options, which put a step into a container, and the latter."""
    others: list[str] = []
    containers: list[str] = []
    takes_value = False
    for word in words:
        is_ours = word.startswith(("--container-", "--no-container-"))
        if takes_value and not word.startswith("-"):
            containers[-1] += f"={word}"
        else:
            (containers if is_ours else others).append(word)
        takes_value = is_ours and "=" not in word
    return others, containers


def submit_command(
    options: str | None, name: str, hosts: Sequence[str] = (), exclude: Sequence[str] = ()
) -> list[str]:
    """Return the sbatch that submits a job with ``--slurm OPTIONS``, on exactly ``hosts`` if there are any.

    The script goes by ``--wrap``, so that a stray word among the options cannot take its place. Raises
    UsageError if the quotes do not match.
    """
    # The job's own script holds the nodes, outside of a container; srun gets those options.
    words, _ = split_container_words(words_of(options))
    script = job_script(requeue=read_options(words).requeue, folder=str(Path.cwd()))
    if hosts:
        words += [f"--nodes={len(hosts)}", f"--nodelist={','.join(hosts)}"]
    if exclude:
        words.append(f"--exclude={','.join(exclude)}")
    ours = ["--parsable", "--no-requeue", "--job-name", name, "--output=/dev/null"]
    return ["sbatch", *ours, *words, "--wrap", script]


def job_script(
    *, requeue: bool = False, unused_seconds: int = UNUSED_SECONDS, folder: str = ""
) -> str:
    """Return the script of a submitted job, which exits with 75 (EX_TEMPFAIL) if it got nothing to start.

    ``SLURM_SUBMIT_DIR`` is ``folder`` if it exists there: sbatch runs in that of the agent, ``/``.
    The first node's agent writes the path into its pipe (``tell_holder`` of ``slurm.py`` there); the
    folder is tested as by ``own_folder`` there.
    """
    submitted_in = shlex.quote(folder)
    return f"""[ -d {submitted_in} ] && export SLURM_SUBMIT_DIR={submitted_in}
exec bash -c '
{"" if requeue else NEVER_AGAIN}folder=/tmp/distconsole-$(id -u)
mkdir -m 700 "$folder" 2>/dev/null
[ "$(find "$folder" -prune -type d -user "$(id -u)" ! -perm /077)" ] || exit 74
pipe=$folder/slurm-$SLURM_JOB_ID
rm -f "$pipe"
mkfifo -m 600 "$pipe" || exit 74
trap "rm -f $pipe" EXIT
IFS= read -r -t {unused_seconds} script <>"$pipe" || exit 75
rm -f "$pipe"
exec /bin/bash -- "$script" --held
'
"""


def read_options(words: Sequence[str]) -> Options:
    nodes = _count(_value(words, "-N", "--nodes"))
    tasks = _count(_value(words, "--ntasks-per-node"))
    if tasks is None:
        tasks = _share(_count(_value(words, "-n", "--ntasks")), nodes)
    gpus = _gpus(_value(words, "--gres"), "gpu")
    if gpus is None:
        gpus = _gpus(_value(words, "--gpus-per-node"))
    if gpus is None:
        gpus = _share(_gpus(_value(words, "-G", "--gpus")), nodes)
    named = [word.partition("=")[0] for word in words]
    return Options(
        nodes=nodes,
        tasks_a_node=tasks,
        cpus=_count(_value(words, "-c", "--cpus-per-task")) or 1,
        gpus_a_node=gpus,
        requeue=[name for name in named if name in REQUEUE][-1:] == ["--requeue"],
    )


def _value(words: Sequence[str], *names: str) -> str | None:
    """Return an option's last value, in any of sbatch's spellings."""
    found = None
    for word, after in zip(words, [*words[1:], ""], strict=False):
        for name in names:
            if word == name:
                found = after
            elif word.startswith(f"{name}=" if name.startswith("--") else name):
                found = word.removeprefix(name).removeprefix("=")
    return found


def _count(value: str | None) -> int | None:
    found = re.match(r"\d+", value or "")
    return int(found[0]) if found is not None else None


def _gpus(value: str | None, kind: str = "") -> int | None:
    """Return the number in ``gpu:a100:4`` (of ``kind`` gpu) or ``a100:4``; one if it has none."""
    for item in (value or "").split(","):
        name, *parts = item.split("=")[0].split(":")
        if kind and name != kind:
            continue
        last = parts[-1] if parts else "" if kind else name
        if item:
            return int(last) if is_whole(last) else 1
    return None


def _share(total: int | None, nodes: int | None) -> int | None:
    return None if total is None or total % (nodes or 1) else total // (nodes or 1)
