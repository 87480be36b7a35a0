"""What a host is asked about the launch that is checked. It asks nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distconsole.checks.target import Launch


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
