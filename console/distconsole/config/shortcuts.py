"""Keys and aliases, the start-up file, and aliases that the prompt keeps."""

from __future__ import annotations

import fcntl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distconsole.config.paths import config_dir, replace_file
from distconsole.errors import ConfigError

MAX_LINE_CHARS = 8192
"""A longer line is not kept, and the prompt takes none."""

MAX_STARTUP_LINES = 200
ALIASES_HEAD = "# What the verb 'alias' keeps: NAME = LINE\n"


@dataclass(frozen=True, slots=True)
class KeySetting:
    """One key of ``[keys]`` and its line; an empty line removes the key's action."""

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


def may_be_line(value: object) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= MAX_LINE_CHARS
        and (not value or value.isprintable())
    )


def startup_lines(path: Path) -> list[tuple[int, str]]:
    """Return a start-up file's lines by number, if it is there; raises ConfigError if it is unreadable."""
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
    """Return the aliases of a file of ``NAME = LINE``, by name; other lines are left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, rest = map(str.strip, line.partition("="))
        if equals and not line.startswith("#") and may_be_line(rest) and rest:
            found[name] = Alias(name, rest, f"{path}:{number}")
    return found


def keep_alias(path: Path, name: str, line: str) -> None:
    """Keep one alias beside the others, an empty ``line`` forgets it; raises OSError if that fails."""
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
