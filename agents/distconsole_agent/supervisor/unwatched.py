"""Finds which spawned child failed first where no hook ran: in torch's message, and in the error files of the children.

``torch.multiprocessing.spawn`` has each child write what it raised into a file of its own, and tells of one
child alone, which may be a victim of another. The files stay.
"""

from __future__ import annotations

import contextlib
import os
import pickletools
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice

from distconsole_agent.coordination.blame import MAX_ERROR_CHARS, MAX_TRACEBACK_CHARS
from distconsole_agent.supervisor.failures import (
    HEAD,
    LIBRARIES,
    MAX_ERROR_FILE_BYTES,
    MAX_ERROR_FILES,
    TAIL_BYTES,
    Raised,
    headline,
    told_in,
)
from distconsole_agent.system import steady
from distconsole_agent.system.kernel_files import end_of

PREFIX, SUFFIX = "pytorch-errorfile-", ".pickle"
FOLDERS = ("TMPDIR", "TEMP", "TMP")
MAX_LISTED = 100_000
NAMELESS = "(in a spawned process)"
"""Said of a child's exception: which of the ranks it was is not known."""

_SPAWNER = re.compile(r"^torch\.multiprocessing\.spawn\.Process\w{1,20}Exception: ", re.MULTILINE)
_FILE = re.compile(r'^  File "([^"\n]{1,4096})", line \d', re.MULTILINE)


def read_unwatched(
    log: str, since: int, pid: int, ended_ns: int, env: Mapping[str, str]
) -> list[Raised]:
    """Return what the children of the spawner ``pid`` raised, the earliest first, and what it said at its end itself.

    Nothing if it is no spawner. Times are steady; whose rank it was is not known.

    Args:
        ended_ns: When it ended, in steady time.
        log: Its standard error, of which bytes from ``since`` on are its own.
        env: Its environment, which says where its files are.
    """
    text = end_of(log, TAIL_BYTES, since)
    found = list(_SPAWNER.finditer(text))
    if not found:
        return []
    start = found[-1].start()
    inner = text.rfind(HEAD, start)
    end = text.find("\n" if inner < 0 else "\n\n", max(inner, start))
    error = text[start : end if end >= 0 else len(text)]
    traceback = text[max(0, text.rfind(HEAD, 0, start)) : start] + error
    said = headline(error, traceback)[:MAX_ERROR_CHARS]
    own = Raised(pid, -1, ended_ns, said, traceback[-MAX_TRACEBACK_CHARS:])
    folder = next((env[name] for name in FOLDERS if env.get(name)), tempfile.gettempdir())
    return [*sorted(_read_children(folder, _scripts(traceback)), key=lambda each: each.t_ns), own]


def _read_children(folder: str, scripts: set[str]) -> Iterator[Raised]:
    """Yield what is noted in ``folder`` of exceptions in ``scripts``: other jobs note theirs there, too."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        named = (
            entry
            for entry in islice(entries, MAX_LISTED)
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX)
        )
        for entry in islice(named, MAX_ERROR_FILES):
            with contextlib.suppress(OSError, ValueError):
                t_ns, text = _read_note(entry.path)
                if scripts & _scripts(text):
                    error, traceback = told_in(text)
                    yield Raised(0, -1, t_ns, f"{error} {NAMELESS}", traceback)


def _read_note(path: str) -> tuple[int, str]:
    """Return when a file was written, in steady time, and the text that it holds. Raises OSError, ValueError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb", buffering=0) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid():
            raise ValueError(path)
        data = file.read(MAX_ERROR_FILE_BYTES) or b""
    # What is in it is only looked at: to load a pickle is to run it.
    words = (arg for _, arg, _ in pickletools.genops(data) if isinstance(arg, str))
    return steady.of_wall(about.st_mtime_ns), next(words, "")


def _scripts(text: str) -> set[str]:
    """Return the files of the job's own that a traceback names."""
    files = set(_FILE.findall(text))
    return {file for file in files if not any(part in file for part in LIBRARIES)}
