"""The arguments of a probe, typed and bounded, and its errors."""

from __future__ import annotations

from typing import Any

from distconsole_agent.contract.protocol import ErrorCode


class ProbeError(Exception):
    """A probe could not look: ``code`` is one of ``protocol.ErrorCode``, ``hint`` a remedy, if known."""

    hint = ""

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


MAX_TEXT = 4096
MAX_ITEMS = 20_000

Arguments = dict[str, Any]


def text(args: Arguments, name: str, default: str | None = None) -> str:
    """Return a string argument; raises ProbeError if it is missing, too long, or not a string."""
    value = args.get(name, default)
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value:
        raise bad_arguments(f"{name} is not a text")
    return value


def optional_text(args: Arguments, name: str) -> str | None:
    return None if args.get(name) in (None, "") else text(args, name)


def number(args: Arguments, name: str, default: float, lowest: float, highest: float) -> float:
    """Return a number moved into its bounds; raises ProbeError if it is not a number."""
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise bad_arguments(f"{name} is not a number")
    return min(max(value, lowest), highest)


def whole(args: Arguments, name: str, default: int, lowest: int, highest: int) -> int:
    return int(number(args, name, default, lowest, highest))


def items(args: Arguments, name: str) -> list[Any]:
    """Return a list, empty if missing; raises ProbeError if it is not one, or too long."""
    value = args.get(name, [])
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise bad_arguments(f"{name} is not a list")
    return value


def texts(args: Arguments, name: str) -> list[str]:
    found = items(args, name)
    if not all(isinstance(item, str) and len(item) <= MAX_TEXT for item in found):
        raise bad_arguments(f"{name} is not a list of texts")
    return found


def secret(args: Arguments) -> bytes:
    """Return the shared secret, at least 32 hexadecimal digits; raises ProbeError if it is anything else."""
    try:
        key = bytes.fromhex(text(args, "secret"))
    except ValueError:
        raise bad_arguments("the secret is not hexadecimal") from None
    if not 16 <= len(key) <= 64:
        raise bad_arguments("the secret has the wrong length")
    return key
