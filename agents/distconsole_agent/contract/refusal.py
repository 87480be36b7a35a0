"""The one exception that becomes an error answer."""

from __future__ import annotations

from distconsole_agent.contract.protocol import ErrorCode


class Refusal(Exception):  # noqa: N818 - it is an answer, and most are nobody's error
    """A request that is not done.

    Args:
        code: One of ``protocol.ErrorCode``.
        message: What went wrong, in one line.
        hint: What to do about it; empty when there is nothing to say.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def as_json(self) -> dict[str, str]:
        """Return the ``error`` object of an answer."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


def bad_request(message: str, hint: str = "") -> Refusal:
    """Return the refusal of a request whose arguments mean nothing."""
    return Refusal(ErrorCode.BAD_REQUEST, message, hint)


def storage(message: str, hint: str = "") -> Refusal:
    """Return the refusal of what a folder of ours cannot hold."""
    return Refusal(ErrorCode.STORAGE, message, hint)
