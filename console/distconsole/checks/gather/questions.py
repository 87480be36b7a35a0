"""What a host is asked about the launch that is checked, and of the other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distconsole.checks.engine.target import Launch
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.rpc.link import NodeLink

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
    """Return the arguments of the probe ``script``; ``shell`` says how the ranks' interpreter is started."""
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


ALL_PAIRS = 8
"""With more hosts each tries the next one only."""

MOST_TRIED = 64


def targets(links: Mapping[HostName, NodeLink], host: Host) -> list[dict[str, Any]]:
    """Return the targets for the probe ``between`` on ``host``, one of ``links``; the first tries everybody."""
    names = list(links)
    others = [name for name in names if name != host.name]
    if len(names) > ALL_PAIRS and host.name != names[0]:
        others = [names[(names.index(host.name) + 1) % len(names)]]
    found = []
    for name in others[:MOST_TRIED]:
        hello = links[name].hello
        addresses = [each.address for each in hello.addresses if not each.loopback][:1]
        known = dict.fromkeys((str(name), hello.hostname, *addresses))
        found.append({"name": str(name), "as": list(known)})
    return found
