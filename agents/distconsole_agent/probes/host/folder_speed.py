"""Folders that a training reads and writes: whether a file can be made there, and how fast they are.

It writes only files of its own that have no name or lose it at once, and only where it is asked to.
"""

from __future__ import annotations

from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.environment import home
from distconsole_agent.probes.errors import bad_arguments, failed
from distconsole_agent.probes.host.machine import temporary
from distconsole_agent.probes.scripts import ask_script

MAX_FOLDERS = 24
MAX_BYTES = 256 << 20


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"folders": {path: {"touch", "write", "small", "look", "read"}}}``.

    What was not asked is missing; a folder that hangs has ``late``. Rates are bytes and seconds.

    Args:
        args: ``folders``: objects of ``path``, ``touch`` (make a file and remove it),
            ``write_bytes`` (of a file without a name, and some small ones), ``read_bytes`` (of what
            is there), and ``seconds`` for each of these; ``usual``: also make a file in some of
            ``temporary`` and ``home``, wherever those are.
    """
    asked = [_read_folder(item) for item in read.items(args, "folders")[:MAX_FOLDERS]]
    places = {"temporary": temporary, "home": home}
    usual = [places[name]() for name in read.texts(args, "usual") if name in places]
    named = {item["path"] for item in asked}
    asked += [_read_folder({"path": path, "touch": True}) for path in usual if path not in named]
    parts, ended = ask_script("inspect_folders", {"folders": asked}, seconds)
    if ended.exit_code and not ended.out:
        code, words = ended.exit_code, ended.last_words
        raise failed(f"asking the folders ended with code {code}: {words}")
    return {"folders": {item["path"]: parts.get(item["path"], {"late": True}) for item in asked}}


def _read_folder(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise bad_arguments("folders is not a list of objects")
    return {
        "path": read.text(item, "path"),
        "touch": item.get("touch") is True,
        "write_bytes": read.whole(item, "write_bytes", 0, 0, MAX_BYTES),
        "read_bytes": read.whole(item, "read_bytes", 0, 0, MAX_BYTES),
        "seconds": read.number(item, "seconds", 0.5, 0.05, 30.0),
    }
