"""Program: speed of folders, and if a file can be created there (``host/machine.py``).

A dead filesystem blocks its callers for ever, so each folder is a part. Files written here have no
name once they are open, or are removed at once; files of others are only read.
"""

from __future__ import annotations

import mmap
import os
import stat
import time
from typing import Any

from distconsole_agent.probes.standalone.reporting import ProgramPart, begin, wait_and_leave, why

PIECE = 1 << 20
SMALL_FILES = 8
MAX_LOOKED_AT = 200
PREFIX = ".distconsole-check-"


def own_file(folder: str) -> int:
    """Make a file of ours and take its name away at once; return its descriptor."""
    path = os.path.join(folder, PREFIX + os.urandom(8).hex())
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def touch(folder: str) -> dict[str, Any]:
    try:
        descriptor = own_file(folder)
        try:
            os.write(descriptor, b"distconsole")
        finally:
            os.close(descriptor)
    except OSError as error:
        return why(error)
    return {"error": "", "code": ""}


def write_file(folder: str, size: int, seconds: float) -> dict[str, Any]:
    """How fast ``size`` bytes get to the disk; fewer if the time is over."""
    piece = os.urandom(PIECE)
    began = time.perf_counter()
    done = 0
    try:
        descriptor = own_file(folder)
        try:
            while done < size and time.perf_counter() - began < seconds:
                done += os.write(descriptor, piece)
            os.fsync(descriptor)
            took = time.perf_counter() - began
        finally:
            os.close(descriptor)
    except OSError as error:
        return why(error)
    return {"bytes": done, "seconds": took, "error": ""}


def small_files(folder: str, count: int, seconds: float) -> dict[str, Any]:
    """How long a small file takes to be made, written, closed, found and removed: the median."""
    times = []
    began = time.perf_counter()
    try:
        for _ in range(count):
            path = os.path.join(folder, PREFIX + os.urandom(8).hex())
            at = time.perf_counter()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, b"distconsole")
            finally:
                os.close(descriptor)
                os.stat(path)
                os.unlink(path)
            times.append(time.perf_counter() - at)
            if time.perf_counter() - began > seconds:
                break
    except OSError as error:
        return why(error)
    return {"count": len(times), "seconds": sorted(times)[len(times) // 2], "error": ""}


def list_folder(folder: str, seconds: float) -> dict[str, Any]:
    """How long an entry takes to be listed and looked at; the files among them come back."""
    began = time.perf_counter()
    files, count = [], 0
    try:
        with os.scandir(folder) as found:
            for entry in found:
                status = os.stat(entry.path, follow_symlinks=False)
                count += 1
                if stat.S_ISREG(status.st_mode):
                    files.append((entry.path, status.st_size))
                if count >= MAX_LOOKED_AT or time.perf_counter() - began > seconds:
                    break
    except OSError as error:
        return {**why(error), "files": []}
    took = time.perf_counter() - began
    return {"count": count, "seconds": took / max(1, count), "error": "", "files": files}


def read(files: Any, size: int, seconds: float) -> dict[str, Any]:
    """How fast files are read past this host's memory (O_DIRECT); empty if that cannot be measured."""
    done = 0
    began = time.perf_counter()
    with mmap.mmap(-1, PIECE) as buffer:
        for path, _ in sorted(files, key=lambda each: -each[1])[:8]:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                while done < size and time.perf_counter() - began < seconds:
                    got = os.readv(descriptor, [buffer])
                    done += got
                    if got < PIECE:
                        break
            except OSError:
                continue
            finally:
                os.close(descriptor)
    return {"bytes": done, "seconds": time.perf_counter() - began}


def folder(asked: dict[str, Any]) -> dict[str, Any]:
    path, seconds = asked["path"], asked["seconds"]
    facts: dict[str, Any] = {}
    place = path if os.path.isdir(path) else os.path.dirname(path)
    if asked["touch"]:
        facts["touch"] = touch(path)
    if asked["write_bytes"]:
        facts["write"] = write_file(path, asked["write_bytes"], seconds)
        facts["small"] = small_files(path, SMALL_FILES, seconds)
    if asked["read_bytes"]:
        found = list_folder(place, seconds)
        files = found.pop("files")
        if place != path:
            files = [(path, 0)]
        facts["look"] = found
        facts["read"] = read(files, asked["read_bytes"], seconds)
    return facts


def main(seconds: float, folders: list[dict[str, Any]]) -> None:
    """Look at one folder after the other; one that hangs is left behind."""
    ends = begin(seconds)
    parts = []
    for asked in folders:
        part = ProgramPart(asked["path"], folder, asked)
        part.wait(min(ends, time.monotonic() + asked["seconds"] * 4 + 0.5))
        parts.append(part)
    wait_and_leave(parts, ends)
