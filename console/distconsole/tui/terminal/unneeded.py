"""What the screen's libraries import where it is installed, and do without: megabytes that would only lie there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

OWN_HASHES = (("_md5", "_sha1", "_sha2", "_sha3", "_blake2"),
              ("_md5", "_sha1", "_sha256", "_sha512", "_sha3", "_blake2"))  # fmt: skip
"""The modules in which Python has all guaranteed hashes itself, from 3.12 on and before."""


def spare_unneeded() -> None:
    """Load what asks for them without OpenSSL and attrs, unless they are there already.

    asyncio takes ssl for connections that nobody here makes, rich takes attrs in order to print its objects.
    hashlib takes OpenSSL's hashes though Python has them too; SSH brings an OpenSSL of its own.
    """
    with hidden("ssl"):
        import_module("asyncio")
    with hidden("attr"):
        import_module("rich.pretty")
    if any(all(map(find_spec, modules)) for modules in OWN_HASHES):
        with hidden("_hashlib"):
            import_module("hashlib")
            import_module("hmac")


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let a module that is not loaded yet seem not to be installed; afterwards anybody may import it."""
    ours = name not in sys.modules
    if ours:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if ours:
            del sys.modules[name]
