"""Which filesystem a folder lies on, from the kernel's table of mounts."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from distconsole_agent.system.procfs import read_head

MAX_TABLE_BYTES = 1 << 20
MAX_NETWORK_MOUNTS = 32

_NETWORK = re.compile(
    r"nfs4?|lustre|gpfs|ceph|beegfs|glusterfs|cifs|smb3|afs|wekafs|panfs|pvfs2|orangefs|9p|virtiofs"
    r"|fuse\.(?:sshfs|juicefs|s3fs|glusterfs|ceph|gcsfuse|rclone|beegfs|mount-s3|weka|dfuse|seaweedfs)"
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of mountinfo (proc(5)): mount point, kind, source, options."""

    point: str
    kind: str
    source: str
    options: str

    @property
    def network(self) -> bool:
        """Whether other machines may have the same files, and its server may be away."""
        return _NETWORK.fullmatch(self.kind) is not None

    def told(self) -> dict[str, object]:
        return {
            "point": self.point[:512],
            "kind": self.kind[:64],
            "source": self.source[:512],
            "options": self.options[:256],
            "network": self.network,
        }


def read_mounts(path: str = "/proc/self/mountinfo") -> list[Mount]:
    """Return all mounts in their order; a later one at the same place hides the one before."""
    found = []
    for line in read_head(path, MAX_TABLE_BYTES).decode("utf-8", "replace").splitlines():
        head, separator, tail = line.partition(" - ")
        fields, rest = head.split(), tail.split(" ")
        if separator and len(fields) >= 6 and len(rest) >= 2:
            found.append(Mount(_plain(fields[4]), rest[0], _plain(rest[1]), fields[5]))
    return found


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount that ``path``, free of links, lies on."""
    above = [each for each in mounts if f"{path}/".startswith(f"{each.point.rstrip('/')}/")]
    return max(reversed(above), key=lambda mount: len(mount.point), default=None)


def add_mount(path: str, facts: dict[str, object], mounts: list[Mount]) -> dict[str, object]:
    mount = mount_of(str(facts.get("real") or os.path.abspath(path)), mounts)
    return {**facts, "mount": None if mount is None else mount.told()}


def network_mounts(mounts: list[Mount]) -> list[Mount]:
    found = {mount.point: mount for mount in mounts}
    return [mount for mount in found.values() if mount.network][:MAX_NETWORK_MOUNTS]
