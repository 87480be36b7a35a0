"""Reads from a rank's log what Horovod's stall inspector wrote: which tensors wait, and for which ranks."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from distconsole_agent.system.kernel_files import end_of

LOG_BYTES = 64 * 1024
MAX_NAMES = 16

_BEGINS = "Missing ranks:"
_LINE = re.compile(r"^(\d{1,9})!?: \[(.*?)\]?$")


def read_stalls(log: str, silent_s: float) -> dict[str, Any] | None:
    """Return the last complaint in ``log``; None without one, or where a step was made since it grew."""
    try:
        if time.time() - os.stat(log).st_mtime > silent_s:
            return None
    except OSError:
        return None
    return parse_stalls(end_of(log, LOG_BYTES))


def parse_stalls(text: str) -> dict[str, Any] | None:
    """Return ``stalled`` (tensors) and ``missing`` (tensor -> the ranks that have not submitted it)."""
    _, begins, block = text.rpartition(_BEGINS)
    missing: dict[str, list[int]] = {}
    for line in block.strip("\n").splitlines():
        found = _LINE.match(line.strip())
        if found is None:
            break
        for name in found.group(2).removesuffix(" ...").split(", ")[:MAX_NAMES]:
            if name and (name in missing or len(missing) < MAX_NAMES):
                missing.setdefault(name[:512], []).append(int(found.group(1)))
    return {"stalled": list(missing), "missing": missing} if begins and missing else None
