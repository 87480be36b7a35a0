"""Reads an agent's lines: each is bounded, cleaned and validated here.

A line that breaks the contract (``distconsole_agent.contract.protocol``) is an ``AgentError`` that
names the fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from distconsole.errors import AgentError, NodeError, PythonError, RequestError, StorageError
from distconsole.model.decoding import threadsafe
from distconsole.rpc import frames
from distconsole.ssh.plain import plain_lines, plain_text, quote
from distconsole_agent.contract import protocol, webhook

PROTOCOL_VERSION = protocol.PROTOCOL_VERSION
MAX_LINE_BYTES = protocol.MAX_LINE_BYTES
MAX_PIECES_BYTES = protocol.MAX_PIECES_BYTES
NO_SCRIPT = protocol.ErrorCode.NO_SCRIPT
PLACEHOLDER, fill = protocol.PLACEHOLDER, protocol.fill
post, NotToldError = webhook.post, webhook.NotToldError
MAX_DEPTH = 24
"""Levels of nesting in a message; deeper is refused."""

MAX_BITS = 64
"""Of a number: a larger one is none that a node measures, and too long for arithmetic."""

RESULTS: dict[str, Any] = {
    "hello": frames.Hello,
    "ping": frames.Pong,
    "prepare": frames.Prepared,
    "runs": frames.RunsAnswer,
    "survey": frames.Survey,
    "sync": frames.Synced,
    "trace_take": frames.TracePiece,
}
"""Type of an op's result; any object if the op is missing."""

ITEMS: dict[str, Any] = {"watch": frames.SampleBody, "trace": frames.TraceItem}
"""Type of an op's items; those of ``follow`` are read by ``read_item``."""

_ITEMS = {op: msgspec.json.Decoder(threadsafe(kind)) for op, kind in ITEMS.items()}
_RAW_ANSWER = msgspec.json.Decoder(threadsafe(frames.RawAnswer))
_RAW_ENTRIES = msgspec.json.Decoder(threadsafe(frames.RawEntries))
_ENTRY: msgspec.json.Decoder[frames.JournalEntry] = msgspec.json.Decoder(
    threadsafe(frames.JournalEntry)
)
_PRINTED = msgspec.json.Decoder(threadsafe(frames.PrintedEntry))

_RAW_TEXT = {("follow", "text")}
_MANY_LINES = {"traceback", "seen", "stderr", "stdout", "output"}


def encode_request(number: int, op: str, arguments: dict[str, Any]) -> bytes:
    """Return the line that asks for ``op``; raises AgentError if it is longer than an agent accepts."""
    try:
        return protocol.encode({"id": number, "op": op, **arguments})
    except protocol.ProtocolError as error:
        raise AgentError(f"cannot ask for {op}: {error}") from None


def decode_answer(line: bytes) -> frames.Answer:
    """Return the line as an answer with an unchecked body; raises AgentError if it is none."""
    try:
        answer = None
        # Only Python's parser takes some lines, as with NaN; msgspec's errors are ValueErrors.
        with suppress(ValueError, RecursionError):
            if len(line) <= MAX_LINE_BYTES:
                answer = msgspec.json.decode(line, type=threadsafe(frames.Answer))
        answer = answer or msgspec.convert(protocol.decode(line), threadsafe(frames.Answer))
    except (protocol.ProtocolError, msgspec.ValidationError, UnicodeError) as error:
        raise AgentError(
            f"the agent sent a line that is not an answer: {error}: {quote(line)}",
            "does a background job of a start-up file print to the stdout of its shell?",
        ) from None
    if [answer.item, answer.result, answer.error].count(UNSET) != 2:
        raise AgentError(f"the agent sent neither item, result nor error: {quote(line)}")
    return answer


def find_item(line: bytes) -> tuple[int, bytes]:
    """Return the stream of a line and its item; nothing without one, or if only Python's parser takes it."""
    if len(line) <= MAX_LINE_BYTES:
        with suppress(ValueError, RecursionError):  # msgspec's own are the former
            answer = _RAW_ANSWER.decode(line)
            if not (answer.result or answer.error):
                return answer.id, bytes(answer.item)
    return 0, b""


def read_item(op: str, item: bytes, *, plain: bool) -> Any:
    """Return an item of ``op`` as ``check_item`` does; a ``plain`` one needs no cleaning."""
    typed = op in _ITEMS and plain
    try:
        if op == "follow":
            told = _RAW_ENTRIES.decode(item)
            return _join_entries(told, map(bytes, told.entries), partial(_read_entry, plain=plain))
        read = _ITEMS[op].decode(item) if typed else msgspec.json.decode(item)
    except (ValueError, RecursionError) as error:
        raise AgentError(f"the agent's item of {op} is not as agreed: {error}") from None
    return read if typed else check_item(op, read)


T = TypeVar("T")


def _join_entries(
    told: frames.JournalNews,
    entries: Iterable[T],
    read: Callable[[T], tuple[frames.JournalEntry, bytes]],
) -> frames.Entries:
    sound, unread = [], 0
    for each in entries:
        try:
            sound.append(read(each))
        except (ValueError, RecursionError, AgentError):
            unread += 1
    return frames.Entries(
        entries=tuple(entry for entry, _ in sound),
        bodies=tuple(body for _, body in sound),
        trouble=told.trouble,
        journal=plain_text(told.journal),
        after=told.after,
        unread=unread,
    )


def _read_entry(body: bytes, *, plain: bool) -> tuple[frames.JournalEntry, bytes]:
    with suppress(ValueError, RecursionError):
        entry = _ENTRY.decode(body)
        if plain or is_plain(body):
            return entry, body
        if isinstance(entry, frames.LogEntry) and entry.stream.isprintable():
            _PRINTED.decode(body)  # it has no other text that needs cleaning
            return entry, body
    return _clean_entry(json.loads(body))


def _clean_entry(body: Any) -> tuple[frames.JournalEntry, bytes]:
    """Return an entry as a value and as JSON, its texts cleaned; raises AgentError or ValidationError if it is none."""
    cleaned = _clean("follow", body, depth=2)
    entry: frames.JournalEntry = msgspec.convert(cleaned, threadsafe(frames.JournalEntry))
    return entry, encode_entry(cleaned)


def encode_entry(body: dict[str, Any]) -> bytes:
    """Return an entry as it is stored: the JSON that the node sent, NaN included."""
    return json.dumps(body, separators=(",", ":")).encode()


def is_plain(line: bytes) -> bool:
    """Whether no text in a line of JSON needs cleaning: such characters are escapes, or not ASCII."""
    return line.isascii() and b"\\" not in line and b"\x7f" not in line


def check_result(op: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of ``op`` with its texts cleaned; raises AgentError if it is none."""
    if "cancelled" in result:
        return {"cancelled": bool(result["cancelled"])}
    cleaned: dict[str, Any] = _clean(op, result)
    if op in RESULTS:
        decode_as(cleaned, RESULTS[op], f"result of {op}")
    return cleaned


def check_item(op: str, item: Any) -> Any:
    """Return an item of ``op`` in its type of ``ITEMS``, its texts cleaned; raises AgentError if it is none.

    One of ``follow`` is ``Entries``, without those that cannot be read: asked again, they are the same.
    """
    if op != "follow":
        cleaned = _clean(op, item)
        return decode_as(cleaned, ITEMS[op], f"item of {op}") if op in ITEMS else cleaned
    told = decode_as(item, frames.JournalNews, "item of follow")
    entries = item.get("entries")
    if not isinstance(entries, list) or len(entries) > frames.MAX_ENTRIES:
        raise AgentError("the agent's item of follow is not as agreed: it has no list of entries")
    return _join_entries(told, entries, _clean_entry)


def decode_as(value: Any, kind: type[T], what: str = "answer") -> T:
    """Return a checked dictionary as ``kind`` (``Hello``, …); raises AgentError if it is none."""
    try:
        return msgspec.convert(value, threadsafe(kind))
    except (msgspec.ValidationError, UnicodeError) as error:
        raise AgentError(f"the agent's {what} is not as agreed: {error}") from None


def refusal(error: dict[str, Any]) -> NodeError:
    try:
        said = msgspec.convert(_clean("", error), threadsafe(frames.Refused))
    except (msgspec.ValidationError, AgentError) as problem:
        return AgentError(f"the agent refused in a way that is not agreed: {problem}")
    return RequestError(said.message, said.hint, code=said.code)


def start_refusal(line: bytes) -> NodeError | None:
    """Return the exception for the line that a bridge prints when it cannot serve; None if it is no such line."""
    try:
        error = protocol.decode(line).get("error")
        said = msgspec.convert(_clean("", error), threadsafe(frames.Refused))
    except (protocol.ProtocolError, msgspec.ValidationError, AgentError):
        return None
    match said.code:
        case protocol.ErrorCode.STORAGE:
            return StorageError(said.message, said.hint)
        case "python":
            return PythonError(said.message, said.hint)
        case _:
            return AgentError(said.message, said.hint)


def _clean(op: str, value: Any, depth: int = 0, clean: Callable[[str], str] = plain_text) -> Any:
    if depth > MAX_DEPTH:
        raise AgentError(f"the agent's answer is nested deeper than {MAX_DEPTH} levels")
    match value:
        case str():
            return clean(value)
        case dict():
            return {
                plain_text(key): inner
                if (op, key) in _RAW_TEXT and isinstance(inner, str)
                else _clean(
                    op, inner, depth + 1, plain_lines if key in _MANY_LINES else plain_text
                )
                for key, inner in value.items()
            }
        case list():
            return [_clean(op, inner, depth + 1, clean) for inner in value]
        case int() if value.bit_length() > MAX_BITS:
            raise AgentError(f"the agent's answer has a number of {value.bit_length()} bits")
        case float() if op != "follow" and abs(value) > 2.0**MAX_BITS:  # a metric may be anything
            raise AgentError(f"the agent's answer has the number {value:g}")
        case _:
            return value
