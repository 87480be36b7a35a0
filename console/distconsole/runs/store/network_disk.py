"""Whether a file lies on a disk that other machines can reach, where memory is no way to share it."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

NETWORK_FILESYSTEMS = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x01021997: "9p",
    0x65735546: "fuse",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
    0xAAD7AAEA: "panfs",
    0x6B414653: "kafs",
    0x73757245: "coda",
}
"""``f_type`` of ``statfs(2)``. FUSE is sshfs, or something local that loses nothing by it."""


def is_on_network(path: Path) -> bool:
    """Return whether other machines may have ``path`` open; False where the system does not say."""
    return filesystem_type(path) in NETWORK_FILESYSTEMS


def filesystem_type(path: Path) -> int:
    """Return ``f_type`` of the filesystem that ``path`` lies on; 0 where the system has none."""
    if not sys.platform.startswith("linux"):
        return 0
    found = (ctypes.c_long * 32)()  # ``struct statfs`` has 15 words; its first is f_type
    if ctypes.CDLL(None, use_errno=True).statfs(bytes(path), found):
        return 0
    return int(found[0]) & 0xFFFFFFFF
