"""Chooses the launcher and gives a reason: by the script first, then by the hosts' engines and their Slurm job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile, zip_longest

from distconsole.errors import PlanError, UsageError
from distconsole.grammar.pasting.meanings import OF_SLURM
from distconsole.grammar.pasting.read import (
    OTHER_STARTERS,
    OWN_STARTS,
    RAY_DRIVER,
    WRAPPERS,
    is_starter,
)
from distconsole.grammar.pasting.starters import ASKS, STARTERS, Given, split_options
from distconsole.grammar.pasting.starters import starter_of as table_of
from distconsole.grammar.secrets import mask_text
from distconsole.grammar.words import escape_in_quotes
from distconsole.launch.engines import MPI, Engines, has_gloo
from distconsole.launch.shell import BATCH_SYSTEMS, RUNNERS, SHELLS, read_shell
from distconsole.model.job import ScriptTraits, ShellScript, ShellStart
from distconsole.model.names import HostName
from distconsole.model.requests import Command, LauncherName, PassArgs, Run

MAX_OPTION_WIDTH = 44
ELASTIC = "HOROVOD_ELASTIC"
OF_JOBS = {"srun", "aprun", "ibrun", "jsrun", "blaunch"}
"""Programs that start ranks on the hosts of their job."""
NOT_ELASTIC = "the ranks of mpirun are not elastic"
NO_JOB = ", though this is no Slurm job (--slurm OPTIONS submits one)"


@dataclass(frozen=True, slots=True)
class Choice:
    """The launcher, the reason, and arguments to add.

    Attributes:
        elastic: Horovod's driver decides on the ranks.
        one_a_node: One process a node, because the script spawns its ranks or needs none.
    """

    launcher: LauncherName
    why: str
    pass_args: PassArgs | None = None
    elastic: bool = False
    one_a_node: bool = False


def decide(
    request: Run,
    traits: ScriptTraits,
    env: Mapping[str, str],
    engines: Mapping[HostName, Engines] | None = None,
    slurm_job: str | None = None,
) -> Choice:
    """Return the launcher of a script with the user's variables ``env``.

    Args:
        engines: Of the hosts; None as long as no host was reached.
        slurm_job: The job that the hosts are nodes of.

    Raises PlanError for a shell script that cannot be launched, a launcher that cannot outlive a host as
    ``--nnodes`` wants it, and for ``slurm`` on hosts without a job.
    """
    choice = _settle_controller(_choose_launcher(request, traits), env, engines or {})
    choice = _outlive_hosts(choice, request)
    alone = choice
    if choice.launcher is LauncherName.SLURM:
        if engines is not None and slurm_job is None:
            raise PlanError(
                "--launcher slurm needs a Slurm job whose nodes the hosts are",
                "--slurm OPTIONS submits one; or run it inside salloc or sbatch",
            )
        alone = _choose_by_traits(replace(traits, horovod=False, mpi=False), request.arguments)
    choice = replace(choice, one_a_node=alone.launcher is LauncherName.SINGLE)
    return choice if slurm_job is None else _start_by_srun(choice, slurm_job)


def _choose_launcher(request: Run, traits: ScriptTraits) -> Choice:
    asked, pass_args, starter = request.launcher, request.pass_args, starter_of(request)
    if asked is not LauncherName.AUTO:
        why = f"as {starter} starts it" if starter else "asked for"
        return _mark_elastic(Choice(asked, why, pass_args), traits)
    if pass_args is not None:
        spawns = traits.spawns and pass_args is PassArgs.INIT_METHOD
        launcher = LauncherName.SINGLE if spawns else LauncherName.TORCH
        return Choice(launcher, f"--pass-args {pass_args} was given", pass_args)
    if traits.shell is not None:
        _refuse_shell(request, traits.shell)
    return _choose_by_traits(traits, request.arguments)


def _start_by_srun(choice: Choice, job: str) -> Choice:
    """Return ``choice`` in a Slurm job, where torch ranks are srun's tasks."""
    why = f"{choice.why.removesuffix(NO_JOB)}; by srun, in Slurm job {job}"
    if choice.elastic:
        why = f"{why}; not elastic there"
    tasks = choice.launcher in (LauncherName.TORCH, LauncherName.SINGLE)
    launcher = LauncherName.SLURM if tasks else choice.launcher
    return replace(choice, launcher=launcher, why=why, elastic=False)


def starter_of(request: Run) -> str:
    """Return the rank starter of the pasted command; empty without one."""
    return request.command.starter if request.command is not None else ""


def command_lines(command: Command | None) -> list[str]:
    """Return comment lines that map each option of the pasted command to its meaning here."""
    if command is None or not command.rows:
        return []
    rows = [(mask_text(typed), mask_text(becomes)) for typed, becomes in command.rows]
    width = min(max(len(typed) for typed, _ in rows), MAX_OPTION_WIDTH)
    lines = [f"#   {typed:{width}}  {becomes}" for typed, becomes in rows]
    return [f"# what {command.starter or 'the command'} says, and what it becomes here:", *lines]


def _choose_by_traits(traits: ScriptTraits, arguments: Sequence[str]) -> Choice:
    """Return the launcher of a script with these arguments, by the first rule that fits."""
    by_engine = _choose_engine(traits) or _choose_spawning(traits, arguments)
    return _mark_elastic(by_engine or _choose_ranks(traits), traits)


def _choose_engine(traits: ScriptTraits) -> Choice | None:
    if traits.shell is not None:
        return _choose_for_shell(traits.shell, spawns=traits.spawns)
    if traits.ray:
        why = "the script is a driver of Ray, which starts its workers: one process a node"
        return Choice(LauncherName.SINGLE, why)
    if not traits.readable:
        why = "is not Python that can be read here" if traits.here else "is not on this machine"
        return Choice(LauncherName.TORCH, f"the script {why}: env:// ranks")
    if traits.mpi:
        both = "Horovod and mpi4py" if traits.horovod else "mpi4py"
        return Choice(LauncherName.MPI, f"the script imports {both}")
    if traits.horovod:
        return Choice(LauncherName.HOROVOD, "the script imports Horovod")
    return None


def _choose_for_shell(shell: ShellScript, *, spawns: bool) -> Choice:
    """Return one process a host, unless the shell script surely starts no ranks itself."""
    if shell.starts:
        why = f"the script starts its own ranks ({shell.starts[0].name})"
    elif spawns:
        why = f"the script starts {shell.pythons[0]}, which starts its own ranks (mp.spawn)"
    elif shell.unread:
        why = f"whether the shell script starts ranks itself is not known ({shell.unread})"
    elif shell.unknown and not shell.pythons:
        why = f"what {shell.unknown[0]} in the shell script starts is not known here"
    else:
        why = "the shell script starts no launcher that is known here: env:// ranks, each runs it"
        return Choice(LauncherName.TORCH, why)
    return Choice(LauncherName.SINGLE, f"{why}: one process a node")


def _choose_spawning(traits: ScriptTraits, arguments: Sequence[str]) -> Choice | None:
    words = " ".join(arguments).replace(f"{traits.init_method}=", f"{traits.init_method} ")
    spawns_by_flag = traits.spawn_flag and traits.spawn_flag not in arguments
    if spawns_by_flag and traits.init_method and f"{traits.init_method} env://" in words:
        why = (
            f"{traits.init_method} is env://, and {traits.spawn_flag}, with which the script "
            "starts its own ranks, is not given: env:// ranks"
        )
        return Choice(LauncherName.TORCH, why)
    if not traits.spawns:
        return None
    why = "the script starts its own ranks (mp.spawn)"
    if not traits.meets_by_arguments:
        return Choice(LauncherName.SINGLE, f"{why}: one process a node")
    why = f"{why} and declares {traits.init_method}: one process a node, told the node's number"
    return Choice(LauncherName.SINGLE, f"{why} by {traits.rank}", PassArgs.INIT_METHOD)


def _choose_ranks(traits: ScriptTraits) -> Choice:
    torch = LauncherName.TORCH
    if traits.local_rank:
        why = f"the script declares {traits.local_rank}: env:// ranks, and the argument added"
        return Choice(torch, why, PassArgs.TORCH_LAUNCH)
    if traits.meets_by_arguments:
        why = f"the script declares {traits.init_method}: ranks, and the argument added"
        return Choice(torch, why, PassArgs.INIT_METHOD)
    if traits.data_parallel:
        why = "the script wraps its model in DataParallel: one process a node"
        return Choice(LauncherName.SINGLE, why)
    if traits.distributed:
        return Choice(torch, "the script uses torch.distributed: env:// ranks")
    if traits.slurm:
        return Choice(torch, f"the script reads SLURM_PROCID: env:// ranks{NO_JOB}")
    imports = "imports torch and " if traits.torch else ""
    return Choice(torch, f"the script {imports}names no launcher: env:// ranks")


def _mark_elastic(choice: Choice, traits: ScriptTraits) -> Choice:
    if traits.elastic and choice.launcher is LauncherName.HOROVOD:
        return replace(choice, why=f"{choice.why}, elastic (hvd.elastic)", elastic=True)
    if traits.elastic and choice.launcher is LauncherName.MPI:
        return replace(choice, why=f"{choice.why}; {NOT_ELASTIC}")
    return choice


def _outlive_hosts(choice: Choice, request: Run) -> Choice:
    """Return ``choice``; for a job that has to outlive a host (``--nnodes MIN:MAX``), a launcher that can."""
    can = choice.launcher is LauncherName.TORCHRUN or choice.elastic
    if can or not request.may_lose_hosts:
        return choice
    if request.launcher is not LauncherName.AUTO or choice.launcher is not LauncherName.TORCH:
        raise PlanError(
            f"--nnodes MIN:MAX needs a launcher that can lose a host, and {choice.launcher} cannot",
            "give --launcher torchrun, or leave --nnodes out",
        )
    if choice.pass_args is not None:
        raise PlanError(
            "--nnodes MIN:MAX needs torchrun, which adds no arguments to the script's own "
            f"(--pass-args {choice.pass_args})",
            "give --launcher torchrun if the script also reads RANK and LOCAL_RANK",
        )
    return Choice(LauncherName.TORCHRUN, "--nnodes MIN:MAX: torchrun can lose a host")


def _settle_controller(
    choice: Choice, env: Mapping[str, str], engines: Mapping[HostName, Engines]
) -> Choice:
    """Return ``choice``, or mpirun if Horovod needs MPI; ``HOROVOD_ELASTIC`` overrides the script's ``elastic``."""
    if choice.launcher is not LauncherName.HOROVOD:
        return choice
    told = env.get(ELASTIC)
    elastic = choice.elastic if told is None else told.strip() not in ("", "0")
    if elastic != choice.elastic:
        choice = replace(choice, why=f"{choice.why}; {ELASTIC}={told}", elastic=elastic)
    if env.get("HOROVOD_CONTROLLER", "").lower() == MPI:
        why = f"{choice.why}; HOROVOD_CONTROLLER=mpi"
    elif not has_gloo(engines):
        why = f"{choice.why}; Horovod there was built without Gloo"
    else:
        return choice
    why = f"{why}; {NOT_ELASTIC}" if elastic else why
    return Choice(LauncherName.MPI, why, choice.pass_args)


def _refuse_shell(request: Run, shell: ShellScript) -> None:
    """Refuse a shell script for Slurm, or one that ends before its training; raises PlanError with the command to type."""
    if shell.ends_as_windows:
        raise PlanError(
            f"the lines of {request.script} end as on Windows (CRLF), which a shell takes for a part of their last words",
            f"sed -i 's/\\r$//' {request.script}",
        )
    started = {each.name.partition(" ")[0] for each in shell.starts}
    if shell.system and (shell.in_job or started & OF_JOBS):
        system, (runner, command) = BATCH_SYSTEMS[shell.system][0], _command_in_job(shell)
        hint = f"in a job of {system} its hosts are taken by themselves: distconsole run"
        if "hetjob" in shell.directives:
            parts = " ".join(shell.directives).replace(" hetjob ", " : ")
            hint = f"salloc {parts} starts such a job, and in it: distconsole run"
        elif shell.system == "SBATCH":
            # Of the two only a shell, which sbatch is not, replaces variables.
            fixed = escape_in_quotes(" ".join(shell.directives))
            asked = escape_in_quotes(" ".join(_asks_of_srun(shell, command)), expands=True)
            options = f"{fixed} {asked}".strip()
            hint = f'distconsole submits that job and starts the ranks: distconsole run --slurm "{options}"'
        if any("ray" in each.words[:-1] for each in shell.starts):
            raise PlanError(
                f"{request.script} is a job file of {system} that starts Ray's own cluster",
                f"distconsole starts ranks, and no Ray: give {request.script} to {system} as it is",
            )
        more = f"; in place of {runner}" if runner else ""
        raise PlanError(
            f"{request.script} is a job file of {system} (#{shell.system}), whose commands need its job",
            mask_text(f"{hint} -- {command}{more}"),
        )
    if shell.starts and all(each.left for each in shell.starts):
        first = shell.starts[0]
        raise PlanError(
            f"{request.script} leaves {first.name} in the background (line {first.line}) and ends: "
            "the run would end with it, before anything is trained",
            "take nohup and & away, or put a line with wait at the end; a run goes on by itself "
            "(--detach returns at once). --launcher single starts the script as it is",
        )


def note_shell(shell: ShellScript, hosts: int) -> list[str]:
    notes = [
        f"{each.name} (line {each.line}) is left in the background, and ends with the script"
        for each in shell.starts
        if each.left
    ]
    if shell.system:
        instead = ": run --slurm OPTIONS submits a job" if shell.system == "SBATCH" else ""
        notes.append(f"its #{shell.system} lines have no effect{instead}")
    if shell.beside:
        notes.append(_note_beside(*shell.beside))
    for start in shell.starts if hosts > 1 else ():
        name = start.name.partition(" ")[0]
        if name in OWN_STARTS or RAY_DRIVER.fullmatch(name):
            notes.append(
                f"{start.name} (line {start.line}) is started on each of {hosts} hosts, and what it starts "
                "there is not known here: --hosts with one of them starts it once"
            )
        if start.remote:
            notes.append(
                f"{start.name} (line {start.line}) is started on other hosts, and each of {hosts} hosts "
                f"does so: distconsole run -- {start.name} … starts the ranks of all hosts once"
            )
            continue
        table = STARTERS.get(start.name, "torchrun" if "torch" in start.name else "")
        if table in ("mpirun", "srun", "horovodrun"):
            notes.append(
                f"{start.name} (line {start.line}) starts ranks on hosts of its own choice, and each of "
                f"{hosts} hosts starts one: distconsole run -- {start.name} … starts one for all"
            )
        elif table == "torchrun" and _value_of(start, "nnodes", "1") == "1":
            notes.append(
                f"{start.name} (line {start.line}) starts the ranks of one host (--nnodes), so each of "
                f"{hosts} hosts trains for itself: distconsole run -- "
                f"{'python -m ' * ('.' in start.name)}{start.name} … makes one training of them"
            )
    return notes


def _note_beside(first: ShellStart, second: ShellStart) -> str:
    where = f"{first.name} (line {first.line})"
    both = where if first == second else f"{where} and {second.name} (line {second.line})"
    note = f"{both} run beside each other on a host, as trainings of their own"
    ports = {_value_of(each, "master_port", "") for each in (first, second)}
    same = next(iter(ports)) if len(ports) == 1 else ""
    return f"{note}, and want the same port, {same} (--master_port)" if same.isdecimal() else note


def _value_of(start: ShellStart, name: str, default: str) -> str:
    for word, behind in zip_longest(start.words, start.words[1:], fillvalue=""):
        option, equals, value = word.partition("=")
        if option.startswith("--") and option[2:].replace("-", "_") == name:
            return value if equals else behind
    return default


def _asks_of_srun(shell: ShellScript, command: str) -> list[str]:
    """Return the options of a job file's last srun that its #SBATCH lines lack: its container, and tasks that are ranks."""
    words = shell.starts[-1].words if shell.starts else ("",)
    given: list[Given] = []
    if STARTERS.get(words[0].rpartition("/")[2]) == "srun":
        with suppress(UsageError):
            given = split_options(table_of("srun"), list(words[1:]))[0]
    there, starts = " ".join(shell.directives), command.partition(" ")[0] in STARTERS
    asked = (
        each
        for each in given
        if (each.option.kind == ASKS or each.option.text in OF_SLURM)
        and each.typed not in there
        and (each.option.kind == ASKS or not (starts or "$" in each.value))
    )
    return [_quote(word) for each in asked for word in each.words]


def _quote(word: str) -> str:
    """Quote for a shell that is to replace the variables of ``word``."""
    if "$" not in word:
        return shlex.quote(word)
    plain = not re.search(r"[^\w$@%+=:,./{}\[\]-]", word)
    return word if plain else f'"{escape_in_quotes(word, expands=True)}"'


def _command_in_job(shell: ShellScript) -> tuple[str, str]:
    """Return the command that a job file starts, without options of srun and rendezvous, and the cure of a runner (uv)."""
    words = list(shell.starts[-1].words) if shell.starts else ["python", *shell.pythons[-1:]]
    runner = ""
    for table in ("", "srun", "torchrun", "accelerate"):
        if table and STARTERS.get(words[0].rpartition("/")[2]) != table:
            continue
        behind = 2 if words[1:2] == ["launch"] else 1
        try:
            given, rest = split_options(table_of(table), words[behind:]) if table else ([], words)
        except UsageError:
            given, rest = [], list(dropwhile(_starts_nothing, words[1:]))
            behind = behind if rest else 0
            rest = rest or words
        known = [
            word for each in given for word in each.words if not any("$" in w for w in each.words)
        ]
        words = rest if table in ("", "srun") else [*words[:behind], *known, *rest]
        name = words[0].rpartition("/")[2]
        if name in (*OWN_STARTS, *RUNNERS):
            runner = _replace_runner(name, words) if name in RUNNERS else runner
            words = list(dropwhile(_starts_nothing, words)) or words
        if words[0] in SHELLS:
            words = _below_shell(words)
    return runner, " ".join(map(_quote, words))


def _replace_runner(name: str, words: list[str]) -> str:
    """Return the words of a runner before the command, and what does that here."""
    lost = list(takewhile(_starts_nothing, words))
    cure = OTHER_STARTERS[name].partition(", and ")[0]
    image = list(takewhile(lambda word: word not in WRAPPERS, lost[2:]))[-1:]
    if image and cure.startswith("--container"):
        cure = f"--container {name}:{_quote(image[0])}"
    return f"{' '.join(map(_quote, lost))}: {cure}"


def _below_shell(words: list[str]) -> list[str]:
    """Return the last command of a ``bash -c`` text; ``words`` if that command is no training."""
    if inner := read_shell(words[-1]).starts:
        return list(inner[-1].words)
    with suppress(ValueError):
        last = shlex.split(re.split("&&|;", words[-1])[-1])
        return last if last and not _starts_nothing(last[0]) else words
    return words


def _starts_nothing(word: str) -> bool:
    return word in WRAPPERS or not is_starter(word)
