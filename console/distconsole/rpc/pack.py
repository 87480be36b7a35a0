"""The agent as one file, a zip that Python runs, the same bytes wherever it is built; and the script that stores it on a node."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property, lru_cache
from importlib import resources, util
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType

import distconsole_agent
import distconsole_training

MAIN = b'''\
"""Runs the agent; refuses in words an interpreter that is too old, so it must parse under Python 2."""
import sys

if sys.version_info < (3, 9):
    import json

    found = ".".join(str(part) for part in sys.version_info[:3])
    error = {
        "code": "python",
        "message": "%s is Python %s; 3.9 or newer is needed" % (sys.executable, found),
        "hint": "name a newer one with --python PATH, or activate an environment with --setup CMD",
    }
    sys.stdout.write(json.dumps({"error": error}) + "\\n")
    sys.exit(1)

import os
import stat
import zlib


def compiled():
    """Return the file that an agent compiled of this one for this Python, if it is ours and whole."""
    path = "%s.%s.zip" % (os.path.dirname(__file__)[:-4], sys.implementation.cache_tag)
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            return None
        with open(path, "rb") as file:
            content = file.read()
        whole = zlib.crc32(content[:-8]) == int(content[-8:], 16)
    except (OSError, ValueError):
        return None
    return path if whole else None


faster = compiled()
if faster is not None:
    sys.path.insert(0, faster)

from distconsole_agent.__main__ import main

sys.exit(main())
'''
"""Python compiles the sources of a zip at every start, hence the compiled file beside it."""

INSTALLER = r"""
import sys
sys.path[:] = [each for each in sys.path if each]
import os, json
def refuse(code, message, hint):
    sys.stdout.write(json.dumps({"error": {"code": code, "message": message, "hint": hint}}) + "\n")
    sys.stdout.flush()
    sys.exit(1)
if sys.version_info < (3, 9):
    refuse("python", "%s is Python %s; 3.9 or newer is needed" % (sys.executable, ".".join(str(part) for part in sys.version_info[:3])),
        "name a newer one with --python PATH, or activate an environment with --setup CMD")
if not sys.platform.startswith("linux"):
    refuse("platform", "this is %s; nodes are Linux" % sys.platform,
        "name Linux machines with --hosts; the console alone runs on macOS and in WSL")
import errno, hashlib, time, zlib
path, digest = sys.argv[1:3]
folder = os.path.dirname(path)
aside = os.path.join(folder, ".%s.%d.%s" % (os.path.basename(path), os.getpid(), os.urandom(6).hex()))
def read(size):
    parts = []
    while size:
        part = os.read(0, min(size, 65536))
        if not part:
            sys.exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
line = b""
while not line.endswith(b"\n") and len(line) < 16:
    line += read(1)
content = zlib.decompress(read(int(line)))
if hashlib.sha256(content).hexdigest() != digest:
    refuse("internal", "the agent's file arrived damaged", "try again")
try:
    os.makedirs(folder, 0o700, exist_ok=True)
    for name in os.listdir(folder):
        old = os.path.join(folder, name)
        if name.startswith(".agent-") and os.lstat(old).st_mtime < time.time() - 86400:
            os.unlink(old)
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(aside, path)
    except OSError:
        try:
            os.unlink(aside)
        except OSError:
            pass
        raise
except OSError as error:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some space (df -h %s; quota -s)" % folder if full else "make it writable"
    hint += ", or choose another place: --setup 'export XDG_CACHE_HOME=/scratch/$USER'"
    if error.errno == errno.EFBIG:
        hint = "raise ulimit -f on that node: see its start-up files, and limits.conf(5)"
    refuse("storage", "cannot store the agent in %s: %s" % (folder, error.strerror), hint)
try:
    sys.path.insert(0, path)
    from distconsole_agent.node_folder.compiled import keep_compiled
    keep_compiled(path)
except Exception:
    pass
""".strip()
"""Stores the agent's file on a node: ``python -E -s -c INSTALLER PATH SHA256``, stdin: the length in decimal, a
newline, the file deflated. In Python an error is a sentence with its cause, the digest is verified before the
file gets its name, and no SFTP subsystem is needed. It parses under Python 2, so that an old one is refused in
words. It also compiles the program, which the agent does otherwise."""

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip can hold; every member has it."""


class Pack:
    """The agent's file: a zip of stored members, so that no version of zlib changes them."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.sha256 = hashlib.sha256(content).hexdigest()

    @property
    def name(self) -> str:
        return f"agent-{self.sha256[:16]}.pyz"

    @cached_property
    def compressed(self) -> bytes:
        """The content as it travels: deflated (zlib)."""
        return zlib.compress(self.content, 6)


@lru_cache(maxsize=1)
def agent_pack() -> Pack:
    """Return the agent with the hook and pynvml, built once from the installed packages."""
    members = {"__main__.py": MAIN}
    for package in (distconsole_agent, distconsole_training):
        members.update(_sources(resources.files(package), package.__name__))
    spec = util.find_spec("pynvml")
    assert spec is not None, "pynvml is a requirement of distconsole"
    assert spec.origin is not None
    members["pynvml.py"] = Path(spec.origin).read_bytes()
    return pack(members)


@lru_cache(maxsize=1)
def rank_script() -> str:
    """Return the Python text that is a rank of a check's collective job (``collectives.worker``)."""
    return str(_scripts().worker_script())


@lru_cache(maxsize=1)
def python_script() -> str:
    """Return the Python text that lists its interpreter's packages: a line with the JSON pair of ``facts``."""
    return str(_scripts().script_source("probes.standalone.inspect_python"))


@lru_cache(maxsize=1)
def joining_script() -> bytes:
    """Return the Python text that copies bytes to and from an agent that runs already."""
    return resources.files(distconsole_agent).joinpath("server", "joining.py").read_bytes()


def _scripts() -> ModuleType:
    from distconsole_agent.probes import scripts  # noqa: PLC0415 - with all probes

    return scripts


def pack(members: dict[str, bytes]) -> Pack:
    """Return ``members`` (name to content) as a ``Pack``; the same bytes for the same members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, members[name])
    return Pack(buffer.getvalue())


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{prefix}/{entry.name}"
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry.read_bytes()
