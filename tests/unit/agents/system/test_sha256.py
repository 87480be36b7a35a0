"""Digests without OpenSSL are those that it makes."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from distconsole_agent.system.sha256 import DIGEST_BYTES, equal_digests, hmac_sha256, sha256


@pytest.mark.parametrize("key_bytes", [0, 1, 32, 63, 64, 65, 200])
@pytest.mark.parametrize("text_bytes", [0, 1, 64, 1000])
def test_digests_are_those_of_openssl(key_bytes: int, text_bytes: int) -> None:
    key, text = bytes(range(200))[:key_bytes], b"\xff\x00a" * text_bytes
    assert sha256(text).digest() == hashlib.sha256(text).digest()
    assert hmac_sha256(key, text) == hmac.digest(key, text, "sha256")


def test_digests_are_equal_only_where_every_byte_is() -> None:
    digest = sha256(b"a").digest()
    assert len(digest) == DIGEST_BYTES
    assert equal_digests(digest, sha256(b"a").digest())
    assert not equal_digests(digest, digest[:-1] + b"\0")
    assert not equal_digests(digest, digest[:-1])
