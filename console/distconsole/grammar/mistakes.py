"""Suggestions for malformed words: the right option, ``--hosts``, the nearest name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import click
from click.core import ParameterSource

from distconsole.config.ranges import RangeError
from distconsole.config.spelling import nearest, suggest
from distconsole.errors import UsageError
from distconsole.grammar.asking import PROGRAM
from distconsole.grammar.pasting.meanings import becomes
from distconsole.grammar.pasting.read import is_command
from distconsole.grammar.pasting.starters import STARTERS, StarterOption, starter_of

OTHER_OPTIONS = {
    option: cure
    for cure, options in {
        "--ranks N, or --nproc N for each host": "ngpus gpus world_size",
        "USER@HOST in --hosts, or User in ~/.ssh/config": "user username login",
        "HOST/PORT in --hosts, or Port in ~/.ssh/config": "ssh_port port",
        "IdentityFile in ~/.ssh/config": "identity_file ssh_identity_file",
        "--container docker:NAME, podman:NAME, apptainer:FILE or enroot:NAME": "docker podman apptainer singularity image container_image",
        "--python PATH of its python, or --setup CMD": "conda conda_env venv",
        "--detach": "background daemon no_wait",
        '--slurm "OPTIONS of sbatch"': "executor slurm_partition",
        "behind the script, which gets it": "deepspeed deepspeed_config",
    }.items()
    for option in options.split()
}
"""By an option of submitit, of ssh or of a script, what says that here."""
OTHER_WORDS = {
    **dict.fromkeys(("launch", "start", "exec", "submit", "sbatch", "qsub"), "run"),
    **dict.fromkeys(("kill", "cancel", "abort"), "stop"),
    **dict.fromkeys(("ps", "ls", "list", "status", "history", "jobs"), "runs"),
    **dict.fromkeys(("pods", "nvtop", "htop", "nvidia-smi"), "top"),
    **dict.fromkeys(("tail", "log", "cat", "output"), "logs"),
    **dict.fromkeys(("follow", "monitor", "nodes", "hosts"), "top"),
    **dict.fromkeys(("info", "describe", "summary"), "show"),
    **dict.fromkeys(("diff", "cmp"), "compare"),
    **dict.fromkeys(("config", "configure"), "init"),
    "debug": "doctor",
    **dict.fromkeys(("completions", "install-completion"), "completion"),
    **dict.fromkeys(("verify", "test", "ping", "health"), "check"),
    **dict.fromkeys(("restart", "retry", "repeat"), "rerun"),
}
"""What other programs call our verbs."""
LEAVE_OUT = "leave it out"
LAUNCHES = frozenset({"run", "check", "rerun", "bench", "top", "setup"})
"""Verbs that people give options of another launcher."""
ALMOST = 0.8
"""Likeness from which on one word is surely meant for the other."""
PERHAPS = 0.7
"""So alike, ``--user`` is not ``--cluster``."""
HOST_WORD = re.compile(r"[A-Za-z0-9_.@:,/\[\]-]*[A-Za-z0-9\]]")
CODE = (".py", ".pyc", ".sh", ".ipynb", ".pyz", ".txt", ".toml", ".yaml", ".json")
EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)


def usage_error(error: click.UsageError) -> UsageError:
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
        for name, value in context.params.items():
            if isinstance(value, str) and value.endswith(".py"):
                flag = f"--{name.replace('_', '-')}"
                cure = f"{flag} took {value} for its value: give it one, in quotes if with blanks"
    elif isinstance(error, click.BadParameter):
        kind = error.param.type if error.param else None
        typed = re.match(r"'([^']*)'", error.message)
        cure = suggest(typed[1], kind.choices) if typed and isinstance(kind, click.Choice) else ""
        name = str(error.param.name) if error.param else ""
        if context and context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
            message += f", in [{context.command.name}] of distconsole.toml"
    elif (extra := EXTRA.match(message)) and context is not None:
        message = f"{path} takes no further words: {extra[1]}"
        cure = _meant_words(extra[1].split(), context.command)
    made = UsageError(message, cure or f"see '{path} --help'")
    if isinstance(error, click.BadParameter) and error.param is not None:
        made.option = str(error.param.name)
    return made


def _meant_option(typed: str, context: click.Context | None) -> str:
    if context is None:
        return ""
    command, root = context.command, context.find_root().command
    own = [flag for flag in _flags(command) if flag.startswith("--")]
    near = nearest(typed, own, ALMOST) if len(typed) > len("-x") else None
    near = None if typed.lstrip("-").replace("-", "_") in OTHER_OPTIONS else near
    if near is None and command.name in LAUNCHES and (answer := answer_for(typed)):
        return answer
    commands = root.commands.values() if isinstance(root, click.Group) else ()
    others = [str(each.name) for each in commands if typed in _flags(each)]
    if near is None and others and command is not root:
        return f"{typed} is an option of {', '.join(others[:4])}"
    if near is None and others:
        return f"options of a verb stand behind it: {PROGRAM} {others[0]} {typed}"
    near = near or nearest(typed, own, PERHAPS)
    if near is None and typed.lstrip("-") in ("last", "latest"):
        return f"the newest run is called last: {context.command_path} last"
    return f"did you mean {near}?" if near else ""


def _flags(command: click.Command) -> list[str]:
    options = [each for each in command.params if isinstance(each, click.Option)]
    others = frozenset[str]().union(*(getattr(each, "also", ()) for each in options))
    flags = [flag for each in options for flag in (*each.opts, *each.secondary_opts)]
    return [flag for flag in flags if flag not in others]


def answer_for(typed: str) -> str:
    """Return our equivalent of another launcher's option; empty for an unknown one."""
    name = typed.lstrip("-").replace("-", "_")
    one_dash = len(name) > 1 and not typed.startswith("--")
    found: dict[str, list[str]] = {}
    for starter in map(starter_of, dict.fromkeys(STARTERS.values())):
        option = starter.find(name)
        if option is None or (one_dash and starter.dashes):
            continue
        found.setdefault(_answer(typed, option), []).append(starter.name)
    if name in OTHER_OPTIONS:
        found = {OTHER_OPTIONS[name]: [], **({} if found.keys() == {LEAVE_OUT} else found)}
    told = (
        f"{answer} (of {', '.join(names)})" if names else answer for answer, names in found.items()
    )
    text = "; ".join(told) if len(found) > 1 else "".join(found)
    return text if not text or text.startswith("leave") else f"here: {text}"


def _answer(typed: str, option: StarterOption) -> str:
    match option.kind:
        case "takes":
            told = becomes(option.text)
            return told if told.startswith("-") else f"{LEAVE_OUT}: {told}"
        case "sets" | "on":
            return f"--env {option.text}" if "=" in option.text else f"--env {option.text}=VALUE"
        case "asks":
            return f'--slurm "{typed} …", which sbatch gets'
        case "refused":
            return option.text.partition(" | ")[2]
        case _:
            return LEAVE_OUT


def meant_verb(name: str, verbs: Iterable[str]) -> str:
    """Return the verb, or the whole line, that was most likely meant by ``name``; empty if none is like it."""
    if name.endswith(".py"):
        return name if name.startswith("run ") else f"run {name}"
    first = name.lower().partition(" ")[0]
    return OTHER_WORDS.get(first) or nearest(first, verbs) or ""


def refuse_path(module: str) -> None:
    """Refuse a file in place of a module's name, with the word that was probably meant. Raises UsageError."""
    if module.endswith(".py") and (os.path.isfile(module) or "/" in module):  # noqa: PTH113 - raises nothing
        name = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UsageError(
            f"{module} is a file, and --module takes the name of a module",
            f"did you mean `--module {name}`? for the file, leave --module out",
        )


def _meant_words(words: Sequence[str], command: click.Command) -> str:
    if not words:  # an empty one, as a shell makes it of "$UNSET"
        return ""
    if command.name == "logs" and words[-1].isdigit():
        return f"did you mean `{PROGRAM} logs last --rank {words[-1]}`?"
    if command.name == "runs" and words[0] in ("failed", "succeeded", "stopped", "running"):
        return f"did you mean `{PROGRAM} runs --where state={words[0]}`?"
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
    if not named or (rest and not (rest[0].endswith(".py") or os.path.isfile(rest[0]))):  # noqa: PTH113
        return ""
    line = " ".join((f"--hosts {','.join(named)}", *rest[:1]))
    return f"did you mean `{line}`? a script of that name stands behind --"


def refuse_hosts_behind(hosts: str | None, words: Sequence[str]) -> None:
    """Refuse hosts that a blank, and no comma, parts from ``--hosts``. Raises UsageError with the list that was meant."""
    if not hosts or not hosts_meant(words):
        return
    named = list(takewhile(may_name_hosts, words))
    rest = words[len(named) :][:1]
    last = hosts.rpartition(",")[2]
    if rest or len({re.sub(r".*@|\d+", "", host) for host in (named[0], last)}) == 1:
        line = " ".join((f"--hosts {','.join((hosts, *named))}", *rest))
        raise UsageError(
            f"{named[0]} stands behind --hosts {hosts}, in place of the script",
            f"did you mean `{line}`? a script of that name stands behind --",
        )
