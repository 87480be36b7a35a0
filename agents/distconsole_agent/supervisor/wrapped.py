"""The exception that another process raised, out of the one that only brings it: DataLoader workers, ``mp.spawn``.

Of ``raise X from Y`` X stays the headline, as Python has it: there a person wrote both.
"""

from __future__ import annotations

import os
import re

HEAD = "Traceback (most recent call last):\n"
ORIGINAL = "Original "
"""What stands before it in the message of torch's ``ExceptionWrapper``."""

_BROUGHT = re.compile(
    r"[\w.]+: \s*(?:Caught \w+ ((?:in|on) [^\n]{1,200}?)\.\nOriginal "
    r"|-- Process (\d{1,6}) terminated with the following error:\n)" + re.escape(HEAD)
)
"""torch/_utils.py and torch/multiprocessing/spawn.py, the same since torch 1.5."""
_FRAME = re.compile(r'^  File "([^"\n]{1,4096})", line (\d{1,9})', re.MULTILINE)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<")


def headline(error: str, traceback: str) -> str:
    """Return ``error``, or in its place the one that it brings, with where that was raised.

    Args:
        error: Type and message.
        traceback: The whole of it, as Python prints it.
    """
    brought = _BROUGHT.match(error)
    head, begun, inner = traceback.rpartition(HEAD)
    if brought is None or not begun or not head:
        return error
    lines = inner.splitlines()
    said = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), None)
    if said is None:
        return error
    where = brought[1] or f"in spawned process {brought[2]}"
    places = _FRAME.findall("\n".join(lines[:said]))
    own = [place for place in places if not any(part in place[0] for part in _LIBRARIES)]
    for file, line in (own or places)[-1:]:
        where = f"{where}, {os.path.basename(file)}:{line}"
    return "\n".join((f"{lines[said]} ({where})", *lines[said + 1 :])).strip()
