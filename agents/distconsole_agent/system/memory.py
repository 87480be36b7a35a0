"""Files in memory alone: for data that must be on no disk and in no command line."""

from __future__ import annotations

import contextlib
import os


def memory_file(name: str, content: bytes = b"") -> int:
    """Return the descriptor of a file in memory that holds ``content``; raises OSError if there is room for none.

    A Python that was built against a C library before glibc 2.27 has no os.memfd_create, wherever it runs.
    """
    descriptor = _open(name)
    try:
        os.write(descriptor, content)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _open(name: str) -> int:
    with contextlib.suppress(AttributeError, OSError):
        return os.memfd_create(name)
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import ctypes

        close_on_exec = 1
        descriptor = int(ctypes.CDLL(None).memfd_create(name.encode(), close_on_exec))
        if descriptor >= 0:
            return descriptor
    path = f"/dev/shm/{name}-{os.urandom(8).hex()}"  # noqa: S108 - in memory, under a random name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    return descriptor
