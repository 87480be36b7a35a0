"""Host lists and host files of the common launchers, read alike. It looks no host up.

Formats: Open MPI ``h slots=4 max_slots=8``, Horovod and DeepSpeed ``h slots=4``, MPICH and Intel MPI
``h:4``, Slurm ``h[01-04]``, Grid Engine ``h 4 queue@h UNDEFINED``, PBS and LSF a line a slot, and one host a line;
``#`` begins a comment. A list in JSON is one of names.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from distconsole.config.ranges import RangeError, expand, split_list
from distconsole.config.spelling import suggest
from distconsole.errors import ConfigError
from distconsole.model.names import may_be_user

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_SLOTS = 1024

SETTINGS = ("slots", "max_slots", "user", "port")

BEHIND_SLASH = "a port stands behind a slash"
LINE = "one host a line, such as: gpu01 slots=4"
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"[0-9]{1,9}")
_GRID_ENGINE = re.compile(r"^(\S+)[ \t]+([0-9]{1,9})[ \t]+[^\s@]+@\S+[ \t]+\S+$")
"""A host has a line for each queue that gives it slots."""
_WITH_PORT = tuple(
    re.compile(each)
    for each in (
        r"(?:ssh\s+)?-p\s*(?P<port>\d+)\s+(?P<host>[^\s:]+)",
        r"(?:ssh\s+)?(?P<host>[^\s:]+)\s+(?:-p\s*|port=)?(?P<port>\d{2,5})",
        r"(?:ssh://)?(?P<host>(?:[^\s@]+@)?\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]):(?P<port>\d{2,5})/?",
        r"(?:ssh://)?(?P<host>[^\s:/]+):(?P<port>\d{2,5})(?:[:/](?P<slots>\d{1,4}))?/?",
    )
)
"""A host and its port as other programs, and people, write them."""
_IGNORED = {"max_slots", "max-slots", "slots_max", "ifhn", "binding", "user_name"}
"""Keys of other launchers that say nothing to us."""


@dataclass(frozen=True, slots=True)
class NamedHost:
    """A host as a list or a file names it."""

    name: str
    user: str | None = None
    slots: int | None = None
    port: int | None = None


def read_list(text: str) -> list[NamedHost]:
    """Return the hosts of a list ``[user@]host[:slots][/port],…`` with ranges; raises RangeError."""
    return [host for part in split_list(text) for host in _read_element(part)]


def suggest_ports(text: str) -> str:
    """Return a list, or a line of a file, whose ports stand as other programs write them, as it is read here; empty if none does."""
    with suppress(RangeError):
        parts = split_list(text)
        meant = [_move_port(part) or part for part in parts]
        if meant != parts and read_list(",".join(meant)):
            return ",".join(meant)
    return ""


def _move_port(text: str) -> str:
    """Return ``[user@]host[:slots]/port`` for an element that means nothing here, and has a port; empty for another."""
    with suppress(RangeError):
        return text if _read_element(text) else ""
    found = next((match for each in _WITH_PORT if (match := each.fullmatch(text))), None)
    if found is None:
        return ""
    parts = found.groupdict()
    name = re.sub(
        r"\[((?=[^\]]*[A-Za-z.])[\w.-]+)\]", r"\1", parts["host"]
    )  # [gpu1], as in known_hosts
    slots = f":{parts['slots']}" if parts.get("slots") else ""
    return f"{name}{slots}/{parts['port']}"


def names_in(lists: Iterable[str]) -> list[str]:
    """Return each name in lists as ``read_list`` has them, once; a list that means nothing is left out."""
    found: dict[str, None] = {}
    for each in lists:
        with suppress(RangeError):
            found |= dict.fromkeys(host.name for host in read_list(each))
    return list(found)


def read_hostfile(path: Path) -> list[NamedHost]:
    """Return a file's hosts in order; raises ConfigError if it, or a line, cannot be read or repeats."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than a list of hosts can be")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", "--hostfile names a list of hosts"
        ) from None
    hosts: dict[str, NamedHost] = {}
    lines: dict[str, int] = {}
    slots: Counter[str] = Counter()
    repeats = False
    text = text.lstrip("\ufeff")
    for number, line in enumerate(read_names(text) or text.splitlines(), 1):
        meant = line.split("#", 1)[0].strip()
        try:
            named = _read_line(meant)
        except RangeError as error:
            raise ConfigError(f"{path}:{number}: {error}", _meant_line(path, line)) from None
        for host in named:
            repeats |= host.name in lines
            adds = _GRID_ENGINE.fullmatch(meant) or (
                not host.slots and host == hosts.get(host.name)
            )
            if host.name in lines and not adds:
                raise ConfigError(
                    f"{path}:{number}: {host.name} is there already, in line {lines[host.name]}",
                    f"for more ranks on it: {host.name} slots=N",
                )
            lines.setdefault(host.name, number)
            hosts[host.name] = host
            slots[host.name] += host.slots or 1
    if not hosts:
        raise ConfigError(f"{path}: names no host", LINE)
    return [
        replace(host, slots=slots[name]) if repeats or host.slots else host
        for name, host in hosts.items()
    ]


def read_names(text: str) -> list[str]:
    """Return the names of a list in JSON; empty if it is none."""
    with suppress(ValueError, RecursionError):
        names = json.loads(text)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    return []


def _meant_line(path: Path, line: str) -> str:
    """Return the cure for a line of a file that means nothing."""
    if re.fullmatch(r"\[[A-Za-z_][\w.:-]*\]|.*\sansible_\w+=.*", line.strip()):
        names = (f"hosts{number or ''}.txt" for number in count())
        unused = next(name for name in names if not Path(name).exists())
        return (
            "an inventory of Ansible is not read; its hosts, one a line: "
            f"ansible all -i {shlex.quote(str(path))} --list-hosts | tail -n +2 > {unused}"
        )
    meant = suggest_ports(re.sub(r"\s*#.*|\s+(max[_-])?slots\s*=.*", "", line).strip())
    return f"{BEHIND_SLASH}: {meant}" if meant else LINE


def _read_line(line: str) -> list[NamedHost]:
    if not line:
        return []
    line = _GRID_ENGINE.sub(r"\1 slots=\2", line)
    words = split_list(re.sub(r"\s*=\s*", "=", line), " \t")
    names = [word for word in words if "=" not in word]
    if words[: len(names)] != names or len(names) != 1:
        raise RangeError(f"'{line}' is not a host with settings such as slots=4")
    hosts = read_list(names[0])
    for word in words[1:]:
        key, _, value = word.partition("=")
        hosts = [_add_setting(host, key.lower(), value) for host in hosts]
    return hosts


def _add_setting(host: NamedHost, key: str, value: str) -> NamedHost:
    match key:
        case "slots" | "cpu" | "cpus" | "count":
            if host.slots is not None:
                both = f"{host.slots} and {value} (a port is written port=N)"
                raise RangeError(f"the slots of {host.name} are given twice: {both}")
            return replace(host, slots=_slots(value))
        case "user" | "username":
            if not may_be_user(value):
                raise RangeError(f"'{value}' is not a user")
            return replace(host, user=value)
        case "port":
            return replace(host, port=_port(value))
        case _ if key in _IGNORED:
            return host
        case _:
            meant = suggest(key, SETTINGS, f"known: {', '.join(SETTINGS)}")
            raise RangeError(f"unknown setting '{key}' ({meant})")


def _read_element(text: str) -> list[NamedHost]:
    if text.startswith("ssh://"):
        return _read_element(re.sub(r":(\d+)$", r"/\1", text[6:].rstrip("/")))
    user, at, rest = text.rpartition("@")
    rest, slash, port = rest.partition("/")
    port_of = _port(port) if slash else None
    if at and not _NAME.fullmatch(user):
        raise RangeError(f"'{user}' in '{text}' is not a user")
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", rest)
    if bracketed and bracketed[1].count(":") > 1:
        names, slots = [bracketed[1]], bracketed[2]
    elif rest.count(":") > 1:
        names, slots = [rest], None
    else:
        name, colon, count = rest.partition(":")
        names, slots = expand(name), count if colon else None
    for name in names:
        if not (_NAME.fullmatch(name) or _is_ipv6(name)):
            raise RangeError(f"'{name}' in '{text}' is not a host")
    count_of = None if slots is None else _slots(slots)
    return [NamedHost(name, user or None, count_of, port_of) for name in names]


def host_text(host: NamedHost) -> str:
    """Return ``host`` as ``read_list`` reads it."""
    slots = f":{host.slots}" if host.slots else ""
    name = f"[{host.name}]" if ":" in host.name and slots else host.name
    port = f"/{host.port}" if host.port else ""
    return f"{f'{host.user}@' if host.user else ''}{name}{slots}{port}"


def _is_ipv6(text: str) -> bool:
    address, percent, zone = text.partition("%")
    with suppress(ValueError):
        return bool(ipaddress.IPv6Address(address)) and bool(_NAME.fullmatch(zone)) >= bool(
            percent
        )
    return False


def _number(text: str, most: int, what: str) -> int:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
        raise RangeError(f"'{text}' is not {what}")
    return int(text)


_port = partial(_number, most=65535, what="a port")
_slots = partial(_number, most=MAX_SLOTS, what=f"a number of slots (1 to {MAX_SLOTS})")
