"""SHA-256 of small data. ``hashlib`` and ``hmac`` load OpenSSL, 3.6 MB that an agent would hold all its life; code
that is brought here, of any size, is hashed by it (``node_folder.sync``)."""

from __future__ import annotations

from _operator import _compare_digest as equal_digests
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

__all__ = ["DIGEST_BYTES", "equal_digests", "hmac_sha256", "sha256"]

BLOCK_BYTES, DIGEST_BYTES = 64, 32
_INNER, _OUTER = (
    bytes(byte ^ 0x36 for byte in range(256)),
    bytes(byte ^ 0x5C for byte in range(256)),
)


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    key = (sha256(key).digest() if len(key) > BLOCK_BYTES else key).ljust(BLOCK_BYTES, b"\0")
    inner = sha256(key.translate(_INNER) + message).digest()
    return bytes(sha256(key.translate(_OUTER) + inner).digest())
