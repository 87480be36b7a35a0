"""Facts of a host about the script of a launch, and about the folders of a training."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from distconsole.checks.facts.network import PeerName
from distconsole.checks.facts.node import Facts, MountFacts, OsFacts


class FoundPath(Facts, frozen=True, kw_only=True):
    """What lies at a path. ``late`` says that the filesystem did not answer.

    ``above`` is the nearest folder that is there, where the path itself is not, and ``writable`` is
    then about that one.
    """

    kind: str = ""
    size: int = 0
    inode: int = 0
    real: str = ""
    readable: bool = False
    writable: bool = False
    entries: int | None = None
    above: str = ""
    mount: MountFacts | None = None
    error: str = ""
    code: str = ""
    late: bool = False


class ScriptFile(FoundPath, frozen=True, kw_only=True):
    """The script: ``kind`` is file, folder, other, or module for one that is installed there."""

    path: str = ""
    binary: bool = False
    too_large: bool = False
    shell: bool = False
    crlf: bool = False
    installed: bool = False


class SourceFile(Facts, frozen=True, kw_only=True):
    sha256: str = ""
    size: int = 0
    modified: float = 0.0
    error: str = ""


class Problem(Facts, frozen=True, kw_only=True):
    """Compile error of the interpreter there; ``line`` 0 without one."""

    file: str = ""
    line: int = 0
    what: str = ""
    text: str = ""


class CodeFacts(Facts, frozen=True, kw_only=True):
    """The script and the local code that it imports, by path below where imports begin.

    ``own_path``: it changes ``sys.path``, so that modules may be where nobody has looked.
    """

    files: dict[str, SourceFile] = msgspec.field(default_factory=dict)
    problem: Problem = Problem()
    cut: bool = False
    own_path: bool = False


class Module(Facts, frozen=True, kw_only=True):
    """A module that is no local code, and its ``place``; ``package`` and ``version`` are those of its distribution."""

    needed: bool = True
    found: bool = True
    place: str = ""
    package: str = ""
    version: str = ""


class Git(Facts, frozen=True, kw_only=True):
    head: str = ""
    dirty: bool | None = None


class InterpreterFacts(Facts, frozen=True, kw_only=True):
    """The interpreter of the ranks; ``error`` is why it cannot be started."""

    version: str = ""
    error: str = ""


class ScriptFacts(Facts, frozen=True, kw_only=True):
    """``modules`` is None if they could not be asked for."""

    group: ClassVar[str] = "script"
    script: ScriptFile = ScriptFile()
    code: CodeFacts | None = None
    modules: dict[str, Module] | None = None
    workdir: FoundPath = FoundPath()
    git: Git | None = None
    address: PeerName | None = None
    python: InterpreterFacts | None = None
    paths: dict[str, FoundPath] = msgspec.field(default_factory=dict)


class Trial(Facts, frozen=True, kw_only=True):
    """What came of making, writing, reading or looking at files: how much in how long, or why not."""

    bytes: int = 0
    count: int = 0
    seconds: float = 0.0
    error: str = ""
    code: str = ""

    @property
    def rate(self) -> float | None:
        """Bytes a second; None where too little was moved to tell."""
        return self.bytes / self.seconds if self.bytes >= 1 << 20 and self.seconds > 0 else None

    @property
    def latency(self) -> float | None:
        """Seconds for one file; None with too few files to tell."""
        return self.seconds if self.count >= 3 and self.seconds > 0 else None


class Folder(Facts, frozen=True, kw_only=True):
    """One folder; None for questions that were not asked. ``late``: the filesystem did not answer."""

    touch: Trial | None = None
    write: Trial | None = None
    small: Trial | None = None
    look: Trial | None = None
    read: Trial | None = None
    late: bool = False


class FolderFacts(Facts, frozen=True, kw_only=True):
    """Whether a file can be created there, by path."""

    group: ClassVar[str] = "folders"
    folders: dict[str, Folder] = msgspec.field(default_factory=dict)


class SpeedFacts(Facts, frozen=True, kw_only=True):
    """How fast folders are, by path; the best of the times they were measured."""

    group: ClassVar[str] = "speed"
    leans_on = (OsFacts,)
    folders: dict[str, Folder] = msgspec.field(default_factory=dict)
