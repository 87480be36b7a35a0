"""Keeps the program compiled beside its zipapp, whose sources Python compiles at every start.

The zipapp's own ``__main__`` looks for the file and falls back to the zipapp. The file is
never removed here: the home it lies in may be shared, and other hosts may be running from it.
"""

from __future__ import annotations

import contextlib
import io
import marshal
import os
import struct
import sys
import zlib

from distconsole_agent.node_folder.folders import replace_file

PACKAGE = "distconsole_agent/"
"""Imports of bridge and shim; the rest comes from the zipapp on demand."""

UNCHECKED_HASH = 1
"""Flags of a .pyc that is believed without a look at its source (PEP 552)."""


def compiled_path(archive: str) -> str:
    return f"{archive[: -len('.pyz')]}.{sys.implementation.cache_tag}.zip"


def loaded_inode(archive: str | None) -> int | None:
    """Return the inode of the compiled program; None if it is gone, or not what this process reads its modules from."""
    if archive is None or (path := compiled_path(archive)) not in sys.path:
        return None
    with contextlib.suppress(OSError):
        return os.stat(path).st_ino
    return None


def keep_compiled(archive: str) -> None:
    """Write the compiled program unless it is there and whole; raises OSError."""
    path = compiled_path(archive)
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        content = file.read()
        if zlib.crc32(content[:-8]) == int(content[-8:], 16):
            return
    replace_file(path, _compile(archive))


def _compile(archive: str) -> bytes:
    """Return a zip of the package's code and sources, with the CRC-32 of all that (hexadecimal) at its end."""
    import importlib.util
    import zipfile

    head = importlib.util.MAGIC_NUMBER + struct.pack("<I", UNCHECKED_HASH)
    buffer = io.BytesIO()
    with zipfile.ZipFile(archive) as program, zipfile.ZipFile(buffer, "w") as made:
        for name in filter(lambda name: name.startswith(PACKAGE), program.namelist()):
            source = program.read(name)
            made.writestr(name, source)
            code = compile(source, os.path.join(archive, name), "exec", dont_inherit=True)
            checked = head + importlib.util.source_hash(source)
            made.writestr(name + "c", checked + marshal.dumps(code))
        made.comment = b"%08x" % 0
    content = buffer.getvalue()[:-8]
    return content + b"%08x" % zlib.crc32(content)
