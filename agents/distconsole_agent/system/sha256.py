"""SHA-256 of what is small. ``hashlib`` loads OpenSSL, 3.6 MB that an agent would hold all its life; code that is
brought here, of any size, is hashed by it (``node_folder.sync``)."""

from __future__ import annotations

from typing import Any, Callable

try:
    from _sha256 import sha256 as _sha256  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    try:
        from _sha2 import sha256 as _sha256  # type: ignore[import-not-found,no-redef,unused-ignore]
    except ImportError:  # another Python than CPython
        from hashlib import sha256 as _sha256

sha256: Callable[[bytes], Any] = _sha256
"""As ``hashlib.sha256``."""
