"""The options of the command line, made of the fields of requests."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

import click

from distconsole.grammar.asking import NamedOption, NumberedFlag
from distconsole.grammar.values import RUN, type_of
from distconsole.model import requests as ask
from distconsole.model.options import Kind, Option, options_of

HOST_OPTIONS = options_of(ask.Where)
OPENING_OPTIONS = tuple(options_of(ask.Opening))
LAUNCH_OPTIONS = (
    *("launcher", "nproc", "ranks", "nnodes", "module", "env", "env_file"),
    *("workdir", "sync", "pass_args", "nic"),
)
"""Fields of ``run`` that describe a launch."""
METAVARS = {Kind.COUNT: "N", Kind.POSITIVE: "N", Kind.FOLDER: "DIR", Kind.NPROC: "N|gpu"}


def params_of(kind: type) -> dict[str, click.Parameter]:
    """Return the parameters of a request by name, those of its hosts last but for the run that it is about."""
    by_name = {each.name: each for each in fields(kind)}
    found: dict[str, click.Parameter] = {
        name: _option(by_name[name], option) for name, option in options_of(kind).items()
    }
    if "where" in by_name:
        found = params_of(ask.Where) | found
    if kind is ask.Why:
        hosts = next(each for each in fields(ask.Where) if each.name == "hosts")
        found["hosts"] = _option(hosts, HOST_OPTIONS["hosts"], alone=True)
    if issubclass(kind, ask.OfRun):
        found["run"] = click.Argument(["run"], type=RUN, required=False, default=None)
    return found


def _option(of: Field[Any], option: Option, *, alone: bool = False) -> click.Option:
    """Return the option of a field; ``alone``: it may stand without its value, which is empty then."""
    flag = option.flag(of.name)
    flags = list(option.flags or [flag])
    default = None if of.default is MISSING else of.default
    value: dict[str, Any] = {
        "type": type_of(option),
        "metavar": option.metavar or METAVARS.get(option.kind),
    }
    if option.kind is Kind.FLAG:
        if default is not False and not option.flags:
            flags = [f"{flag}/--no-{flag.removeprefix('--')}"]
        value = {} if "/" in flags[0] else {"is_flag": True}
    elif option.metavar.startswith("["):
        value |= {"is_flag": False, "flag_value": ""}
    elif option.kind in (Kind.PAIRS, Kind.HOST_LIST):
        value["multiple"] = True
    elif option is HOST_OPTIONS["hosts"]:
        value |= {"multiple": True, "callback": _one_list}
    if alone:
        value |= {"is_flag": False, "flag_value": ""}
    shown = (option.choices or option.kind in METAVARS) and "[default" not in option.help
    counts = "-n" in flags
    return (NumberedFlag if counts else NamedOption)(
        [*flags, of.name],
        also=option.also,
        default=str(default) if option.choices and default else default,
        show_default=bool(shown and default),
        required=of.default is MISSING,
        help=option.help,
        **value,
    )


def _one_list(
    _context: click.Context, _param: click.Parameter, lists: tuple[str, ...]
) -> str | None:
    """Return the one list; two of them would run the job on a part of its hosts."""
    if len(lists) > 1:
        raise click.BadParameter(
            f"it is given {len(lists)} times, not once: --hosts {','.join(lists)}"
        )
    return lists[0] if lists else None


def opening(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Take these options out of ``given``, by default from the group's."""
    before: dict[str, Any] = context.find_root().params
    own = {name: given.pop(name, None) for name in OPENING_OPTIONS}
    return {name: before.get(name) if said is None else said for name, said in own.items()}


def where(context: click.Context, given: dict[str, Any]) -> ask.Where:
    """Take the host options out of ``given``; what the verb does not say, the group's may.

    Options of a kind that excludes another (``--hosts``, ``--hostfile``, ``--cluster``) given with
    the verb replace those given before it.
    """
    own = ask.Where(**{name: given.pop(name, None) for name in HOST_OPTIONS})
    before: dict[str, Any] = context.find_root().params
    found = own.over(ask.Where(**{name: before.get(name) for name in HOST_OPTIONS}))
    # An empty text was given too, most often by a variable that is not set: it names no host.
    named = [f"--{name}" for name in ask.NAMES_OF_HOSTS if getattr(found, name) is not None]
    if len(named) > 1:
        raise click.UsageError(
            f"{' and '.join(named)} exclude each other: give one of them.", context
        )
    return found
