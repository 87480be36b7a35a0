"""Threads without a waiting starter: a node that is short of memory does not block the code that begins one."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

BEGIN_SECONDS = 10.0
"""A thread that has not run after this long never will."""


def begin_thread(work: Callable[..., object], *args: Any) -> None:
    """Have ``work`` done by a thread; what it raises is printed to stderr.

    ``threading.Thread.start`` waits until the new thread says that it runs. A thread that has no memory to begin with
    never says so (CPython, Lib/threading.py, ``_bootstrap_inner``), and its starter would wait for ever. Here nobody
    waits, and nobody learns that such a thread did nothing.

    Raises:
        RuntimeError: the system has no thread left.
    """
    _thread.start_new_thread(work, args)
