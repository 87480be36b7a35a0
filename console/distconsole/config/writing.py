"""Adds keys to a ``distconsole.toml`` and leaves everything else in it as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distconsole.config.load import read_config, read_text
from distconsole.config.paths import PROJECT_FILE, replace_file
from distconsole.config.ranges import RangeError, expand
from distconsole.config.values import line_of
from distconsole.errors import ConfigError

BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class TomlEntry:
    """One key to set, such as ``nic`` of ``("hosts", "gpu01")``, and the comment behind it."""

    table: tuple[str, ...]
    key: str
    value: str
    comment: str = ""

    @property
    def place(self) -> str:
        return f"[{'.'.join(map(bare_key, self.table))}] {bare_key(self.key)}"


def add_entries(path: Path, entries: Iterable[TomlEntry]) -> list[TomlEntry]:
    """Set keys in a file, at once or not at all; return those that were not there yet.

    Content, order and comments of the file stay. It is made if it is not there.

    Raises ConfigError if the file cannot be read or written, or has one of the keys with another value; then
    nothing is written.
    """
    import tomlkit  # noqa: PLC0415 - most checks write nothing, and it takes its time
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    path = path.resolve()
    text = read_text(path) if path.exists() else ""
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    new, made = [], []
    for entry in entries:
        if _is_there(document, entry, path, text):
            continue
        made.append(_set(document, entry))
        new.append(entry)
    for table in filter(None, made):
        table.add(tomlkit.nl())
    if new:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, tomlkit.dumps(document).encode(), 0o666, check=read_config)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    return new


def _is_there(document: Mapping[str, Any], entry: TomlEntry, path: Path, text: str) -> bool:
    """Whether the file has the key with this value; raises ConfigError if it has another one."""
    tables = [entry.table]
    if entry.table[0] == "hosts" and len(entry.table) == 2:
        for name in _inside(document, ("hosts",)):
            with suppress(RangeError):
                if name != entry.table[1] and entry.table[1] in expand(name):
                    tables.append(("hosts", name))
    for table in tables:
        values = _inside(document, table)
        found = values.get(entry.key)
        if found is None:
            continue
        if str(found) == entry.value:
            return True
        line = line_of(text, table, entry.key)
        place = f"{path}:{line}" if line else str(path)
        raise ConfigError(
            f"{place}: {entry.place} is {str(found)!r} already, and proven is {entry.value!r}",
            "change it there, or take it out and check again; nothing was written",
        )
    return False


def _inside(document: Mapping[str, Any], table: tuple[str, ...]) -> Mapping[str, Any]:
    found: Any = document
    for name in table:
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}


def _set(document: Any, entry: TomlEntry) -> Any:
    import tomlkit  # noqa: PLC0415

    found, made = document, False
    for depth, name in enumerate(entry.table):
        if name not in found:
            above = depth + 1 < len(entry.table)
            found[name] = tomlkit.table(is_super_table=above)
            made = True
        found = found[name]
    value = tomlkit.string(entry.value, multiline="\n" in entry.value)
    if entry.comment and hasattr(found, "is_super_table"):
        value.comment(entry.comment)
    found[entry.key] = value
    return found if made else None


def bare_key(name: str) -> str:
    return name if BARE.fullmatch(name) else json.dumps(name)


def in_config(path: Sequence[str], value: str) -> str:
    """Return where to put a key and the line for it, whole by itself: ``hosts.gpu1.nic = "eth1"``."""
    key = ".".join(map(bare_key, path))
    return f"at the top of {PROJECT_FILE}: {key} = {json.dumps(value, ensure_ascii=False)}"


def network_of_hosts(names: Iterable[str]) -> str:
    """Return the line that fixes the address of the first of these hosts, to be filled in."""
    some = next(iter(names), "HOST")
    return f"{in_config(('hosts', some, 'address'), 'IP')}   (or its nic, an interface)"
