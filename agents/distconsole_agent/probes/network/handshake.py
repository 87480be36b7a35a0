"""How two probes prove to each other that the same console sent them; it opens no socket.

Listener to connector ``HELLO nonce``; connector to listener ``nonce proof``; listener to connector
``proof`` and the connector's address as seen there. A proof is HMAC-SHA256 over both nonces, the role
and the intended port, so that a port forwarded elsewhere does not pass for the intended one.
"""

from __future__ import annotations

import struct

from distconsole_agent.system.sha256 import DIGEST_BYTES, hmac_sha256

HELLO = b"distconsole-probe 1\n"
NONCE_BYTES = 16
PROOF_BYTES = DIGEST_BYTES
SEEN_BYTES = 64
"""The connector's address as the listener saw it, padded with zeros."""

GREETING_BYTES = len(HELLO) + NONCE_BYTES
CLAIM_BYTES = NONCE_BYTES + PROOF_BYTES
ANSWER_BYTES = PROOF_BYTES + SEEN_BYTES

PING, BULK, STREAM = b"p", b"b", b"s"
"""After the handshake: a ping is echoed; of a bulk all bytes are awaited and one is sent back; a
stream is counted for the seconds in its STREAM_HEAD and answered by a COUNT: bytes still in buffers
then are dropped, so that a slow link costs no more time than a fast one."""

STREAM_HEAD = struct.Struct("<d")
COUNT = struct.Struct("<Qd")
"""Bytes received, and the seconds from the first of them to the last."""

BULK_BYTES = 32 * 1024
"""More than three jumbo frames, and less than any send buffer: it never needs a second call."""


def proof(secret: bytes, role: bytes, greeting: bytes, nonce: bytes, port: int) -> bytes:
    message = b"\0".join((role, greeting, nonce, str(port).encode()))
    return hmac_sha256(secret, message)
