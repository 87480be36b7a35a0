"""The one exception that becomes an error answer."""

from __future__ import annotations

from typing import Any

from distconsole_agent.contract.limits import CALL_SECONDS, MAX_CALL_SECONDS, MIN_CALL_SECONDS
from distconsole_agent.contract.protocol import ErrorCode


class Refusal(Exception):  # noqa: N818 - an answer, mostly without an error
    """A request that is not done; ``code`` is one of ``protocol.ErrorCode``."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def as_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


def bad_request(message: str, hint: str = "") -> Refusal:
    return Refusal(ErrorCode.BAD_REQUEST, message, hint)


def storage(message: str, hint: str = "") -> Refusal:
    """Return the refusal for a folder of ours that cannot hold the data."""
    return Refusal(ErrorCode.STORAGE, message, hint)


def read_number(value: object, key: str) -> float:
    """Return ``value`` as a number that a request may have, or raise Refusal (``bad_request``)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise bad_request(f"{key} is a number")
    try:
        return float(value)
    except OverflowError:
        raise bad_request(f"{key} is a number that nobody means") from None


def read_call_seconds(request: dict[str, Any]) -> float:
    """Return each rank's deadline in a roll call, within its bounds. Raises Refusal (``bad_request``)."""
    given = request.get("seconds")
    seconds = CALL_SECONDS if given is None else read_number(given, "seconds")
    return min(max(seconds, MIN_CALL_SECONDS), MAX_CALL_SECONDS)


def read_text(request: dict[str, Any], key: str) -> str:
    """Return the text under ``key``. Raises Refusal (``bad_request``) without one."""
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise bad_request(f"{key} is missing")
    return value
