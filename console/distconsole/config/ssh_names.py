"""Which SSH configuration is read, and the names in it, for completion alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from glob import glob
from pathlib import Path

from distconsole.config.paths import expand_home

SSH_CONFIG_VARIABLE = "DISTCONSOLE_SSH_CONFIG"
MAX_BYTES = 1 << 20
MAX_NAMES = 2000
_HOST = re.compile(r"^\s*host(?:\s+|\s*=\s*)(.+?)\s*$", re.IGNORECASE)
_INCLUDE = re.compile(r"^\s*include(?:\s+|\s*=\s*)(.+?)\s*$", re.IGNORECASE)
_ABOUT = re.compile(
    r"^\s*(host|match|hostname|user|proxyjump|proxycommand)(?:\s+|\s*=\s*)(.+?)\s*$", re.IGNORECASE
)
_GIT_SERVER = re.compile(r"(?:[a-z]+\.)?(?:github|gitlab|bitbucket)\.", re.IGNORECASE)


def ssh_config_file(
    given: str | None, configured: Path | None, environ: Mapping[str, str]
) -> Path | None:
    """Return the file that is read in place of ssh's own, which None stands for."""
    named = given or environ.get(SSH_CONFIG_VARIABLE)
    return expand_home(named).absolute() if named else configured


def own_ssh_config() -> Path:
    return Path.home() / ".ssh" / "config"


def ssh_names(path: Path) -> list[str]:
    """Return the aliases in a file and in those that it includes, without patterns, at most ``MAX_NAMES``."""
    found: dict[str, None] = {}
    for line in _lines(path, deep=True):
        match = _HOST.match(line)
        for name in _words(match[1]) if match else ():
            if not set(name) & set("*?!\"' ") and len(found) < MAX_NAMES:
                found[name] = None
    return list(found)


def ssh_machines(path: Path) -> tuple[list[str], list[str]]:
    """Return the aliases in a file and in those that it includes, and apart the ones that others jump through.

    Git servers are in neither. Nothing that the file names is run, and each line is read once.
    """
    names, block = ssh_names(path), list[str]()
    through, git = set[str](), {name for name in names if _GIT_SERVER.match(name)}
    for line in _lines(path, deep=True):
        match = _ABOUT.match(line)
        keyword, words = (match[1].lower(), _words(match[2])) if match else ("", [])
        value = " ".join(words)
        if keyword in ("host", "match"):
            block = words if keyword == "host" else []
        elif keyword.startswith("proxy"):
            hops = re.split(r"[\s,]+", value.replace("ssh://", ""))
            through.update(hop.rpartition("@")[2].partition(":")[0] for hop in hops)
        elif value == "git" or (keyword == "hostname" and _GIT_SERVER.match(value)):
            git.update(block)
    left = [name for name in names if name not in through | git]
    return left, [name for name in names if name in through]


def _lines(path: Path, *, deep: bool) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_BYTES)
    except OSError:
        return
    for line in text.splitlines():
        included = _INCLUDE.match(line) if deep else None
        yield line
        for pattern in _words(included[1]) if included else ():
            place = expand_home(pattern.removeprefix("~/.ssh/"))
            found = glob(str(place), root_dir=path.parent)  # noqa: PTH207 - Path's refuses a whole path
            for each in sorted(found):
                yield from _lines(path.parent / each, deep=False)


def _words(text: str) -> list[str]:
    """Return the words behind a keyword without their quotes; a comment is none of them."""
    text = text.partition(" #")[0]
    with suppress(ValueError):
        return shlex.split(text)
    return text.split()
