"""A command that starts a training, read: what starts the ranks, with which options, and the script.

What is not known is refused by name: nobody can tell what it would change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.grammar.pasting.engines import finish_accelerate, finish_deepspeed, finish_fabric
from distconsole.grammar.pasting.meanings import Pasted, apply
from distconsole.grammar.pasting.starters import (
    STARTERS,
    TAKES,
    Given,
    Starter,
    refuse_variable,
    split_options,
    split_words,
    starter_of,
)
from distconsole.model import requests as ask

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*")
PYTHON_FLAGS = frozenset("uOBsEISvqdbxiPR")
"""Its options of one letter without a value."""
SHELL_WORDS = frozenset(
    {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>>", "&>", "2>&1", "|&"}
)
KEPT = "nothing: every rank's output is kept: distconsole logs"
SHELLS = ("bash", "sh")
"""Before a script of theirs they change nothing: it is started by bash."""
WRAPPERS = frozenset({"nohup", "time", "exec", "env", "command", "stdbuf"})
"""Programs before a command that change nothing here."""
PYTHONS = "--python PATH of its python, or --setup CMD, and the command below it"
OTHER_STARTERS = {
    **dict.fromkeys(("conda", "uv", "poetry", "source"), PYTHONS),
    **dict.fromkeys(
        ("ssh", "sudo", "tmux"),
        "hosts and user are told by --hosts USER@HOST; give the command below it",
    ),
    **dict.fromkeys(
        ("sbatch", "salloc", "jsrun"), '--slurm "OPTIONS", and the command that it would start'
    ),
    **dict.fromkeys(
        (
            "docker",
            "podman",
            "singularity",
            "apptainer",
            "enroot",
            "make",
            "timeout",
            "numactl",
            "nice",
            "zsh",
        ),
        "give the command below it",
    ),
}
"""Programs whose command is not seen through, and what to do instead."""
MISSPELT = 0.8
"""So alike is a word without a dot to what starts a training that it is meant for that."""
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic": "torchrun",
    "horovod.runner.launch": "horovodrun",
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "lightning.fabric.cli": "fabric",
}
"""Modules that start ranks, and the table of their options."""
LAUNCH_MODULE = "torch.distributed.launch"
SUBCOMMANDS = {"accelerate": ("launch",), "fabric": ("run", "model")}
"""The words between a program and its options; further ones may be left out."""
LAUNCHERS = {
    "torchrun": ask.LauncherName.TORCHRUN,
    "horovodrun": ask.LauncherName.HOROVOD,
    "mpirun": ask.LauncherName.MPI,
    "srun": ask.LauncherName.SLURM,
}
"""By table; those of the others are torch's."""
FINISH = {
    "accelerate": finish_accelerate,
    "deepspeed": finish_deepspeed,
    "fabric": finish_fabric,
}
PORT_OF_TORCHRUN, PORT_OF_C10D = 29500, 29400
KNOWN_STARTERS = "python, torchrun, accelerate, deepspeed, fabric, horovodrun, mpirun, mpiexec, srun and distconsole run"


def read_command(words: Sequence[str]) -> Pasted:
    """Return what a command says; raises UsageError naming what is not understood."""
    if len(words) == 1 and _starts_something(words[0]):
        words = split_words(words[0])
    kept, rows = _without_shell(list(words))
    found = _command(kept, Pasted())
    return replace(found, rows=(*found.rows, *rows))


def _starts_something(text: str) -> bool:
    """Whether one word is a whole command in quotes, and not a script with a blank in its name."""
    first, *others = text.split() or [""]
    return bool(others) and (is_starter(first) or bool(ASSIGNMENT.match(first)))


def starts_ranks(words: Sequence[str]) -> bool:
    """Whether words in place of a script are a command; where a file of that name lies, they are a script."""
    first = words[0]
    means = is_command(first) or bool(ASSIGNMENT.match(first)) or _starts_something(first)
    return means and ("/" in first or not Path(first).is_file())


def is_starter(word: str) -> bool:
    """Whether ``word`` begins a command that is understood."""
    name = word.rpartition("/")[2]
    known = name in STARTERS or name in WRAPPERS or name in (*SHELLS, "cd", "distconsole")
    return known or bool(PYTHON_NAME.fullmatch(name))


def is_command(word: str) -> bool:
    """Whether ``word`` begins a command and is no script, also one that is refused or misspelt."""
    return is_starter(word) or word in OTHER_STARTERS or bool(_meant(word))


def _without_shell(words: list[str]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Take out what only a shell understands, and tell what it becomes; a ``cd DIR &&`` before the command is kept.

    Raises UsageError for what starts something else, or reads a file.
    """
    start = 3 if words[:1] == ["cd"] and words[2:3] == ["&&"] else 0
    for index, word in enumerate(words[start:], start):
        if word not in SHELL_WORDS and not re.fullmatch(r"[12&]?>>?\S+", word):
            continue
        rest = " ".join(words[index:])
        behind = words[index + 1 : index + 2]
        if word in ("&&", "||", ";", "<") or (word in ("|", "|&") and behind != ["tee"]):
            raise UsageError(
                f"one command is read, and {word} joins it with something else",
                "ranks have no standard input"
                if word == "<"
                else "give the one that starts the training; --setup takes what comes before it",
            )
        kept = "nothing: a run goes on by itself" if word == "&" else KEPT
        return words[:index], ((rest, kept),)
    return words, ()


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
        refuse_variable(assigned[1], assigned[2])
        told = found.telling(word, f"--env {word}")
        return _command(rest, told.setting(assigned[1], assigned[2]))
    if name in WRAPPERS:
        return _command(_behind_wrapper(name, rest), found)
    if word == "run" and found.env:
        return _command(rest, found)
    if name in SHELLS and rest and not rest[0].startswith("-"):
        return _command(rest, found)
    _refuse(word, name, found)
    if name == "distconsole":
        return replace(found, ours=tuple(rest), starter="distconsole")
    if name in STARTERS:
        return _starter(name, STARTERS[name], rest, found)
    if PYTHON_NAME.fullmatch(name):
        return _python(word, rest, found)
    return replace(found, script=word, arguments=tuple(rest))


def _refuse(word: str, name: str, found: Pasted) -> None:
    if name == "distconsole" and found != Pasted():
        raise UsageError(
            "distconsole starts the ranks itself, and nothing starts it",
            "check -- distconsole run … alone; variables by its --env",
        )
    if name in OTHER_STARTERS or name in SHELLS:
        raise UsageError(
            f"what {name} would start is not known here",
            f"{OTHER_STARTERS.get(name, 'give the command below it')}; understood are {KNOWN_STARTERS}",
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


def _behind_wrapper(name: str, words: list[str]) -> list[str]:
    """Return what follows a wrapper; raises UsageError for an option of it that would change something."""
    while words and words[0].startswith("-"):
        if name not in ("time", "stdbuf"):
            raise UsageError(
                f"{name} {words[0]} has no equivalent here",
                "leave it out; --env NAME=VALUE sets one",
            )
        words = words[1:]
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
    if name in MODULES:
        return _starter(name, MODULES[name], rest, found)
    return replace(found, script=name, module=True, arguments=tuple(rest))


def _starter(typed: str, table: str, words: list[str], found: Pasted) -> Pasted:
    starter, outer = starter_of(table), found.starter
    given, rest = split_options(starter, _behind_subcommand(typed, table, words))
    found = replace(found, starter=f"{outer} {typed}".strip())
    if table not in ("srun", "mpirun", "horovodrun"):
        return _of_torch(typed, starter, given, rest, found)
    if table != "srun" or not outer:
        found = replace(found, launcher=LAUNCHERS[table])
    for each in given:
        found = apply(found, starter, each)
    return _command(rest, found)


def _behind_subcommand(typed: str, table: str, words: list[str]) -> list[str]:
    """Return ``words`` behind the ``launch`` of accelerate or the ``run`` of fabric; raises UsageError without it."""
    if table not in SUBCOMMANDS or typed.endswith(("-launch", ".launch")):
        return words
    first, *others = SUBCOMMANDS[table]
    if words[:1] != [first]:
        said = " ".join((typed, *words[:1]))
        raise UsageError(f"{said} starts no training", f"such as: {typed} {first} train.py")
    return words[2:] if words[1:2] == others and others else words[1:]


def _of_torch(
    typed: str, starter: Starter, given: list[Given], rest: list[str], found: Pasted
) -> Pasted:
    means = {each.option.text for each in given if each.option.kind == TAKES}
    old = typed == LAUNCH_MODULE and "own_env" not in means
    torch = ask.LauncherName.TORCH
    launcher = torch if old else LAUNCHERS.get(starter.name, torch)
    passes = ask.PassArgs.TORCH_LAUNCH if old else None
    plain = starter.name == "torchrun"
    found = replace(found, launcher=launcher, pass_args=passes, per_host="1" if plain else "")
    found = replace(found, ranks=None, address="", port=None)
    for each in given:
        found = apply(found, starter, each)
    if starter.name in FINISH:
        found = FINISH[starter.name](found, given)
    elif "standalone" in means:
        found = replace(found, address="", port=None).noting(
            "torchrun --standalone is for one host: each host would train for itself"
        )
    elif found.port is None:
        dynamic = any(each.value == "c10d" for each in given)
        found = replace(found, port=PORT_OF_C10D if dynamic else PORT_OF_TORCHRUN)
    if not rest:
        raise UsageError(f"{typed} without a script", f"such as: {typed} train.py")
    if "module" in means:
        return replace(found, script=rest[0], module=True, arguments=tuple(rest[1:]))
    if "command" in means:
        return _command(rest, found)
    return replace(found, script=rest[0], arguments=tuple(rest[1:]))
