"""From the words behind ``check`` to the launch that they mean: the request that ``run`` would get.

What is said on the command line goes before what a pasted command says, and that before the table
``[run]`` of the configuration.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import click

from distconsole.errors import UsageError
from distconsole.grammar.asking import DIVIDED
from distconsole.grammar.options import LAUNCH_OPTIONS
from distconsole.grammar.pasting.meanings import Pasted
from distconsole.grammar.pasting.read import read_command
from distconsole.model import requests as ask

_GIVEN = click.core.ParameterSource.COMMANDLINE


def take_target(
    context: click.Context, given: dict[str, Any]
) -> tuple[ask.Target | None, ask.Where]:
    """Take the launch out of ``given``, and the hosts that its command names.

    Without a launch only ``nproc`` is left there, which collective checks have too.

    Raises UsageError for a command that is not understood.
    """
    words: tuple[str, ...] = given.pop("command")
    values = {name: given.pop(name) for name in LAUNCH_OPTIONS}
    said = {
        name: value
        for name, value in values.items()
        if context.get_parameter_source(name) is _GIVEN
    }
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
    hosts = ask.Where(hosts=pasted.hosts or None, hostfile=pasted.hostfile or None)
    if hosts.hosts and hosts.hostfile:
        hosts = replace(hosts, hostfile=None)
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
