"""The one exception that becomes an error answer."""

from __future__ import annotations

from distconsole_agent.contract.protocol import ErrorCode


class Refusal(Exception):  # noqa: N818 - sent as an answer
    """A request that the agent refuses; ``code`` is one of ``protocol.ErrorCode``."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def as_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


def bad_request(message: str, hint: str = "") -> Refusal:
    return Refusal(ErrorCode.BAD_REQUEST, message, hint)


def start_failed(message: str, hint: str = "") -> Refusal:
    return Refusal(ErrorCode.START_FAILED, message, hint)


def storage(message: str, hint: str = "") -> Refusal:
    """Return the refusal for a folder of ours that cannot hold the data."""
    return Refusal(ErrorCode.STORAGE, message, hint)
