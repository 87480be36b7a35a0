"""What a host is asked about the launch that is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distconsole.checks.engine.target import Launch
from distconsole.model.cluster import Host

NODE_FOLDERS = "/tmp"  # noqa: S108 - the name of a fact
"""Where node folders are that are not asked for elsewhere."""


def watched_folders(launch: Launch | None, host: Host) -> list[str]:
    """Return the folders whose room and mount are of interest beside the usual ones."""
    own = [host.node_dir or NODE_FOLDERS]
    return own if launch is None or launch.brought else [*own, launch.workdir]


def touch_question(launch: Launch | None) -> dict[str, Any]:
    """Return the arguments of the probe ``folders``: where a file is made and removed."""
    if launch is None:
        return {"folders": [], "usual": ["temporary", "home"]}
    outputs = [each.path for each in launch.paths if each.output]
    work = [] if launch.brought else [launch.workdir]
    paths = dict.fromkeys([*work, *outputs])
    return {
        "folders": [{"path": path, "touch": True} for path in paths],
        "usual": ["temporary"],
    }


def script_question(launch: Launch, shell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the probe ``script``.

    Args:
        launch: What is to be launched.
        shell: How the interpreter of the ranks is started there (``gather.interpreter``).
    """
    return {
        **shell,
        "path": launch.path,
        "module": launch.module,
        "root": launch.root,
        "workdir": launch.workdir,
        "paths": [each.path for each in launch.paths],
        "address": launch.address,
        "sources": None if launch.sources is None else dict(launch.sources),
    }
