"""A key of the configuration as a line that a person pastes into the file. It reads and writes no file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from distconsole.config.paths import PROJECT_FILE

BARE = re.compile(r"[A-Za-z0-9_-]+")


def in_config(path: Sequence[str], value: str) -> str:
    """Return where to put a key and the line for it, whole by itself: ``hosts.gpu1.nic = "eth1"``.

    Args:
        path: The tables and the key, outermost first.
        value: A text; TOML's basic strings are written as JSON's are.
    """
    key = ".".join(part if BARE.fullmatch(part) else json.dumps(part) for part in path)
    return f"at the top of {PROJECT_FILE}: {key} = {json.dumps(value, ensure_ascii=False)}"


def network_of_hosts(names: Iterable[str]) -> str:
    """Return the line that fixes the address of the first of these hosts, to be filled in."""
    some = next(iter(names), "HOST")
    return f"{in_config(('hosts', some, 'address'), 'IP')}   (or its nic, an interface)"
