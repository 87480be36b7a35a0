"""``[keys]`` and ``[aliases]`` of ``distconsole.toml``, and aliases that the prompt keeps."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distconsole.config.paths import config_dir, replace_file
from distconsole.errors import ConfigError

MAX_LINE_CHARS = 8192
MAX_STARTUP_LINES = 200
ALIASES_HEAD = "# What the verb 'alias' keeps: NAME = LINE\n"

Error = Callable[[tuple[str, ...], str, str, str], ConfigError]
"""Makes the error of a key: its table, its name, what is wrong, what to do."""
Place = Callable[[tuple[str, ...], str], str]
"""Says where a key of a table stands: file and line."""


@dataclass(frozen=True, slots=True)
class KeySetting:
    """One key of ``[keys]``.

    Attributes:
        line: What it types; empty takes away what the key does.
    """

    key: str
    line: str
    label: str = ""
    view: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Alias:
    """A name and the line that it stands for."""

    name: str
    line: str
    place: str = ""


def read_keys(table: Any, error: Error, place: Place) -> tuple[KeySetting, ...]:
    """Return ``[keys]`` and ``[keys.VIEW]``.

    Raises ConfigError if a value is neither a text nor a table of them.
    """
    found: list[KeySetting] = []
    for name, value in _items(table, ("keys",), error):
        if isinstance(value, dict) and "line" not in value:
            for key, inner in value.items():
                found.append(_key(key, inner, name, ("keys", name), error, place))
        else:
            found.append(_key(name, value, "", ("keys",), error, place))
    return tuple(found)


def read_aliases(table: Any, error: Error, place: Place) -> dict[str, Alias]:
    """Return ``[aliases]``, by name; raises ConfigError if a value is no text."""
    found = {}
    for name, value in _items(table, ("aliases",), error):
        if not _is_line(value) or not value.strip():
            wanted = "a line of the prompt, such as 'check --level full'"
            raise error(("aliases",), name, f"'{name}' must be {wanted}, not {value!r}", "")
        found[name] = Alias(name, value.strip(), place(("aliases",), name))
    return found


def _items(table: Any, where: tuple[str, ...], error: Error) -> Iterator[tuple[str, Any]]:
    if not isinstance(table, dict):
        raise error((), where[-1], f"'{where[-1]}' must be a table: [{where[-1]}]", "")
    yield from table.items()


def _key(
    key: str, value: Any, view: str, where: tuple[str, ...], error: Error, place: Place
) -> KeySetting:
    label = ""
    if isinstance(value, dict):
        unknown = set(value) - {"line", "label"}
        if unknown:
            name = min(unknown)
            raise error(
                (*where, key),
                name,
                f"unknown key '{name}' of the key '{key}'",
                "known are: label, line",
            )
        value, label = value.get("line"), value.get("label", "")
    if not _is_line(value) or not _is_line(label):
        wanted = "a line of the prompt, such as 'check', or a table of line and label"
        raise error(where, key, f"'{key}' must be {wanted}, not {value!r}", "")
    return KeySetting(key, value, label, view, place(where, key))


def _is_line(value: Any) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= MAX_LINE_CHARS
        and (not value or value.isprintable())
    )


def startup_file() -> Path:
    return config_dir() / "startup"


def startup_lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines of a start-up file with their numbers; a file that is not there has none.

    Raises ConfigError if it cannot be read, or has too many.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if len(lines) > MAX_STARTUP_LINES:
        raise ConfigError(
            f"{path}: {len(lines)} lines, and {MAX_STARTUP_LINES} are the most", "leave some out"
        )
    return lines


def aliases_file() -> Path:
    return config_dir() / "aliases"


def read_aliases_file(path: Path) -> dict[str, Alias]:
    """Return the aliases of a file of ``NAME = LINE``, by name; what is no such line is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, rest = map(str.strip, line.partition("="))
        if equals and not line.startswith("#") and _is_line(rest) and rest:
            found[name] = Alias(name, rest, f"{path}:{number}")
    return found


def keep_alias(path: Path, name: str, line: str) -> None:
    """Keep one alias beside the others; an empty ``line`` forgets it.

    Raises OSError if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        aliases = {each: kept.line for each, kept in read_aliases_file(path).items()}
        aliases.pop(name, None)
        if line:
            aliases[name] = line
        lines = [f"{each} = {kept}\n" for each, kept in sorted(aliases.items())]
        replace_file(path, "".join((ALIASES_HEAD, *lines)).encode())
