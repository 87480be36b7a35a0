"""Which project's file is taken as it is, and which only after a person said so (``distconsole trust``).

A file of somebody else, or one that everybody may write, is taken after that alone; of one's own file,
the keys that can execute something. What was trusted is the file as it was then: changed, it asks again.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from distconsole.config.notify import NOTIFY_KEYS
from distconsole.config.paths import config_dir, expand_home, replace_file
from distconsole.config.schema import CLUSTER_KEYS, HOST_KEYS, TOP_KEYS, TRUSTED_TABLES, VERB_KEYS
from distconsole.config.ssh_names import own_ssh_config
from distconsole.errors import ConfigError
from distconsole.model.options import Option, TrustNeed

KeyPath = tuple[str, ...]
"""A key with its tables, as they are written in the file."""


def why_foreign(path: Path) -> str:
    """Return why a file is not only its reader's to write; nothing if it is. A folder's group is its owner's choice."""
    for each, what, into in ((path, "it", ""), (path.parent, "its folder", "into ")):
        try:
            found = each.stat()
        except OSError as error:
            return f"{what} cannot be looked at: {error.strerror}"
        if found.st_uid not in (0, os.getuid()):
            owner = f"uid {found.st_uid}"
            with suppress(KeyError):
                owner = pwd.getpwuid(found.st_uid).pw_name
            return f"{what} belongs to {owner}"
        if found.st_mode & stat.S_IWOTH:
            return f"everybody may write {into}{what}"
    return ""


def keys_to_trust(table: Mapping[str, Any]) -> list[tuple[KeyPath, TrustNeed]]:
    """Return the keys of a file that need trust, in the file's order, and the need of each."""
    return [(path, needs) for path, needs in _trust_of_keys(table) if needs is not TrustNeed.NONE]


def without(table: Mapping[str, Any], paths: list[KeyPath]) -> dict[str, Any]:
    left = dict(table)
    for first in {path[0] for path in paths}:
        inner = [path[1:] for path in paths if path[0] == first]
        if () in inner:
            del left[first]
        else:
            left[first] = without(left[first], inner)
    return left


def digest(path: Path, text: str, table: Mapping[str, Any]) -> str:
    """Return what stands for a file with the content of those that it has executed.

    The person's own ssh configuration changes as that person likes, and what files include is not looked at.
    """
    whole = hashlib.sha256(text.encode())
    for keys, needs in keys_to_trust(table):
        named: Any = reduce(getitem, keys, table)
        if needs is not TrustNeed.CONTENT or not isinstance(named, str):
            continue
        place = path.parent / expand_home(named)
        if place == own_ssh_config():
            continue
        content = bytes(32)
        # A pipe would be waited for.
        with suppress(OSError):
            if place.is_file():
                with place.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
        whole.update(content)
    return whole.hexdigest()


def is_trusted(path: Path, content: str) -> bool:
    return _read_store().get(str(path)) == content


def was_trusted(path: Path) -> bool:
    return str(path) in _read_store()


def trust(path: Path, content: str) -> None:
    """Remember that the file is trusted with this ``digest``; raises ConfigError if that fails."""
    _keep({**_read_store(), str(path): content})


def distrust(path: Path) -> bool:
    """Forget that the file is trusted, and return whether it was; raises ConfigError as ``trust``."""
    known = _read_store()
    was = known.pop(str(path), None) is not None
    if was:
        _keep(known)
    return was


def command_for(path: Path) -> str:
    return f"distconsole trust {shlex.quote(str(path.parent))}"


def trust_store() -> Path:
    return config_dir() / "trusted.json"


def _trust_of_keys(table: Mapping[str, Any]) -> Iterator[tuple[KeyPath, TrustNeed]]:
    named = {"hosts": HOST_KEYS, "clusters": CLUSTER_KEYS}
    tables = {"notify": NOTIFY_KEYS, **VERB_KEYS}
    for name, value in table.items():
        word = name.replace("-", "_")
        if word in TRUSTED_TABLES:
            yield (name,), TrustNeed.KEY
        elif word in named and isinstance(value, dict):
            for inner, settings in value.items():
                yield from _trust_of_table((name, inner), settings, named[word])
        elif word in tables and isinstance(value, dict):
            yield from _trust_of_table((name,), value, tables[word])
        elif word in TOP_KEYS:
            yield (name,), TOP_KEYS[word].trust


def _trust_of_table(
    where: KeyPath, value: object, keys: Mapping[str, Option]
) -> Iterator[tuple[KeyPath, TrustNeed]]:
    for name in value if isinstance(value, dict) else ():
        key = keys.get(name.replace("-", "_"))
        if key is not None:
            yield (*where, name), key.trust


def _read_store() -> dict[str, str]:
    """Return the trusted files, by path; empty if the store cannot be read: then trust is asked for again."""
    try:
        known = json.loads(trust_store().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _keep(known: Mapping[str, str]) -> None:
    path = trust_store()
    content = json.dumps(dict(sorted(known.items())), indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
