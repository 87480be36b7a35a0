"""The arguments of a probe, read by the annotations of its function, and its errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, TypeVar

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
MAX_TEXTS, MAX_CHARS = 512, 4 * 1024 * 1024
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

Arguments = Mapping[str, object]
T = TypeVar("T")


class Shell(NamedTuple):
    """How the node's shell starts the ranks' interpreter: ``python``, None for the usual one, after ``setup``.

    ``env`` and ``unset`` are the launch's changes of the environment, ``workdir`` its working folder.
    """

    python: str | None = None
    setup: str | None = None
    container: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = {}
    unset: Sequence[str] = ()


def read_arguments(probe: Callable[..., object], args: Arguments) -> dict[str, object]:
    """Return the keyword arguments of ``probe`` that ``args`` has, each as it is annotated there.

    Raises ProbeError for one that is missing, too long or of another type.
    """
    code, defaults = probe.__code__, probe.__kwdefaults__ or {}
    names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    return {
        name: _READERS[probe.__annotations__[name]](args, name)
        for name in names
        if name in args or name not in defaults
    }


def text(args: Arguments, name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value:
        raise bad_arguments(f"{name} is not a text")
    return value


def number(args: Arguments, name: str) -> float:
    value = args.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise bad_arguments(f"{name} is not a number")
    return value


def whole(args: Arguments, name: str, default: int, lowest: int, highest: int) -> int:
    """Return a whole number moved into its bounds."""
    return int(bounded(number({name: default, **args}, name), lowest, highest))


def bounded(value: float, lowest: float, highest: float) -> float:
    return min(max(value, lowest), highest)


def _optional_text(args: Arguments, name: str) -> str | None:
    return None if args.get(name) in (None, "") else text(args, name)


def items(args: Arguments, name: str) -> list[Any]:
    value = args.get(name)
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise bad_arguments(f"{name} is not a list")
    return value


def _each(read: Callable[[Arguments, str], T]) -> Callable[[Arguments, str], list[T]]:
    return lambda args, name: [read({name: item}, name) for item in items(args, name)]


def _object(args: Arguments, name: str) -> Arguments:
    value = args.get(name)
    if not isinstance(value, dict):
        raise bad_arguments(f"{name} is not an object")
    return value


def _texts_by_name(args: Arguments, name: str) -> dict[str, str]:
    given = _object(args, name)
    texts = {each: value for each, value in given.items() if isinstance(value, str)}
    if (
        len(texts) < len(given)
        or len(texts) > MAX_TEXTS
        or sum(map(len, texts.values())) > MAX_CHARS
    ):
        raise bad_arguments(f"{name} is not an object of texts")
    return texts


def _variables(args: Arguments, name: str) -> dict[str, str]:
    given = _texts_by_name(args, name)
    for variable in given:
        if not NAME.match(variable):
            raise bad_arguments(f"{name} has {variable[:64]!r}, which is no variable")
    return given


def _secret(args: Arguments, name: str) -> bytes:
    """Return the shared secret, at least 32 hexadecimal digits."""
    try:
        key = bytes.fromhex(text(args, name))
    except ValueError:
        raise bad_arguments("the secret is not hexadecimal") from None
    if not 16 <= len(key) <= 64:
        raise bad_arguments("the secret has the wrong length")
    return key


_READERS: dict[str, Callable[[Arguments, str], object]] = {
    "str": text,
    "str | None": _optional_text,
    "bool": lambda args, name: args.get(name) is True,
    "int": lambda args, name: int(number(args, name)),
    "float": number,
    "float | None": number,
    "bytes": _secret,
    "Sequence[str]": _each(text),
    "Sequence[int]": _each(lambda args, name: int(number(args, name))),
    "Sequence[Arguments]": _each(_object),
    "Mapping[str, str]": _variables,
    "Mapping[str, str] | None": lambda args, name: (
        None if args.get(name) is None else _texts_by_name(args, name)
    ),
    "Shell": lambda args, _: _read_shell(args),
}
"""By annotation."""


def _read_shell(args: Arguments) -> Shell:
    python, setup, container, workdir = (_optional_text(args, name) for name in Shell._fields[:4])
    unset = _each(text)({"unset": [], **args}, "unset")
    env = _variables({"env": {}, **args}, "env")
    return Shell(python, setup, container, workdir, env, unset)
