"""What accelerate, DeepSpeed and Lightning's Fabric take from files and from several options together."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from distconsole.config.hostfile import NamedHost, host_text, read_hostfile
from distconsole.config.paths import expand_home
from distconsole.config.spelling import suggest
from distconsole.errors import ConfigError, UsageError
from distconsole.grammar.pasting.meanings import Pasted, apply, becomes, export
from distconsole.grammar.pasting.starters import ON, Given, Starter, starter_of
from distconsole.model.requests import PassArgs

OF_HOSTS = "nothing: --hosts says how many there are"
MAX_FILE_BYTES = 1024 * 1024
DEEPSPEED_HOSTS = "/job/hostfile"
"""DeepSpeed's own default (``DLTS_HOSTFILE``)."""
DEEPSPEED_ENV = ".deepspeed_env"
OF_HOSTS_NAMES = ("hostfile", "H", "num_nodes", "deepspeed_hostfile")
DEEPSPEED_FIELDS = "ACCELERATE_CONFIG_DS_FIELDS"
"""Names to accelerate what of DeepSpeed's settings comes from its own file."""
NOTHING_SAID = ("", "null", "~", "none", "false", "no", "[]", "{}")
DISTRIBUTED = {"FSDP": "use_fsdp", "DEEPSPEED": "use_deepspeed"}
PLAIN = re.compile(r"NO|MULTI_[A-Z]+")
"""Kinds of accelerate's distributed_type that its ranks find out by themselves."""
OF_CPU = {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}
"""Variables that accelerate sets with ``--cpu``."""
PREFIXES = {"fsdp_config": "fsdp_", "dynamo_config": "dynamo_", "fp8_config": "fp8_"}
"""What accelerate puts before a key of these that lacks it."""


def finish_accelerate(found: Pasted, given: list[Given]) -> Pasted:
    """Return ``found`` with what stands in accelerate's configuration, and what follows from all.

    As ``accelerate launch`` does: what is typed wins; its default file counts unless ``--cpu`` is given.
    Raises ConfigError with file and line for a key that means nothing here.
    """
    accelerate, typed = starter_of("accelerate"), {each.name: each for each in given}
    file = typed.pop("config_file", None)
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("HF_HOME") or f"{cache}/huggingface"  # as accelerate's config_args.py
    path = expand_home(file.value if file else f"{folder}/accelerate/default_config.yaml")
    if file or (path.is_file() and "cpu" not in typed):
        found = _read_config(found, accelerate, path, set(typed))
    found = _set_groups(_only_one_kind(found, typed), accelerate)
    names = {name for name, _ in found.env}
    by_deepspeed = "ACCELERATE_USE_DEEPSPEED" in names
    if by_deepspeed:
        found = _see_workdir(found)
        found = found if DEEPSPEED_FIELDS in names else found.setting(DEEPSPEED_FIELDS, "")
    if ("ACCELERATE_USE_CPU", "True") in found.env:
        for name, value in OF_CPU.items():
            found = found.setting(name, value).telling("(on the CPU)", f"--env {name}={value}")
    capital = "ACCELERATE_DYNAMO_BACKEND"
    env = ((name, value.upper() if name == capital else value) for name, value in found.env)
    found = replace(found, env=tuple(env))
    names = {name for name, _ in found.env}
    for name, value in accelerate.always.items():
        if name not in names and not (by_deepspeed and name.startswith("ACCELERATE_DYNAMO_")):
            found = found.setting(name, value)
    machines = typed.get("num_machines")
    if found.nnodes == "1" and machines is None:
        found = replace(found, nnodes="").retelling(
            lambda _, told: OF_HOSTS if told == "--nnodes 1" else told
        )
    return found if found.ranks else replace(found, per_host="gpu")


def _only_one_kind(found: Pasted, typed: Collection[str]) -> Pasted:
    """Refuse kinds of training that exclude each other, as accelerate does; those of its file give way to ``--cpu``."""
    kinds = [name for name in ("cpu", "multi_gpu", "use_fsdp", "use_deepspeed") if name in typed]
    if len(kinds) > 1:
        both = " and ".join(f"--{name}" for name in kinds)
        raise UsageError(f"accelerate: {both} exclude each other", "give one of them")
    if "cpu" in kinds:
        left = (each for each in found.settings if each[0] not in DISTRIBUTED.values())
        env = (pair for pair in found.env if pair[0] != DEEPSPEED_FIELDS)
        return replace(found, settings=tuple(left), env=tuple(env))
    return found


def _see_workdir(found: Pasted) -> Pasted:
    """Return ``found`` with modules of the folder that the ranks start in, which DeepSpeed has them import."""
    before = [value for name, value in found.env if name == "PYTHONPATH"]
    value = ":".join((".", *before[-1:]))
    return found.changing("(the folder that it starts in)", "PYTHONPATH", value)


def _read_config(found: Pasted, accelerate: Starter, path: Path, typed: set[str]) -> Pasted:
    kinds = {"multi_gpu", "use_fsdp", "use_deepspeed", "use_parallelism_config"}
    fields: list[str] = []
    precise = False
    for line, group, name, value in _config_values(path):
        place = f"{path.name}:{line} {name}"
        option = accelerate.find(name)
        said = value.lower() not in NOTHING_SAID
        if not said and (option is None or option.kind != ON):
            continue
        if option is None or name == "config_file":
            raise ConfigError(
                f"{path}:{line}: accelerate's {name} is not known here",
                suggest(name, accelerate.options, "leave the key out"),
            )
        fields += [name] if group == "deepspeed_config" else []
        precise = precise or (name == "mixed_precision" and name not in typed)
        if name in typed or (name == "distributed_type" and kinds & typed):
            continue
        if group == "parallelism_config":
            found = _turn_on(found, "use_parallelism_config", f"{path.name}:{line}")
        if name in ("compute_environment", "distributed_type"):
            found = _choose_kind(found, place, name, value)
        elif option.kind == ON:
            shown = f"{place} {value}"
            found = replace(found, settings=(*found.settings, (name, value, shown)))
        elif (name, value) != ("num_processes", "-1"):
            found = apply(found, accelerate, Given(option, (place, value), place, (value,)))
    if any(name == "use_deepspeed" for name, _, _ in found.settings):
        fields += ["mixed_precision"] * precise
        found = found.setting(DEEPSPEED_FIELDS, ",".join(fields).lower())
    return found


def _choose_kind(found: Pasted, place: str, name: str, value: str) -> Pasted:
    if name == "distributed_type" and value in DISTRIBUTED:
        return _turn_on(found, DISTRIBUTED[value], place)
    known = value == "LOCAL_MACHINE" if name == "compute_environment" else PLAIN.fullmatch(value)
    if not known:
        raise ConfigError(
            f"{place}: {value} is not started by distconsole", "start it by accelerate itself"
        )
    return found.telling(f"{place} {value}", "nothing: the number of ranks says it")


def _turn_on(found: Pasted, name: str, place: str) -> Pasted:
    return replace(found, settings=(*found.settings, (name, "", place)))


def _set_groups(found: Pasted, accelerate: Starter) -> Pasted:
    """Return ``found`` with the variables of each enabled kind of training, and notes on the others."""
    given = {name: (value, shown) for name, value, shown in found.settings}
    for group, variables in accelerate.on.items():
        defaults = []
        for variable, (name, default) in variables.items():
            value, shown = given.get(name, (default, ""))
            value = value.lower() if value in ("True", "False") else value
            if group not in given:
                found = found.telling(shown, f"nothing without {group}") if shown else found
            elif value.lower() not in ("", "null"):
                found = found.setting(variable, value)
                defaults += [] if shown else [f"{variable}={value}"]
                found = found.telling(shown, f"--env {variable}={value}") if shown else found
        if defaults:
            found = found.telling(f"{group} alone", "--env " + " ".join(defaults))
    return replace(found, settings=())


def _config_values(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield line, group, key and value of accelerate's file, YAML or JSON; a group is one key's own table.

    Raises ConfigError if it cannot be read, or has more than keys, values and one level of tables.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than a configuration can be")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        cure = "give the path of accelerate's file on this machine, which is read here"
        raise ConfigError(f"--config_file {path} cannot be read: {why}", cure) from None
    if path.suffix != ".json":
        yield from _yaml_values(path, text)
        return
    try:
        told = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", "is it accelerate's configuration?") from None
    for key, value in (told if isinstance(told, dict) else {}).items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for name, each in inner:
            said = each if isinstance(each, str) else json.dumps(each)
            yield (1, key if name else "", _full_name(key, name) if name else key, said)


def _yaml_values(path: Path, text: str) -> Iterator[tuple[int, str, str, str]]:
    group = ""
    for number, line in enumerate(text.splitlines(), start=1):
        bare = re.sub(r"(^|\s)#.*", "", line).rstrip()
        if not bare or bare == "---":
            continue
        found = re.fullmatch(r"(\s*)([A-Za-z0-9_]+):(?:\s+(.*))?", bare)
        value = (found[3] or "").strip() if found else ""
        if found is None or re.match(r"[&*|>!]|[\[{].*\S.*[\]}]$", value):
            raise ConfigError(
                f"{path}:{number}: more than KEY: VALUE", "accelerate config writes such a file"
            )
        value = value[1:-1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else value
        group = group if found[1] else found[2]
        yield (
            number,
            group if found[1] else "",
            _full_name(group, found[2]) if found[1] else group,
            value,
        )


def _full_name(group: str, name: str) -> str:
    prefix = PREFIXES.get(group, "")
    return name if name.startswith(prefix) else f"{prefix}{name}"


def finish_deepspeed(found: Pasted, given: list[Given]) -> Pasted:
    """Return ``found`` with the hosts that are left of the hostfile, and DeepSpeed's own file of variables.

    Raises UsageError for hosts or GPUs that cannot be had so; ConfigError for a file that cannot be read.
    """
    passes = None if any(each.name == "no_local_rank" for each in given) else PassArgs.TORCH_LAUNCH
    found = replace(found, pass_args=passes)
    if passes:
        found = found.telling("(without --no_local_rank)", "--pass-args torch-launch")
    found = _see_workdir(found)
    for folder in (Path.home(), Path()):
        found = _read_env(found, folder / os.environ.get("DS_ENV_FILE", DEEPSPEED_ENV))
    if not found.hostfile and Path(DEEPSPEED_HOSTS).is_file():
        found = replace(found, hostfile=DEEPSPEED_HOSTS)
    found = choose_hosts(found)
    return found if found.per_host else replace(found, per_host="gpu")


def _read_env(found: Pasted, path: Path) -> Pasted:
    if not path.is_file():
        return found
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
        name, equals, value = line.strip().partition("=")
        if name and not equals:
            raise ConfigError(f"{path}:{number}: not NAME=value", "one variable a line")
        if name:
            found = export(found, f"{path}:{number}", f"{name}={value}")
    return found


def choose_hosts(found: Pasted) -> Pasted:
    """Return ``found`` with the hosts and GPUs that ``--include``, ``--exclude`` and the numbers leave."""
    if not (found.include or found.exclude or found.nodes or (found.hostfile and found.per_host)):
        return found
    if found.include and found.exclude:
        raise UsageError(
            "deepspeed: --include and --exclude exclude each other", "give one of them"
        )
    pool = read_hostfile(expand_home(found.hostfile)) if found.hostfile else []
    if not pool and found.nodes and not found.include:
        return _tell(replace(found, nnodes=str(found.nodes)), f"--nnodes {found.nodes}")
    hosts, devices = _filter_hosts(found, pool or [NamedHost("localhost")])
    hosts = hosts[: found.nodes]
    if found.per_host not in ("", "gpu"):
        hosts = [replace(host, slots=int(found.per_host)) for host in hosts]
    if any(devices.values()):
        found = _set_devices(found, [devices.get(host.name, []) for host in hosts])
    names = "" if not pool else ",".join(map(host_text, hosts))
    if not pool and (slots := hosts[0].slots):
        found = replace(found, per_host=str(slots))
    visible = dict(found.env).get("CUDA_VISIBLE_DEVICES", "") if any(devices.values()) else ""
    became = [f"--hosts {names}" if names else f"--nproc {found.per_host}"]
    became += [f"--env CUDA_VISIBLE_DEVICES={visible}"] * bool(visible)
    found = _tell(found, ", ".join(became))
    return replace(found, hosts=names, hostfile="" if pool else found.hostfile)


def _tell(found: Pasted, became: str) -> Pasted:
    """Return ``found`` with the effect of DeepSpeed's options of hosts together, noted at each of them."""
    vague = {becomes(meaning) for meaning in ("include", "exclude")}

    def becomes_now(typed: str, told: str) -> str:
        word = typed.partition("=")[0].partition(" ")[0].lstrip("-").replace("-", "_")
        return became if told in vague or word in OF_HOSTS_NAMES else told

    return found.retelling(becomes_now)


def _filter_hosts(
    found: Pasted, pool: list[NamedHost]
) -> tuple[list[NamedHost], dict[str, list[int]]]:
    """Return the remaining hosts, with as many slots as they have GPUs left; and the GPUs, if they are named."""
    option = "--include" if found.include else "--exclude"
    wanted = _read_filter(option, found.include or found.exclude, {host.name for host in pool})
    left: list[NamedHost] = []
    devices: dict[str, list[int]] = {}
    for host in pool:
        named = wanted.get(host.name)
        if found.include and named is None:
            continue
        if named and found.exclude:
            if host.slots is None:
                raise UsageError(
                    f"deepspeed --exclude: how many GPUs {host.name} has is not known here",
                    f"--include {host.name}:0,1 names those to take",
                )
            named = [each for each in range(host.slots) if each not in named]
        if found.exclude and named == []:
            continue
        if named:
            devices[host.name] = named
            host = replace(host, slots=len(named))
        left.append(host)
    if not left:
        raise UsageError(f"deepspeed {option} leaves no host", "name those to take")
    return left, devices


def _read_filter(option: str, text: str, known: set[str]) -> dict[str, list[int]]:
    wanted: dict[str, list[int]] = {}
    for part in text.split("@") if text else []:
        match = re.fullmatch(r"([^:]+)(?::(\d+(?:,\d+)*))?", part)
        if match is None or match[1] not in known:
            there = f"the hosts are: {', '.join(sorted(known))}"
            raise UsageError(
                f"deepspeed {option} {part}: no such host",
                suggest(match[1] if match else "", known, there),
            )
        wanted.setdefault(match[1], []).extend(
            sorted({int(each) for each in (match[2] or "").split(",") if each})
        )
    return wanted


def _set_devices(found: Pasted, each: list[list[int]]) -> Pasted:
    plain = all(devices == list(range(len(devices))) for devices in each)
    if any(devices != each[0] for devices in each) and plain:
        return found
    if any(devices != each[0] for devices in each):
        raise UsageError(
            "deepspeed: other GPUs on each host have no equivalent",
            "a run for each, or the same GPUs on all: --include host1:0,1@host2:0,1",
        )
    return found.setting("CUDA_VISIBLE_DEVICES", ",".join(map(str, each[0])))


def finish_fabric(found: Pasted, _given: list[Given]) -> Pasted:
    """Return ``found`` with the defaults of ``fabric run``: one rank, one host."""
    fabric = starter_of("fabric")
    nodes, ranks = found.nnodes or "1", found.per_host or "1"
    names = {name for name, _ in found.env}
    if ("LT_STRATEGY", "dp") in found.env:
        ranks = "1"
        found = found.telling("(the strategy dp)", "--nproc 1: one process drives all devices")
    said = {**fabric.always, "LT_NUM_NODES": nodes, "LT_DEVICES": ranks}
    for name, value in said.items():
        found = found if name in names else found.setting(name, value)
    return replace(found, nnodes=nodes, per_host=ranks)
