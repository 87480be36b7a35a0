"""A command that starts a training, read: what starts the ranks, with which options, and the script.

What is not known is refused by name: nobody can tell what it would change.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace

from distconsole.config.paths import expand_home
from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.grammar.pasting import starters
from distconsole.grammar.pasting.around import (
    BEFORE,
    BY_ITSELF,
    NOT_HELD_BACK,
    take_before,
    take_options,
    take_out,
)
from distconsole.grammar.pasting.engines import finish_accelerate, finish_deepspeed, finish_fabric
from distconsole.grammar.pasting.meanings import Pasted, apply, export, whole_number
from distconsole.model import requests as ask

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*[td]*")
SHELLS = ("bash", "sh")
"""Before a script of theirs they change nothing: it is started by bash."""
WRAPPERS = {
    "nohup": BY_ITSELF,
    "time": "nothing: a run says at its end how long it took",
    "stdbuf": NOT_HELD_BACK,
    "exec": "",
    "env": "",
    "command": "",
}
"""Programs before a command that change nothing here, and why."""
WRAPPED_VALUES = {
    "stdbuf": ("ioe", ("--input", "--output", "--error")),
    "time": ("of", ("--output", "--format")),
}
"""Their options that may have their value as a separate word: letters and names."""
OTHER_STARTERS = {
    name.partition("=")[0]: cure
    for cure, names in starters.tables()["others"].items()
    for name in names.split()
}
"""Programs whose command is not seen through, and what to do instead."""
OWN_STARTS = {
    name: words.split("|")
    for names in starters.tables()["others"].values()
    for name, equals, words in (each.partition("=") for each in names.split())
    if equals
}
"""Of those, what starts ranks of its own, with these words behind it; an empty one: with any."""
RAY_DRIVER = re.compile(r"(verl\.trainer|recipe\.\w+)\.main_\w+|openrlhf\.cli\.train_\w+_ray")
"""Modules whose workers Ray starts."""
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
    "lightning_fabric.cli": "fabric",
}
"""Modules that start ranks, and the table of their options."""
ASK_PERSONS = ("pdb", "ipdb", "pudb", "IPython", "code")
"""Modules that read a person's input."""
NO_MODULES = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.launch",
    "deepspeed": "deepspeed.launcher.runner",
    "lightning": "lightning.fabric.cli",
    "lightning.fabric": "lightning.fabric.cli",
    "horovod": "horovod.runner.launch",
    "horovodrun": "horovod.runner.launch",
}
"""Module that ``python -m`` cannot start -> the module that the user means."""
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
FINISH = {"accelerate": finish_accelerate, "deepspeed": finish_deepspeed, "fabric": finish_fabric}
PORT_OF_TORCHRUN, PORT_OF_C10D = 29500, 29400
KNOWN_STARTERS = "python, torchrun, accelerate, deepspeed, fabric, horovodrun, mpirun, mpiexec, srun and distconsole run"
BELOW = "give the command below it, and to --setup what comes before that"


def read_command(words: Sequence[str], workdir: str | None = None) -> Pasted:
    """Return what a command says; raises UsageError naming what is not understood."""
    if _is_known(words[0]) and not starts_ranks(words, workdir):
        return Pasted(script=words[0], arguments=tuple(words[1:]))
    if len(words) == 1 and _starts_something(words[0]):
        words = starters.split_words(words[0])
    before, left = take_before(list(words), Pasted())
    kept, rows = take_out(left)
    found = _command(kept, before)
    if kept[:1] != [found.script]:
        starters.refuse_unreplaced(kept[0], found.script, found.arguments)
    if found.world_size and not found.starter:
        found = _all_ranks(found)
    return replace(found, rows=(*found.rows, *rows))


def _all_ranks(found: Pasted) -> Pasted:
    """Return a script's own start with as many ranks as WORLD_SIZE says, each of which would be started by hand."""
    number = whole_number("WORLD_SIZE", found.world_size)

    def becomes_now(typed: str, told: str) -> str:
        named = typed.removeprefix("export ").startswith("WORLD_SIZE=")
        return f"--ranks {number}" if named else told

    return replace(found, ranks=number).retelling(becomes_now)


def _starts_something(text: str) -> bool:
    """Whether one word is a whole command in quotes, and not a script with a blank in its name."""
    first, *others = text.split() or [""]
    return bool(others) and (is_command(first) or bool(ASSIGNMENT.match(first)))


def starts_ranks(words: Sequence[str], workdir: str | None = None) -> bool:
    """Whether words in place of a script are a command; a present file of that name is a script."""
    first = words[0]
    means = _is_known(first) or bool(ASSIGNMENT.match(first)) or _starts_something(first)
    return means and ("/" in first or not _lies_in(workdir, first))


def refuse_program(script: str, workdir: str | None) -> None:
    """Refuse a program of PATH in place of a script, unless its folder has it or is not here. Raises UsageError."""
    away = workdir and not expand_home(workdir).is_dir()
    if away or is_script(script) or _lies_in(workdir, script) or shutil.which(script) is None:
        return
    raise UsageError(
        f"{script} is no launcher that is known here",
        f"a script of that name is ./{script}; of a program that starts another, {BELOW}; "
        f"understood are {KNOWN_STARTERS}",
    )


def is_starter(word: str) -> bool:
    """Whether ``word`` begins a command that is understood."""
    name = word.rpartition("/")[2]
    known = (
        name in starters.STARTERS
        or name in WRAPPERS
        or name in (*SHELLS, *BEFORE, "distconsole", "$")
    )
    return known or bool(PYTHON_NAME.fullmatch(name))


def is_command_line(word: str) -> bool:
    """Whether a line without a verb is a pasted command, by its first word; also if the command is refused."""
    known = is_starter(word) or word in OTHER_STARTERS or bool(ASSIGNMENT.match(word))
    return known and word != "export"


def is_command(word: str) -> bool:
    """Whether ``word`` begins a command and is no script, also one that is refused or misspelt."""
    return _is_known(word) or (not is_script(word) and shutil.which(word) is not None)


def _is_known(word: str) -> bool:
    return is_starter(word) or word in OTHER_STARTERS or bool(_meant(word))


def is_script(word: str) -> bool:
    """Whether a word names a file, by its form or because one is here."""
    return bool(re.search(r"[./]", word)) or _lies_in(None, word)


def _lies_in(folder: str | None, name: str) -> bool:
    path = os.path.join(expand_home(folder or "."), name)  # noqa: PTH118 - as below
    return os.path.isfile(path)  # noqa: PTH113 - a long command names no file, and is no error


def _command(words: list[str], found: Pasted) -> Pasted:
    if not words:
        raise UsageError(
            "the command names no script", "such as: torchrun --nproc_per_node 2 train.py"
        )
    word, rest = words[0], words[1:]
    name = word.rpartition("/")[2]
    assigned = ASSIGNMENT.fullmatch(word)
    if assigned is not None and "/" not in assigned[1]:
        return _command(rest, export(found, word, word))
    if name in WRAPPERS:
        why = WRAPPERS[name]
        told = found.telling(name, why) if why else found
        return _command(_behind_wrapper(name, rest), told)
    if word == "run" and found.env:
        return _command(rest, found)
    if name in SHELLS and rest and not rest[0].startswith("-"):
        return _command(rest, found)
    _refuse(word, name, found)
    if name == "distconsole":
        return replace(found, ours=tuple(rest), starter="distconsole")
    if name in starters.STARTERS:
        return _starter(name, starters.STARTERS[name], rest, _of_folder(word, found))
    if PYTHON_NAME.fullmatch(name):
        return _python(word, rest, found)
    return replace(found, script=word, arguments=tuple(rest))


def _of_folder(word: str, found: Pasted) -> Pasted:
    """Return ``found`` with the interpreter in the folder of a program that starts ranks."""
    folder, slash, name = word.rpartition("/")
    if not slash:
        return found
    if starters.STARTERS[name] in ("mpirun", "srun"):
        why = "nothing: the hosts' shell finds it: --setup 'export PATH=DIR:$PATH'"
        return found.telling(word, why)
    starters.refuse_variable(name, folder)
    python = f"{folder}/python"
    return replace(found, python=python).telling(word, f"--python {python}")


def _refuse(word: str, name: str, found: Pasted) -> None:
    if name == "distconsole" and found != Pasted():
        raise UsageError(
            "distconsole starts the ranks itself, and nothing starts it",
            "check -- distconsole run … alone; variables by its --env",
        )
    if name in OTHER_STARTERS or name in SHELLS:
        raise UsageError(
            f"what {name} would start is not known here",
            f"{OTHER_STARTERS.get(name, BELOW)}; understood are {KNOWN_STARTERS}",
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
    """Return the command that ``word`` may be meant for, if it is none and looks like no script."""
    known = [*starters.STARTERS, "distconsole", "python"]
    if word in known or PYTHON_NAME.fullmatch(word) or re.search(r"[./]", word):
        return ""
    if word == "run":
        return "distconsole run"
    return nearest(word, known, MISSPELT) or ""


def _behind_wrapper(name: str, words: list[str]) -> list[str]:
    """Return what follows a wrapper; raises UsageError for an option of it that would change something."""
    if name in WRAPPED_VALUES:
        return behind_options(words, *WRAPPED_VALUES[name])
    if words and words[0].startswith("-"):
        cure = "leave it out; --env NAME=VALUE sets one"
        raise UsageError(f"{name} {words[0]} has no equivalent here", cure)
    return words


def behind_options(words: list[str], letters: str, names: Sequence[str] = ()) -> list[str]:
    """Return what follows the options, as getopt reads them: behind ``letters`` and ``names`` stands a value."""
    while words and words[0].startswith("-") and words[0] != "-":
        option, *words = words
        if option == "--":
            break
        first = re.search(f"[{letters}]", option)
        takes = first is not None and first.end() == len(option)
        words = words[option in names if option.startswith("--") else takes :]
    return words


def _python(word: str, words: list[str], found: Pasted) -> Pasted:
    found, rest, is_module = take_options(word, words, replace(found, python=word))
    if is_module:
        return _module(rest, found)
    if rest[:1] == ["-"] or not rest:
        raise UsageError(f"{word} without a script", f"such as: {word} train.py")
    return replace(found, script=rest[0], arguments=tuple(rest[1:]))


def _module(words: list[str], found: Pasted) -> Pasted:
    if not words:
        raise UsageError("-m without a module's name", "such as: python -m pkg.train")
    name, rest = words[0], words[1:]
    if name in MODULES:
        return _starter(name, MODULES[name], rest, found)
    if name in ASK_PERSONS:
        raise UsageError(f"python -m {name}: ranks have no standard input", "leave it out")
    if name in NO_MODULES:
        raise UsageError(
            f"python -m {name} starts nothing", f"did you mean python -m {NO_MODULES[name]}?"
        )
    return replace(found, script=name, module=True, arguments=tuple(rest))


def _starter(typed: str, table: str, words: list[str], found: Pasted) -> Pasted:
    starter, outer = starters.starter_of(table), found.starter
    given, rest = starters.split_options(starter, _behind_subcommand(typed, table, words))
    found = replace(found, starter=f"{outer} {typed}".strip())
    if table not in ("srun", "mpirun", "horovodrun"):
        return _of_torch(typed, starter, given, rest, found)
    if table != "srun" or not outer:
        found = replace(found, launcher=LAUNCHERS[table])
    if ":" in rest:
        raise UsageError(
            f"{typed} … : … starts several programs",
            "every rank runs the same script here: a run for each",
        )
    for each in given:
        found = apply(found, starter, each)
    if table == "mpirun" and found.hosts and not (found.ranks or found.per_host):
        found = replace(found, per_host="1").telling(
            "(without -np)", "--nproc 1, where a host has no number"
        )
    found = _command(rest, found)
    if table == "srun" and found.has_one_task_a_host:
        told = "--nproc 1; in a job, as many ranks as it has tasks"
        found = found.telling("(without --ntasks)", told)
    return found


def _behind_subcommand(typed: str, table: str, words: list[str]) -> list[str]:
    """Return ``words`` behind the ``launch`` of accelerate or the ``run`` of fabric; raises UsageError without it."""
    if not _subcommands(typed, table):
        return words
    first, *others = _subcommands(typed, table)
    if words[:1] != [first]:
        said = " ".join((typed, *words[:1]))
        raise UsageError(f"{said} starts no training", f"such as: {typed} {first} train.py")
    return words[2:] if words[1:2] == others and others else words[1:]


def _subcommands(typed: str, table: str) -> tuple[str, ...]:
    whole = typed.endswith(("-launch", ".launch", "fabric.cli"))
    return () if whole else SUBCOMMANDS.get(table, ())


def _of_torch(
    typed: str,
    starter: starters.Starter,
    given: list[starters.Given],
    rest: list[str],
    found: Pasted,
) -> Pasted:
    means = {each.option.text for each in given if each.option.kind == starters.TAKES}
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
        module = "python -m " if typed in MODULES else ""
        words = (typed, *_subcommands(typed, starter.name)[:1], "train.py")
        raise UsageError(f"{typed} without a script", f"such as: {module}{' '.join(words)}")
    if "module" in means:
        return replace(found, script=rest[0], module=True, arguments=tuple(rest[1:]))
    if "command" in means:
        return _command(rest, found)
    return replace(found, script=rest[0], arguments=tuple(rest[1:]))
