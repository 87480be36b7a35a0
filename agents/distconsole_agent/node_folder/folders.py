"""Paths on a node, and checks of the folders that must be private."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

from distconsole_agent.contract.limits import MIN_FREE_BYTES, MIN_RING_ROOM_BYTES
from distconsole_agent.contract.refusal import Refusal, storage
from distconsole_agent.server.joining import this_host
from distconsole_agent.system.sha256 import sha256

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - rings belong into memory; the folder below is ours, 0700
TEMPORARY = "/tmp"  # noqa: S108 - as above


class Program(NamedTuple):
    """The command that starts this program, without its verb; its zipapp, and the zipapp's hash as ``tag`` (or ``dev``)."""

    argv: tuple[str, ...]
    tag: str
    archive: str | None


def this_program() -> Program:
    """Return how this program runs: ``agent-<sha16>.pyz`` or ``python -m distconsole_agent``.

    The package itself may have been loaded from the compiled file (``compiled``).
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    archive = getattr(spec.loader, "archive", None) if spec is not None else None
    if archive is None:
        return Program((sys.executable, "-I", "-m", "distconsole_agent"), "dev", None)
    archive = os.path.abspath(archive)
    name = os.path.basename(archive)
    tag = name[len("agent-") : -len(".pyz")] if name.startswith("agent-") else ""
    if not (name.endswith(".pyz") and tag.isalnum() and len(tag) <= 64):
        tag = "unnamed"
    return Program((sys.executable, "-I", archive), tag, archive)


class NodeFolders(NamedTuple):
    node_dir: str
    tag: str

    @property
    def socket(self) -> str:
        return os.path.join(self.node_dir, f"agent-{self.tag}.sock")

    @property
    def lock(self) -> str:
        """Held by the agent as long as it lives."""
        return os.path.join(self.node_dir, f"agent-{self.tag}.lock")

    @property
    def log(self) -> str:
        return os.path.join(self.node_dir, f"agent-{self.tag}.log")

    @property
    def runs(self) -> str:
        return os.path.join(self.node_dir, "runs")

    def run(self, run: str) -> str:
        return os.path.join(self.runs, run)


def default_node_dir() -> str:
    return f"{TEMPORARY}/distconsole-{os.getuid()}"


def open_node_dir(path: str) -> str:
    """Create a missing ``path``, check that it is ours alone, and return it absolute.

    Raises:
        Refusal: ``storage``, when it is a link, another's, open to others, noexec, read-only or full.
    """
    path = os.path.abspath(os.path.expanduser(path))
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        own_folder(path)
        _check_filesystem(path)
        os.makedirs(os.path.join(path, "runs"), mode=0o700, exist_ok=True)
        own_folder(os.path.join(path, "runs"))
    except OSError as error:
        raise storage_refusal(path, error) from None
    return path


def own_folder(path: str) -> None:
    """Create a missing ``path`` with mode 0700, and check that no other user can get in.

    Raises:
        Refusal: ``storage``, when it is not a folder, is a link, another's, or open to others.
        OSError: when it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise storage(f"{path} is not a folder", f"remove it: rm {path}")
    if found.st_uid != os.getuid():
        raise storage(
            f"{path} belongs to uid {found.st_uid}, not to uid {os.getuid()}",
            "set node_dir to a local folder of your own",
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise storage(
            f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):04o})",
            f"look what is in it, then: chmod 700 {path}",
        )


def write_private(path: str, value: Any, *, sync: bool = True) -> None:
    """Write ``value`` as JSON aside and move it into place, readable by its owner alone.

    The file at ``path`` is whole after a loss of power: the old value or, with ``sync``, this one.
    Raises OSError when it cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + ".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(path + ".new", flags, 0o600), "w", encoding="ascii") as file:
        json.dump(value, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.rename(path + ".new", path)
    if sync:
        sync_paths(os.path.dirname(path))


def replace_file(path: str, content: bytes, *, sync: bool = True) -> None:
    """Write ``content`` aside and move it into place, readable by its owner alone; raises OSError.

    Several agents, and several threads of one, may write one file at once, and ranks read it.
    """
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(6).hex()}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.rename(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def sync_paths(*paths: str) -> None:
    """Sync files and folders to the disk; skip those that are gone; raises OSError."""
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def ring_folder(run: str, node_dir: str) -> str | None:
    """Return a fresh folder in shared memory for the rings of ``run``; None without room.

    Several node folders may share one machine (as embedded nodes do), hence the second part of its
    name.
    """
    try:
        room = os.statvfs(SHARED_MEMORY)
        if room.f_bavail * room.f_frsize < MIN_RING_ROOM_BYTES:
            return None
        base = _ring_base()
        own_folder(base)
        path = os.path.join(base, run + _ring_suffix(node_dir))
        remove_tree(path)
        os.mkdir(path, 0o700)
    except (OSError, Refusal):
        return None
    return path


def ring_folders(node_dir: str) -> list[tuple[str, str]]:
    """Return run and path of each folder for rings in shared memory that belongs to ``node_dir``."""
    suffix = _ring_suffix(node_dir)
    try:
        own_folder(_ring_base())
        names = os.listdir(_ring_base())
    except (OSError, Refusal):
        return []
    return [
        (name[: -len(suffix)], os.path.join(_ring_base(), name))
        for name in names
        if name.endswith(suffix)
    ]


def remove_tree(path: str) -> None:
    """Remove a folder, following no link; entries may disappear meanwhile; raises OSError."""
    if os.path.islink(path):
        os.unlink(path)
        return
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(path)
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path)
        else:
            with contextlib.suppress(FileNotFoundError):  # such as a pipe that its shim removes
                os.unlink(entry.path)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def _ring_base() -> str:
    return f"{SHARED_MEMORY}/distconsole-{os.getuid()}"


def _ring_suffix(node_dir: str) -> str:
    # Hosts that share this memory may have node folders of one name that they do not share.
    return f".{zlib.crc32(os.fsencode(node_dir + this_host())):08x}"


def _check_filesystem(path: str) -> None:
    room = os.statvfs(path)
    if room.f_flag & os.ST_RDONLY:
        raise storage(f"{path} is on a read-only filesystem", "set node_dir to a local folder")
    if room.f_flag & os.ST_NOEXEC:
        raise storage(
            f"{path} is on a filesystem mounted noexec",
            "set node_dir to a local folder where programs may run",
        )
    # Some filesystems (btrfs) count no inodes at all and report 0 of 0.
    out_of_inodes = room.f_files > 0 and room.f_favail == 0
    if room.f_bavail * room.f_frsize < MIN_FREE_BYTES or out_of_inodes:
        raise storage(
            f"the filesystem of {path} is full "
            f"({room.f_bavail * room.f_frsize // 1024} KiB, {room.f_favail} files left)",
            "make room, or set node_dir to another local folder",
        )


def storage_refusal(path: str, error: OSError) -> Refusal:
    """Return the refusal of a failed write to ``path``, or to the file that ``error`` names."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "make room on that node" if full else "set node_dir to a local folder of your own"
    if error.errno == errno.EFBIG:
        hint = "raise ulimit -f on that node: see its start-up files, and limits.conf(5)"
    return storage(f"{error.filename or path}: {error.strerror or error}", hint)


def hash_file(path: str | None) -> str | None:
    """Return the SHA-256 of a file, read again only when it was changed; empty if it is gone."""
    if path is None:
        return None
    try:
        found = os.stat(path)
        return _hash(path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _hash(path: str, *_stamp: int) -> str:
    with open(path, "rb") as file:
        return str(sha256(file.read()).hexdigest())
