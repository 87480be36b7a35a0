"""From the words behind ``run`` or ``check``, such as a command that starts a training, to the launch that they mean.

What is said on the command line goes before what the command says, and that before the table ``[run]`` of the
configuration.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import click

from distconsole.errors import UsageError
from distconsole.grammar.asking import DIVIDED, is_typed
from distconsole.grammar.options import LAUNCH_OPTIONS
from distconsole.grammar.pasting.meanings import Pasted
from distconsole.grammar.pasting.read import read_command
from distconsole.model import requests as ask


def take_target(
    context: click.Context, given: dict[str, Any]
) -> tuple[ask.Target | None, ask.Where]:
    """Take the launch out of ``given``, and the hosts that its command names.

    Without a launch only ``nproc`` is left there, which collective checks have too.

    Raises UsageError for a command that is not understood.
    """
    words: tuple[str, ...] = given.pop("command")
    values = {name: given.pop(name) for name in LAUNCH_OPTIONS}
    said = {name: values[name] for name in values if is_typed(context, name)}
    given["nproc"] = None if values["nproc"] in (None, "gpu") else int(values["nproc"])
    if not words:
        alone = next((name for name in said if name != "nproc"), None)
        if alone is not None:
            flag = f"--{alone.replace('_', '-')}"
            raise click.UsageError(f"{flag} says how a SCRIPT is launched: give one.", context)
        return None, ask.Where()
    divided = bool(context.meta.get(DIVIDED))  # before ``run`` notes its own
    pasted = read_command(words, values["workdir"])
    if pasted.ours:
        return _ours(context, words, pasted.ours, said)
    told = _values(pasted)
    if pasted.has_one_task_a_host and "SLURM_JOB_ID" not in os.environ:
        told["nproc"] = "1"
    if "nproc" in said:
        told.pop("ranks", None)
    said_env = said.get("env", ())
    values = {**told, **said, "env": (*told.get("env", ()), *said_env)}
    run = _request(context, ["--", pasted.script, *pasted.arguments], values)
    divided = divided or words[0] != pasted.script
    given["nproc"] = None
    file = pasted.hostfile if not pasted.hosts else ""
    hosts = ask.Where(hosts=pasted.hosts or None, hostfile=file or None)
    target = ask.Target(
        run=replace(run, divided=divided, command=_command_of(pasted, said, said_env)),
        command=words,
        python=pasted.python if pasted.python not in ("", "python3") else None,
        address=pasted.address,
        port=pasted.port,
        notes=pasted.notes,
    )
    return target, hosts


def take_command(context: click.Context, given: dict[str, Any], words: Sequence[str]) -> None:
    """Put into ``given``, of ``run``, what a command in place of the script says; what was typed before it wins.

    Raises UsageError for a command that is not understood.
    """
    pasted = read_command(words, given["workdir"])
    if pasted.ours:
        raise UsageError("distconsole run stands in place of the script", "leave it out")
    said = {name for name in given if is_typed(context, name)}
    before = context.find_root().params
    said |= {name for name in (*ask.NAMES_OF_HOSTS, "python") if before.get(name) is not None}
    values = _values(pasted)
    if pasted.launcher is ask.LauncherName.SLURM:
        del values["launcher"]
    if not said & {*ask.NAMES_OF_HOSTS, "slurm"}:
        values |= (
            {"hosts": pasted.hosts} if pasted.hosts else {"hostfile": pasted.hostfile or None}
        )
        values = _ask_slurm(pasted, values)
    elif "slurm" in said:
        given["slurm"] = " ".join((given["slurm"], shlex.join(pasted.asks))).strip()
    inside = next((each for each in pasted.asks if each.startswith("--container")), "")
    if inside and "slurm" not in (*values, *said):
        raise UsageError(
            f"srun {inside}: no job is asked of Slurm here, and its container is a job's",
            "--slurm OPTIONS in place of the hosts, or --container enroot:NAME and the command without that",
        )
    if pasted.python not in ("", "python", "python3"):
        values["python"] = pasted.python
    if "nproc" in said:
        values["ranks"] = None
    given |= {name: value for name, value in values.items() if name not in said}
    given |= {"script": pasted.script, "arguments": pasted.arguments}
    said_env = given["env"] if "env" in said else ()
    given["env"] = (*values.get("env", ()), *said_env)
    given["command"] = _command_of(pasted, said, said_env)


def _ask_slurm(pasted: Pasted, values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` with a job asked of Slurm, as srun outside of a job does; its hosts and ranks are that job's."""
    if not pasted.starter.startswith("srun") or "SLURM_JOB_ID" in os.environ:
        return values
    of_job = {"hosts", "hostfile", "ranks", "nnodes"}
    if pasted.launcher is ask.LauncherName.SLURM:
        of_job.add("nproc")
    kept = {name: value for name, value in values.items() if name not in of_job}
    if pasted.has_one_task_a_host:
        kept["nproc"] = "1"
    return {**kept, "slurm": shlex.join(pasted.asks) or "--ntasks=1"}


def _command_of(
    pasted: Pasted, said: Collection[str], env: Sequence[tuple[str, str]]
) -> ask.Command | None:
    """Return the part of a command that is kept; options of ours before it are noted as overriding."""
    values = _values(pasted)
    twice = [f"--{name.replace('_', '-')}" for name in said if name in values and name != "env"]
    twice += [f"--env {name}={value}" for name, value in env if name in dict(pasted.env)]
    counts = "stands before the command, and counts instead of its own"
    rows = (*pasted.rows, *((each, counts) for each in twice))
    if not rows and not pasted.starter:
        return None
    return ask.Command("" if "launcher" in said else pasted.starter, rows)


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
    return ask.Target(run=request, command=words), request.where


def _values(pasted: Pasted) -> dict[str, Any]:
    """Return the options of ``run`` that a command gives, by name."""
    shell = tuple((name, os.environ[name]) for name in pasted.exported if name in os.environ)
    values: dict[str, Any] = {
        "launcher": None if pasted.launcher is ask.LauncherName.AUTO else pasted.launcher,
        "nproc": pasted.per_host,
        "ranks": pasted.ranks,
        "nnodes": pasted.nnodes,
        "module": pasted.module or None,
        "env": (*shell, *pasted.env),
        "workdir": pasted.workdir,
        "nic": pasted.nic,
        "pass_args": pasted.pass_args,
        "max_restarts": pasted.max_restarts,
        "grace_seconds": pasted.grace_seconds,
    }
    return {name: value for name, value in values.items() if value not in (None, "", ())}


def _request(context: click.Context, words: list[str], values: dict[str, Any]) -> ask.Run:
    root = context.find_root()
    table = (root.default_map or {}).get("run", {})
    assert isinstance(root.command, click.Group)
    command = root.command.commands["run"]
    inner = command.make_context("run", words, parent=root, default_map={**table, **values})
    with inner:
        request = command.invoke(inner)
    assert isinstance(request, ask.Run)
    return request
