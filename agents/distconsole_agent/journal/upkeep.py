"""What a journal owes the disk, done behind the thread that writes it: a slow disk delays no entry.

One thread works while there is something to do.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Callable

from distconsole_agent.contract.limits import READ_BYTES


class Upkeep:
    """The work of one journal; a job that waits already is not added again.

    Args:
        failed: Told why the disk refused.
    """

    def __init__(self, failed: Callable[[OSError], None]) -> None:
        self._failed = failed
        self._changed = threading.Condition()
        self._jobs: dict[str, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None

    def add(self, name: str, job: Callable[[], None]) -> None:
        """Do ``job`` soon."""
        with self._changed:
            self._jobs.setdefault(name, job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="journal upkeep", daemon=True
                )
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until all is done; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    def close(self, seconds: float) -> None:
        """Forget what has not begun, and wait for what has; a disk that hangs is not awaited longer."""
        with self._changed:
            self._jobs.clear()
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._thread = None
                    self._changed.notify_all()
                    return
                job = self._jobs.pop(next(iter(self._jobs)))
            try:
                job()
            except OSError as error:
                self._failed(error)


def sync(*paths: str) -> None:
    """Have the disk keep what files and folders hold; one that is gone is passed over.

    Raises:
        OSError: when the disk cannot.
    """
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def compress(plain: str, packed: str) -> None:
    """Put a compressed file in the place of ``plain``, which stays where the disk refuses.

    ``plain`` goes when the disk has the other one under its name, not before.
    """
    aside = packed + ".new"
    try:
        # One that is there is of before a power cut, which ``plain`` may not have outlived.
        if not _is_whole(packed):
            _pack(plain, aside)
            os.rename(aside, packed)
            sync(os.path.dirname(packed))
        os.unlink(plain)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)


def _pack(plain: str, aside: str) -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    with open(plain, "rb") as source, open(aside, "wb") as sink:
        while chunk := source.read(READ_BYTES):
            sink.write(packer.compress(chunk))
        sink.write(packer.flush())
        sink.flush()
        os.fsync(sink.fileno())


def _is_whole(packed: str) -> bool:
    unpacker = zlib.decompressobj(31)
    try:
        with open(packed, "rb") as file:
            while chunk := file.read(READ_BYTES):
                unpacker.decompress(chunk)
    except (FileNotFoundError, zlib.error):
        return False
    return unpacker.eof
