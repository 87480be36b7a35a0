"""Notes the first uncaught exception of a process in a file; printing it stays the interpreter's."""

# Importing pathlib would cost more than everything else here.
# ruff: noqa: PTH104, PTH118

from __future__ import annotations

import os

from distconsole_training.guard import guarded
from distconsole_training.process import process

ENV_ERRORS = "DISTCONSOLE_ERRORS"  # records.ENV_ERRORS
_MAX_MESSAGE = 4096

_noted_by: list[int] = []


def _note(error: BaseException, time_ns: int) -> None:
    pid = os.getpid()
    folder = os.environ.get(ENV_ERRORS)
    if not folder or pid in _noted_by:
        return
    _noted_by.append(pid)
    identity = process.identity
    if identity is None:
        from distconsole_training.identity import from_environment

        identity = from_environment(os.environ)
    path = os.path.join(folder, f"{pid}.json")
    descriptor = os.open(
        path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
    )
    try:
        os.write(descriptor, _encode(pid, identity.rank, time_ns, error))
    finally:
        os.close(descriptor)
    os.rename(path + ".new", path)


def _encode(pid: int, rank: int, time_ns: int, error: BaseException) -> bytes:
    """Return the file's JSON, at most ``MAX_ERROR_BYTES``: of a longer traceback the end is kept."""
    import json
    import traceback

    from distconsole_training.records import MAX_ERROR_BYTES

    kind = type(error)
    lines = traceback.format_exception(kind, error, error.__traceback__)
    text = "".join(lines)[-MAX_ERROR_BYTES:]
    message = "".join(traceback.format_exception_only(kind, error)).strip()
    name = kind.__name__
    said, colon, rest = message.partition(": ")
    if isinstance(error, SyntaxError):  # its lines of source stand in the traceback
        message = str(error)
    elif colon and said.rpartition(".")[2] == name:  # Python puts its module before it
        message = rest
    report = {
        "pid": pid,
        "rank": rank,
        "retried": _will_begin_again(),
        "time_ns": time_ns,
        "type": name,
        "message": message[:_MAX_MESSAGE],
        "traceback": text,
    }
    encoded = json.dumps(report).encode("ascii")
    while len(encoded) > MAX_ERROR_BYTES:
        surplus = len(encoded) - MAX_ERROR_BYTES
        # An escaped character takes up to twelve bytes.
        text = text[max(surplus // 12, 1) :]
        report["traceback"] = text
        encoded = json.dumps(report).encode("ascii")
    return encoded


def _will_begin_again() -> bool:
    """Return whether torchrun has restarts left, so that this process's end is not the job's."""
    done, allowed = (
        os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RESTART_COUNT", "MAX_RESTARTS")
    )
    return done.isdigit() and allowed.isdigit() and int(done) < int(allowed)


note = guarded(_note)
