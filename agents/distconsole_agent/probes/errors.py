"""The errors of probes."""

from __future__ import annotations

from distconsole_agent.contract.protocol import ErrorCode


class ProbeError(Exception):
    """A probe could not look: ``code`` is one of ``protocol.ErrorCode``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def bad_arguments(message: str) -> ProbeError:
    return ProbeError(ErrorCode.BAD_REQUEST, message)


def probe_timeout(message: str) -> ProbeError:
    return ProbeError(ErrorCode.TIMED_OUT, message)


def probe_failure(message: str) -> ProbeError:
    return ProbeError(ErrorCode.PROBE_FAILED, message)
