"""Which folders lie on a network filesystem that does not answer. Values only; fs.mounts tells them."""

from __future__ import annotations

from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import OsFacts

TOLD = "on a filesystem that does not answer: fs.mounts tells which"


def stuck_points(view: View) -> dict[str, tuple[str, ...]]:
    """Return by host where network filesystems that do not answer are mounted."""
    return {
        name: tuple(mount.point for mount in facts.network_mounts if mount.error)
        for name, facts in view.of(OsFacts).items()
    }


def lies_below(path: str, points: tuple[str, ...]) -> bool:
    """Whether ``path`` is on one of the mounts at ``points``."""
    return any(path == point or path.startswith(f"{point.rstrip('/')}/") for point in points)


def is_needed(point: str, launch: Launch | None) -> bool:
    """Whether the launch touches what is mounted at ``point``."""
    if launch is None:
        return False
    paths = (launch.workdir, launch.root, *(each.path for each in launch.paths))
    return any(lies_below(path, (point,)) for path in paths)
