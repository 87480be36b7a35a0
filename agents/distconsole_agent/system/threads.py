"""Threads without a waiting starter: a node that is short of memory does not block the code that begins one."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

BEGIN_SECONDS = 10.0
"""A thread that has not run after this long never will."""


def begin_thread(work: Callable[..., object], *args: Any) -> None:
    """Run ``work`` in a thread; its exceptions are printed to stderr.

    ``threading.Thread.start`` waits for the new thread's report that it runs. A thread that has no memory to begin with
    never reports (CPython, Lib/threading.py, ``_bootstrap_inner``), and its starter would wait for ever. This function
    does not wait, so such a thread fails silently.

    Raises:
        RuntimeError: the system has no thread left.
    """
    _thread.start_new_thread(work, args)
