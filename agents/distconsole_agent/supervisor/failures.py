"""Evidence of a dead rank: the hook's error file, else the end of stderr.

Everything here was written by the job, so it is bounded and validated. Where one process only brings
the exception of another (DataLoader workers, ``mp.spawn``), that one is the headline. Of ``raise X from
Y`` X stays the headline, as Python has it: there a person wrote both.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from distconsole_agent.coordination.blame import MAX_ERROR_CHARS, MAX_TRACEBACK_CHARS
from distconsole_agent.system.kernel_files import end_of, read_foreign

MAX_ERROR_FILE_BYTES = 64 * 1024
"""As ``records.MAX_ERROR_BYTES``; a longer file is not the hook's."""

MAX_ERROR_FILES = 4096
PAST = "past"
"""Folder to which the ranks of a new round of torchrun move the notes of earlier ones (launch/launchers/torch.py)."""

MAX_WAIT_STATUS = 0xFFFF

TAIL_BYTES = 64 * 1024
TAIL_LINES = 20
MAX_REASON_CHARS = 300
TRACEBACK_HEAD = "Traceback (most recent call last):"
CHAINED = " above exception"
"""In both lines that Python puts between the tracebacks of one chain."""

FATAL = "Fatal Python error: "
"""Beginning of Python's message that it cannot start, or crashes; its stack comes behind."""
MEMORY_WORDS = {True: " (out of memory?)", False: "", None: " (for memory? that is not known)"}

_WARNS = re.compile(
    r"\[[IW]\d{4} \d\d:\d\d:|\[\w[\w.-]*:\d+\] \S+ Warning: |(real|user|sys)\s+\d+m[\d.,]+s$"
)
"""Beginning of a line of torch, Open MPI, PRRTE or bash's ``time`` that is a warning or less: no reason of an end."""

SUMMARY_HEAD, SUMMARY_ROOT = "\nFailures:\n", "\nRoot Cause (first observed failure):\n"
_SUMMARY_RANK = re.compile(
    r"^  rank +: (\d{1,9}) \(local_rank: \d+\)\n  exitcode +: (-?\d{1,3}) \(pid: \d+\)",
    re.MULTILINE,
)

ORIGINAL = "Original "
"""Prefix of the original traceback in the message of torch's ``ExceptionWrapper``."""

_BROUGHT = re.compile(
    r"[\w.]+: \s*(?:Caught \w+ ((?:in|on) [^\n]{1,200}?)\.\nOriginal |CheckpointException ranks:[^\n]+\n"
    r"|-- Process (\d{1,6}) terminated with the following error:\n)" + re.escape(TRACEBACK_HEAD)
)
"""torch/_utils.py and torch/multiprocessing/spawn.py, the same since torch 1.5."""
_FRAME = re.compile(r'^  File "([^"\n]{1,4096})", line (\d{1,9})', re.MULTILINE)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<")

_RULE = re.compile(r"^[ \t]*[-=*]{8,}[ \t]*$", re.MULTILINE)
"""Above and below a help text of Open MPI."""
_NO_REASON = re.compile(r"\W*warning\b", re.IGNORECASE)
_HYDRA = re.compile(r"^\[(?:mpiexec|proxy)[^]\n]*\] \w+ \([^)\n]*:\d+\): ")
"""Prefix with a place in the source that programs of the MPICH family print."""
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|:?(?=\n[ \t]*(?:\n|$))|:?$)", re.DOTALL)


class Raised(NamedTuple):
    """An uncaught exception.

    Attributes:
        rank: -1 if unknown.
        retried: torchrun was to go on.
        ended: Wait status by pid, -1 if unknown, of the processes of the run that had ended before it.
    """

    pid: int
    rank: int
    t_ns: int
    error: str
    traceback: str
    retried: bool = False
    ended: Mapping[int, int] = MappingProxyType({})


class EngineSaid(NamedTuple):
    """torchrun's report on one of its ranks that failed; ``exit_code`` is 128+S for signal S."""

    rank: int
    exit_code: int
    signal: int | None


class FailureWords(NamedTuple):
    """The error and the traceback of an end, from standard error."""

    error: str
    traceback: str


def read_raised(folder: str, *, past: bool = False) -> list[Raised]:
    """Return the exceptions noted in ``folder``, earliest first; other files are left out.

    Their times are the wall clock's.

    Args:
        past: Also those of earlier rounds, which torchrun has dealt with.
    """
    found = read_raised(os.path.join(folder, PAST)) if past else []
    found += _read_each(folder).values()
    return sorted(found, key=lambda raised: raised.t_ns)


def _read_each(folder: str, *, enclosed: bool = False) -> dict[str, Raised]:
    """Return by path the notes in ``folder``, and in those of containers in it, which have pids of their own.

    ``enclosed``: ``folder`` is a container's, and has none. A link that a job made is skipped.
    """
    found: dict[str, Raised] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder))[:MAX_ERROR_FILES]:
            path, (stem, dot, suffix) = os.path.join(folder, name), name.partition(".")
            if stem.isascii() and stem.isdigit() and dot and suffix == "json":
                raised = _read_one(path, int(stem))
                if raised is not None:
                    found[path] = raised
            elif "-" in name and not enclosed and not os.path.islink(path):
                found.update(_read_each(path, enclosed=True))
    return found


def forget_exceptions(folder: str, before_ns: int) -> None:
    """Remove the exceptions noted in ``folder`` before a UNIX time: a later process may have that pid."""
    for path, raised in _read_each(folder).items():
        if raised.t_ns < before_ns:
            with contextlib.suppress(OSError):
                os.unlink(path)


def read_tail(path: str, since: int = 0) -> FailureWords:
    """Return the last traceback, or the last lines, of a log from byte ``since`` on."""
    return told_in(end_of(path, TAIL_BYTES, since))


def read_last_lines(path: str, since: int = 0) -> FailureWords:
    """Return the last lines of a log from byte ``since`` on, for logs without a traceback."""
    return _last_lines(_lines_of(end_of(path, TAIL_BYTES, since)))


def told_in(text: str) -> FailureWords:
    lines = _lines_of(text)
    heads = [index for index, line in enumerate(lines) if TRACEBACK_HEAD in line]
    return _traceback(lines, heads) if heads else _last_lines(lines)


def _lines_of(text: str) -> list[str]:
    return [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").splitlines()]


def _last_lines(lines: list[str]) -> FailureWords:
    told = [line for line in lines if line.strip()][-TAIL_LINES:]
    tail = "\n".join(told)[-MAX_TRACEBACK_CHARS:]
    error = next((line.strip() for line in reversed(told) if not _WARNS.match(line)), "")
    error = next((line for line in told if line.startswith(FATAL)), error)
    return FailureWords(error[:MAX_ERROR_CHARS], tail)


def first_reason(text: str) -> str:
    """Return why mpirun refused, in a line: its first sentence that is no warning; of a traceback the exception."""
    if TRACEBACK_HEAD in text:
        return told_in(text).error
    lines = [line for line in _lines_of(text) if not _WARNS.match(line)]
    parts = enumerate(_RULE.split("\n".join(lines)))
    told = [(number % 2 == 1, part.strip()) for number, part in parts if part.strip()]
    told = [each for each in told if not _NO_REASON.match(each[1])] or told
    if not told:
        return ""
    framed, part = told[0]
    found = _SENTENCE.match(part) if framed else None
    sentence = found[0] if found else _HYDRA.sub("", part.splitlines()[0])
    return " ".join(sentence.split()).rstrip(":")[:MAX_REASON_CHARS]


def read_engine_summary(path: str, since: int = 0) -> list[EngineSaid]:
    """Return the failed ranks of torchrun's last words in the log at ``path``, the first one first.

    torchrun itself exits with 1 whatever its ranks exit with. The format is ChildFailedError's in
    torch/distributed/elastic/multiprocessing/errors, the same since torch 1.9.
    """
    text = end_of(path, TAIL_BYTES, since)
    begin = text.rfind(SUMMARY_HEAD)
    if begin < 0:
        return []
    root = text.find(SUMMARY_ROOT, begin)
    found = list(_SUMMARY_RANK.finditer(text, begin))
    found.sort(key=lambda match: not match.start() > root >= 0)
    said = [(int(match[1]), int(match[2])) for match in found]
    return [
        EngineSaid(rank, code, None) if code >= 0 else EngineSaid(rank, 128 - code, -code)
        for rank, code in said
    ]


def describe_exit(exit_code: int, number: int | None, out_of_memory: bool | None) -> str:
    """Return an end in words: ``exited with code 3``, ``killed by SIGKILL (out of memory?)``."""
    if number is None:
        return f"exited with code {exit_code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(number).name
        if number == signal.SIGXCPU:
            return f"killed by {name} (limit of CPU time: ulimit -t?)"
        return f"killed by {name}{MEMORY_WORDS[out_of_memory] if number == signal.SIGKILL else ''}"
    return f"killed by signal {number}"


def _read_one(path: str, pid: int) -> Raised | None:
    """Return the hook's note on an uncaught exception; a field of a wrong type is left out, and without a time all."""
    try:
        text = read_foreign(path, MAX_ERROR_FILE_BYTES + 1)
        noted = json.loads(text)
        t_ns, rank, retried = (noted.get(name) for name in ("time_ns", "rank", "retried"))
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    kind, message, traceback = (
        value if isinstance(value := noted.get(name), str) else ""
        for name in ("type", "message", "traceback")
    )
    error = ": ".join(filter(None, (kind, message)))
    if not error or len(text) > MAX_ERROR_FILE_BYTES or type(t_ns) is not int or t_ns < 1:
        return None
    rank = rank if type(rank) is int and 0 <= rank < 1 << 31 else -1
    error = headline(error, traceback)[:MAX_ERROR_CHARS]
    ended = _read_ended(noted.get("ended"))
    return Raised(pid, rank, t_ns, error, traceback[-MAX_TRACEBACK_CHARS:], retried is True, ended)


def _read_ended(noted: object) -> dict[int, int]:
    pairs = noted if isinstance(noted, list) else []
    return {
        pair[0]: pair[1]
        for pair in pairs
        if isinstance(pair, list)
        and [type(each) for each in pair] == [int, int]
        and -1 <= pair[1] <= MAX_WAIT_STATUS
    }


def _traceback(lines: list[str], heads: list[int]) -> FailureWords:
    last = first = heads.pop()
    while heads and (
        f"{ORIGINAL}{TRACEBACK_HEAD}" in lines[first]
        or any(CHAINED in line for line in lines[heads[-1] : first])
    ):
        first = heads.pop()
    prefix = lines[last][: lines[last].index(TRACEBACK_HEAD)].removesuffix(ORIGINAL)
    end = last + 1
    while end < len(lines) and lines[end][len(prefix) :].startswith((" ", "\t")):
        end += 1
    error = lines[end][len(prefix) :].strip() if end < len(lines) else ""
    block = "\n".join(line[len(prefix) :] for line in lines[first : end + 1])
    return FailureWords(error[:MAX_ERROR_CHARS], block[-MAX_TRACEBACK_CHARS:])


def headline(error: str, traceback: str) -> str:
    """Return ``error``, or the inner error that it wraps, with the place that raised it."""
    brought = _BROUGHT.match(error)
    head, begun, inner = traceback.rpartition(TRACEBACK_HEAD)
    if brought is None or not begun or not head:
        return error
    lines = inner.splitlines()
    said = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), None)
    if said is None:
        return error
    rank = lines[0].strip(" ()").lower()  # of torch.distributed.checkpoint
    where = brought[1] or (f"in spawned process {brought[2]}" if brought[2] else rank)
    frames = "\n".join(lines[:said])
    for file, line in (own_frames(frames) or _FRAME.findall(frames))[-1:]:
        where = f"{where}, {os.path.basename(file)}:{line}"
    return "\n".join((f"{lines[said]} ({where})", *lines[said + 1 :])).strip()


def own_frames(traceback: str) -> list[tuple[str, str]]:
    """Return file and line of each frame of a traceback that is in the job's own code."""
    frames: list[tuple[str, str]] = _FRAME.findall(traceback)
    return [frame for frame in frames if not any(part in frame[0] for part in _LIBRARIES)]
