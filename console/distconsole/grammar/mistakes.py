"""What was most likely meant by words that mean nothing: the right option, ``--hosts``, the nearest name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import click

from distconsole.config.ranges import RangeError
from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.grammar.asking import PROGRAM
from distconsole.grammar.pasting.read import is_command, is_starter, read_command
from distconsole.grammar.pasting.starters import HOROVODRUN, MPIRUN, SRUN, TORCHRUN
from distconsole.model.requests import LauncherName

MEETING = "leave it out: the ranks meet on the first host, at a free port"
ANSWERS = {
    "per_host": "--nproc N",
    "ranks": "--nproc N for each host, or slots: --hosts gpu1:4,gpu2:4",
    "hosts": "--hosts LIST",
    "hostfile": "--hostfile FILE",
    "nnodes": "--nnodes N",
    "export": "--env NAME=VALUE",
    "env": "--env NAME=VALUE",
    "slurm_export": "--env NAME=VALUE",
    "mca": "--env OMPI_MCA_NAME=VALUE",
    "workdir": "--workdir DIR",
    "nic": "--nic NAME",
    "mca_nic": "--nic NAME",
    "one_a_host": "--nproc 1",
    "map": "--nproc N",
    "mpi": "--launcher mpi",
    "gloo": "--launcher horovod",
    "elastic": "--nnodes MIN:MAX",
    "command": "a Python script that starts the program",
    **dict.fromkeys(("address", "port", "endpoint", "backend", "standalone"), MEETING),
}
"""By what an option means to a starter (``pasting.starters``), what says that here."""
OTHER_WORDS = {
    **dict.fromkeys(
        ("launch", "start", "exec", "submit", "torchrun", "horovodrun", "mpirun"), "run"
    ),
    **dict.fromkeys(("srun", "mpiexec", "accelerate", "deepspeed"), "run"),
    **dict.fromkeys(("kill", "cancel", "abort"), "stop"),
    **dict.fromkeys(("ps", "ls", "list", "status", "history", "jobs"), "runs"),
    **dict.fromkeys(("pods", "nvtop", "htop", "nvidia-smi"), "top"),
    **dict.fromkeys(("tail", "log", "cat", "output"), "logs"),
    **dict.fromkeys(("watch", "follow", "monitor", "nodes", "hosts"), "top"),
    **dict.fromkeys(("info", "describe", "summary"), "show"),
    **dict.fromkeys(("diff", "cmp"), "compare"),
    **dict.fromkeys(("config", "configure"), "init"),
    **dict.fromkeys(("debug", "completion"), "doctor"),
    **dict.fromkeys(("verify", "test", "ping", "health"), "check"),
    **dict.fromkeys(("restart", "retry", "repeat"), "rerun"),
}
"""What other programs call our verbs."""
LAUNCHES = frozenset({"run", "check", "rerun", "bench", "top", "setup"})
"""Verbs at which an option of another launcher may be meant."""
ALMOST = 0.8
"""So alike are words of which one is surely meant for the other."""
HOST_WORD = re.compile(r"[A-Za-z0-9_.@:,/\[\]-]*[A-Za-z0-9\]]")
CODE = (".py", ".pyc", ".sh", ".ipynb", ".pyz", ".txt", ".toml", ".yaml", ".json")
EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)


def usage_error(error: click.UsageError) -> UsageError:
    """Return click's error as one of ours, with the cure that fits."""
    context = error.ctx
    path = context.command_path if context is not None else PROGRAM
    message, cure = error.format_message(), ""
    if isinstance(error, click.NoSuchOption):
        message = f"{path.removeprefix(f'{PROGRAM} ')} has no option {error.option_name}"
        cure = _meant_option(error.option_name, context)
    elif isinstance(error, click.MissingParameter) and context is not None:
        lacking = error.param.get_error_hint(context) if error.param else ""
        message = f"{path} needs {lacking}".replace("'", "").replace("[", "").replace("]", "")
        examples = getattr(context.command, "examples", ())
        cure = f"such as: {PROGRAM} {examples[0]}" if examples else ""
    elif isinstance(error, click.BadParameter):
        cure = _meant_choice(error)
    elif (extra := EXTRA.match(message)) and context is not None:
        message = f"{path} takes no further words: {extra[1]}"
        cure = _meant_words(extra[1].split(), context.command)
    made = UsageError(message, cure or f"see '{path} --help'")
    if isinstance(error, click.BadParameter) and error.param is not None:
        made.option = str(error.param.name)
    return made


def _meant_choice(error: click.BadParameter) -> str:
    kind = error.param.type if error.param else None
    typed = re.match(r"'([^']*)'", error.message)
    if not isinstance(kind, click.Choice) or typed is None:
        return ""
    near = nearest(typed[1], kind.choices)
    return f"did you mean {near}?" if near else ""


def _meant_option(typed: str, context: click.Context | None) -> str:
    if context is None:
        return ""
    command, root = context.command, context.find_root().command
    own = [flag for flag in _flags(command) if flag.startswith("--")]
    near = nearest(typed, own, ALMOST) if len(typed) > len("-x") else None
    if near is None and command.name in LAUNCHES and (answer := answer_for(typed)):
        return answer
    commands = root.commands.values() if isinstance(root, click.Group) else ()
    others = [str(each.name) for each in commands if not each.hidden and typed in _flags(each)]
    if near is None and others and command is not root:
        return f"{typed} is an option of {', '.join(others[:4])}"
    if near is None and others:
        return f"options of a verb stand behind it: {PROGRAM} {others[0]} {typed}"
    near = near or nearest(typed, own)
    return f"did you mean {near}?" if near else ""


def _flags(command: click.Command) -> list[str]:
    options = [each for each in command.params if isinstance(each, click.Option)]
    others = frozenset[str]().union(*(getattr(each, "also", ()) for each in options))
    flags = [flag for each in options for flag in (*each.opts, *each.secondary_opts)]
    return [flag for flag in flags if flag not in others]


def answer_for(typed: str) -> str:
    """Return what to type in place of another launcher's option; empty for one that nobody has."""
    name = typed.lstrip("-").replace("-", "_")
    one_dash = len(name) > 1 and not typed.startswith("--")
    found: dict[str, list[str]] = {}
    for starter in (TORCHRUN, HOROVODRUN, MPIRUN, SRUN):
        if name not in starter.options or (one_dash and starter.dashes):
            continue
        answer = ANSWERS.get(starter.options[name][1], "")
        if not answer and starter is SRUN:
            answer = f'--slurm "{typed} …", which sbatch gets'
        found.setdefault(answer or "leave it out", []).append(starter.name)
    told = (f"{answer} (of {', '.join(names)})" for answer, names in found.items())
    text = "; ".join(told) if len(found) > 1 else "".join(found)
    return text if not text or text.startswith("leave") else f"here: {text}"


def meant_verb(name: str, verbs: Iterable[str]) -> str:
    """Return the verb, or the whole line, that was most likely meant by ``name``; empty if none is like it."""
    if name.endswith(".py"):
        return name if name.startswith("run ") else f"run {name}"
    first = name.lower().partition(" ")[0]
    return OTHER_WORDS.get(first) or nearest(first, verbs) or ""


def run_line(words: Sequence[str]) -> str:
    """Return the line of ``run`` that does what ``words`` do, a command of Python or of another launcher; else nothing."""
    try:
        found = read_command(words) if words and is_starter(words[0]) else None
    except UsageError:
        return ""
    # What srun's options ask of Slurm, no option of run says in its place.
    if found is None or found.ours or not found.script or found.launcher is LauncherName.SLURM:
        return ""
    alone = str(found.ranks) if found.ranks and not (found.hosts or found.hostfile) else ""
    mpi = found.launcher.value if found.launcher is LauncherName.MPI else ""
    options = (
        *(("--hosts", found.hosts), ("--hostfile", found.hostfile), ("--launcher", mpi)),
        ("--python", found.python if "/" in found.python else ""),
        ("--nproc", alone or (found.per_host if found.per_host != "1" else "")),
    )
    given = [word for flag, value in options if value for word in (flag, value)]
    module = ["--module"] if found.module else []
    return shlex.join(["run", *given, *module, found.script, *found.arguments])


def refuse_command(words: Sequence[str], *, has_options: bool) -> None:
    """Refuse a command in place of the script: ``run`` starts Python by itself. Raises UsageError with the line to type."""
    line = run_line(words)
    if line and ("/" in words[0] or not Path(words[0]).exists()):
        line = line.replace("run ", "run … ", 1) if has_options else line
        raise UsageError(
            f"{words[0]} stands in place of the script, which run starts by itself",
            f"did you mean `distconsole {line}`?",
        )


def _meant_words(words: Sequence[str], command: click.Command) -> str:
    if command.name in ("show", "attach", "logs", "stop", "rerun", "replay", "report", "export"):
        return f"one run at a time; {PROGRAM} compare {' '.join(words[:1])} RUN compares several"
    if "--hosts" in _flags(command) and all(map(may_name_hosts, words)):
        return f"did you mean `--hosts {','.join(words)}`?"
    return ""


def may_name_hosts(word: str) -> bool:
    """Whether ``word`` can be hosts as ``--hosts`` takes them, and is no file that is there."""
    from distconsole.config.hostfile import read_list  # noqa: PLC0415 - only for what looks wrong

    if not HOST_WORD.fullmatch(word) or word.endswith(CODE) or word.startswith((".", "/")):
        return False
    try:
        return bool(read_list(word)) and not Path(word).exists()
    except (RangeError, OSError):
        return False


def hosts_meant(words: Sequence[str]) -> str:
    """Return the cure where hosts stand in place of the script, to the end or to the script; else nothing."""
    if not words:
        return ""
    named = [] if is_command(words[0]) else list(takewhile(may_name_hosts, words))
    rest = words[len(named) :]
    if not named or (rest and not (rest[0].endswith(".py") or Path(rest[0]).is_file())):
        return ""
    line = " ".join((f"--hosts {','.join(named)}", *rest[:1]))
    return f"did you mean `{line}`? a script of that name stands behind --"
