"""From the words behind ``check``, such as a command that starts a training, to the launch that they mean.

What is said on the command line goes before what the command says, and that before the table ``[run]`` of the
configuration. What is not known is refused by name: the words behind an unknown option cannot be told apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.grammar.asking import DIVIDED
from distconsole.grammar.options import LAUNCH_OPTIONS
from distconsole.grammar.pasting.starters import (
    STARTERS,
    TORCHRUN,
    Meanings,
    Pasted,
    Starter,
    apply,
    split_options,
    split_words,
)
from distconsole.model import requests as ask

_GIVEN = click.core.ParameterSource.COMMANDLINE
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*")
PYTHON_FLAGS = frozenset("uOBsEISvqdbxiPR")
"""Its options of one letter without a value."""
SHELL_WORDS = frozenset(
    {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>>", "&>", "2>&1", "|&"}
)
WRAPPERS = frozenset({"nohup", "time", "exec", "env", "command", "stdbuf", "nice"})
"""Programs before a command that change nothing here, and their options that a value follows."""
WITH_VALUE = frozenset({"-u", "-n", "-C"})
OTHER_STARTERS = frozenset(
    {
        *("accelerate", "deepspeed", "lightning", "fabric", "sbatch", "salloc", "jsrun"),
        *("bash", "sh", "zsh", "source", "ssh", "sudo", "make", "tmux", "timeout", "numactl"),
        *("docker", "podman", "singularity", "apptainer", "enroot", "conda", "uv", "poetry"),
    }
)
MISSPELT = 0.8
"""So alike is a word without a dot to what starts a training that it is meant for that."""
TORCHRUN_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
)
LAUNCH_MODULE = "torch.distributed.launch"
HOROVOD_MODULE = "horovod.runner.launch"
PORT_OF_TORCHRUN, PORT_OF_C10D = 29500, 29400
KNOWN_STARTERS = "python, torchrun, horovodrun, mpirun, mpiexec, srun and distconsole run"


def take_target(
    context: click.Context, given: dict[str, Any]
) -> tuple[ask.Target | None, ask.Where]:
    """Take the launch out of ``given``, and the hosts that its command names.

    Without a launch only ``nproc`` is left there, which collective checks have too.

    Raises UsageError for a command that is not understood.
    """
    words: tuple[str, ...] = given.pop("command")
    values = {name: given.pop(name) for name in LAUNCH_OPTIONS}
    said = {name: values[name] for name in values if context.get_parameter_source(name) is _GIVEN}
    given["nproc"] = None if values["nproc"] in (None, "gpu") else int(values["nproc"])
    if not words:
        alone = next((name for name in said if name != "nproc"), None)
        if alone is not None:
            flag = f"--{alone.replace('_', '-')}"
            raise click.UsageError(f"{flag} says how a SCRIPT is launched: give one.", context)
        return None, ask.Where()
    divided = bool(context.meta.get(DIVIDED))  # before ``run`` notes its own
    pasted = read_command(words)
    if pasted.ours:
        return _ours(context, words, pasted.ours, said)
    run = _request(context, ["--", pasted.script, *pasted.arguments], {**_values(pasted), **said})
    divided = divided or words[0] != pasted.script
    given["nproc"] = None
    file = pasted.hostfile if not pasted.hosts else ""
    hosts = ask.Where(hosts=pasted.hosts or None, hostfile=file or None)
    target = ask.Target(
        run=replace(run, divided=divided),
        command=words,
        starter=pasted.starter,
        python=pasted.python if pasted.python not in ("", "python3") else None,
        ranks=None if "nproc" in said else pasted.ranks,
        address=pasted.address,
        port=pasted.port,
        notes=pasted.notes,
    )
    return target, hosts


def _ours(
    context: click.Context, words: tuple[str, ...], ours: tuple[str, ...], said: dict[str, Any]
) -> tuple[ask.Target, ask.Where]:
    root = context.find_root()
    request = root.command.main(
        list(ours),
        prog_name=root.info_name,
        standalone_mode=False,
        obj=context.obj,
        default_map=root.default_map,
    )
    if not isinstance(request, ask.Run):
        raise UsageError(
            f"distconsole {' '.join(ours[:1])} launches nothing", "check -- distconsole run SCRIPT"
        )
    if said:
        flag = f"--{next(iter(said)).replace('_', '-')}"
        raise UsageError(
            f"{flag} stands before the command and says how it launches",
            f"put it behind: distconsole run {flag} …",
        )
    return ask.Target(run=request, command=words, starter="distconsole"), request.where


def _values(pasted: Pasted) -> dict[str, Any]:
    shell = tuple((name, os.environ[name]) for name in pasted.exported if name in os.environ)
    values: dict[str, Any] = {
        "launcher": None if pasted.launcher is ask.LauncherName.AUTO else pasted.launcher.value,
        "nproc": pasted.per_host,
        "nnodes": pasted.nnodes,
        "module": pasted.module or None,
        "env": (*shell, *pasted.env),
        "workdir": pasted.workdir,
        "nic": pasted.nic,
        "pass_args": pasted.pass_args and pasted.pass_args.value,
        "max_restarts": pasted.max_restarts,
    }
    return {name: value for name, value in values.items() if value not in (None, "", ())}


def _request(context: click.Context, words: list[str], values: dict[str, Any]) -> ask.Run:
    """Return what ``run`` makes of ``words``, with ``values`` over the configuration."""
    root = context.find_root()
    table = (root.default_map or {}).get("run", {})
    assert isinstance(root.command, click.Group)
    command = root.command.commands["run"]
    inner = command.make_context("run", words, parent=root, default_map={**table, **values})
    with inner:
        request = command.invoke(inner)
    assert isinstance(request, ask.Run)
    return request


def read_command(words: Sequence[str]) -> Pasted:
    """Return what a command says; raises UsageError naming what is not understood."""
    if len(words) == 1 and _starts_something(words[0]):
        words = split_words(words[0])
    return _command(_without_shell(list(words)), Pasted())


def _starts_something(text: str) -> bool:
    """Whether one word is a whole command in quotes, and not a script with a blank in its name."""
    first, *others = text.split() or [""]
    return bool(others) and (is_starter(first) or bool(ASSIGNMENT.match(first)))


def is_starter(word: str) -> bool:
    """Whether ``word`` begins a command that is understood."""
    name = word.rpartition("/")[2]
    known = name in STARTERS or name in WRAPPERS or name in ("cd", "distconsole")
    return known or bool(PYTHON_NAME.fullmatch(name))


def is_command(word: str) -> bool:
    """Whether ``word`` begins a command and is no script, also one that is refused or misspelt."""
    return is_starter(word) or word in OTHER_STARTERS or bool(_meant(word))


def _without_shell(words: list[str]) -> list[str]:
    """Take out what only a shell understands; a ``cd DIR &&`` before the command is kept for it."""
    start = 3 if words[:1] == ["cd"] and words[2:3] == ["&&"] else 0
    for index, word in enumerate(words[start:], start):
        if word == "&&":
            raise UsageError(
                "a check looks at one command, and && joins two",
                "give the one that starts the training; --setup takes what comes before it",
            )
        if word in SHELL_WORDS or re.fullmatch(r"[12&]?>>?\S+", word):
            return words[:index]
    return words


def _command(words: list[str], found: Pasted) -> Pasted:
    """Read a command, or what is left of one behind what starts it."""
    if words[:1] == ["cd"] and words[2:3] == ["&&"]:
        return _command(words[3:], replace(found, workdir=words[1]))
    if not words:
        raise UsageError(
            "the command names no script", "such as: torchrun --nproc_per_node 2 train.py"
        )
    word, rest = words[0], words[1:]
    name = word.rpartition("/")[2]
    assigned = ASSIGNMENT.fullmatch(word)
    if assigned is not None and "/" not in assigned[1]:
        return _command(rest, found.setting(assigned[1], assigned[2]))
    if name in WRAPPERS:
        return _command(_behind_wrapper(rest), found)
    _refuse(word, name, found)
    if name == "distconsole":
        return replace(found, ours=tuple(rest), starter="distconsole")
    if name in STARTERS:
        return _starter(STARTERS[name], name, rest, found)
    if PYTHON_NAME.fullmatch(name):
        return _python(word, rest, found)
    return replace(found, script=word, arguments=tuple(rest))


def _refuse(word: str, name: str, found: Pasted) -> None:
    if name == "distconsole" and found != Pasted():
        raise UsageError(
            "distconsole starts the ranks itself, and nothing starts it",
            "check -- distconsole run … alone; variables by its --env",
        )
    if name in OTHER_STARTERS:
        raise UsageError(
            f"what {name} would start is not known here",
            f"give the command below it; understood are {KNOWN_STARTERS}",
        )
    if near := _meant(word):
        raise UsageError(
            f"{word} is no command that is known here",
            f"did you mean {near}? a script of that name is ./{word}",
        )
    if word.startswith("-"):
        raise UsageError(
            f"{word} stands where the script should", "options of the check come before the script"
        )


def _meant(word: str) -> str:
    """Return the command that ``word`` may be meant for where it is none and looks like no script."""
    known = [*STARTERS, "distconsole", "python"]
    if word in known or PYTHON_NAME.fullmatch(word) or re.search(r"[./]", word):
        return ""
    if word == "run":
        return "distconsole run"
    return nearest(word, known, MISSPELT) or ""


def _behind_wrapper(words: list[str]) -> list[str]:
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in WITH_VALUE else 1 :]
    return words


def _python(word: str, words: list[str], found: Pasted) -> Pasted:
    found = replace(found, python=word)
    while words and words[0].startswith("-") and words[0] != "-":
        option, *words = words
        if option == "--":
            break
        if option[:2] in ("-X", "-W") or option.startswith("--check-hash-based-pycs"):
            words = words[1 if option in ("-X", "-W", "--check-hash-based-pycs") else 0 :]
            continue
        for letter in option[1:]:  # they may stand together: -um
            if letter == "m":
                return _module(words, found)
            if letter == "c":
                raise UsageError("python -c has no script to check", "put the text into a file")
            if letter not in PYTHON_FLAGS:
                raise UsageError(
                    f"python has no option {option} that is known here",
                    "leave it out for the check",
                )
    if words[:1] == ["-"] or not words:
        raise UsageError(f"{word} without a script", f"such as: {word} train.py")
    return replace(found, script=words[0], arguments=tuple(words[1:]))


def _module(words: list[str], found: Pasted) -> Pasted:
    if not words:
        raise UsageError("-m without a module's name", "such as: python -m pkg.train")
    name, rest = words[0], words[1:]
    if name in TORCHRUN_MODULES:
        return _starter(TORCHRUN, name, rest, found)
    if name == HOROVOD_MODULE:
        return _starter(STARTERS["horovodrun"], name, rest, found)
    return replace(found, script=name, module=True, arguments=tuple(rest))


def _starter(starter: Starter, typed: str, words: list[str], found: Pasted) -> Pasted:
    options, rest = split_options(starter, words)
    outer = found.starter
    found = replace(found, starter=f"{outer} {typed}".strip())
    if starter is TORCHRUN:
        return _torchrun(typed, options, rest, found)
    launcher = {"horovodrun": ask.LauncherName.HOROVOD, "mpirun": ask.LauncherName.MPI}.get(
        starter.name, ask.LauncherName.SLURM
    )
    if starter.name in ("horovodrun", "mpirun") or not outer:
        found = replace(found, launcher=launcher)
    for meaning, option, values in options:
        found = apply(found, meaning, f"{typed} {option}", values)
    return _command(rest, found)


def _torchrun(typed: str, options: Meanings, rest: list[str], found: Pasted) -> Pasted:
    means = {meaning: values for meaning, _, values in options}
    old = typed == LAUNCH_MODULE and "own_env" not in means
    found = replace(
        found,
        launcher=ask.LauncherName.TORCH if old else ask.LauncherName.TORCHRUN,
        pass_args=ask.PassArgs.TORCH_LAUNCH if old else None,
        per_host="1",
        address="",
        port=None,
    )
    for meaning, option, values in options:
        found = apply(found, meaning, f"{typed} {option}", values)
    if "standalone" in means:
        found = replace(found, address="", port=None).noting(
            "torchrun --standalone is for one host: each host would train for itself"
        )
    elif found.port is None:
        dynamic = (means.get("backend") or ("static",))[0] == "c10d"
        found = replace(found, port=PORT_OF_C10D if dynamic else PORT_OF_TORCHRUN)
    if not rest:
        raise UsageError(f"{typed} without a script", f"such as: {typed} train.py")
    if "module" in means:
        return replace(found, script=rest[0], module=True, arguments=tuple(rest[1:]))
    if "command" in means:
        return _command(rest, found)
    return replace(found, script=rest[0], arguments=tuple(rest[1:]))
