"""Torch's flight recorder, in each of its formats, as the last collective of each process group.

Versions 2.0 to 2.10 of the format are known, of torch 2.4 and later. An older torch dumps it pickled, a newer
one as JSON; numbers may be texts; one without ``process_group`` has ``pg_id`` alone.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
from typing import Any, cast

MAX_RECENT = 16
MAX_GROUPS = 64
MAX = 1 << 63
MAX_TENSORS, MAX_DIMENSIONS, MAX_RANKS, MAX_WORDS = 16, 16, 65536, 128

_NO_DUMP = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError),
    *(EOFError, RecursionError, MemoryError, struct.error, pickle.UnpicklingError),
)
"""Errors that reading bytes which are no valid pickle may raise."""

STATES = ("scheduled", "started", "completed")

Dump = dict[str, Any]
Collective = dict[str, Any]


class _OfPlainValues(pickle._Unpickler):
    """Takes numbers, texts and containers of them; a pickle that names anything else is refused.

    The one in Python: that in C allocates memory for any count that a pickle of 10 bytes claims.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a dump that holds {module}.{name}")


def read_dump(body: bytes) -> Dump:
    """Return a dump as the worker server gives it. Raises ValueError when it is none."""
    try:
        is_json = body[:1] == b"{"
        dump = json.loads(body) if is_json else dict(_OfPlainValues(io.BytesIO(body)).load())
    except _NO_DUMP as error:
        raise ValueError(f"no dump of the flight recorder: {error}") from None
    return cast("Dump", dump)


def is_off(dump: Dump) -> bool:
    """Return whether groups have worked and nothing of it was kept: the recorder is switched off."""
    groups = dump.get("pg_status")
    worked = [
        _number(each.get("last_enqueued_collective"))
        for each in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(each, dict)
    ]
    return not dump.get("entries") and any(seq > 0 for seq in worked)


def read_health(body: bytes) -> list[str]:
    """Return the backends that ``c10d_health_check`` calls unhealthy. Raises ValueError when ``body`` is no answer of it."""
    try:
        told = json.loads(body)["unhealthy_backends"]
    except _NO_DUMP as error:
        raise ValueError(f"no health check of torch: {error}") from None
    return [name for name in _words(told) if name.isprintable()]


def last_collectives(dump: Dump, now: float) -> list[Collective]:
    """Return the last collective of each process group, the one that was enqueued last first.

    Args:
        now: UNIX seconds.
    """
    groups: dict[str, list[Dump]] = {}
    entries = dump.get("entries")
    for entry in entries if isinstance(entries, (list, tuple)) else ():
        if isinstance(entry, dict):
            groups.setdefault(_group_of(entry)[0], []).append(entry)
    found = []
    for group, entries in groups.items():
        entries.sort(key=lambda entry: _number(entry.get("record_id")))
        found.append(_describe(group, entries, dump, now))
    found.sort(key=lambda each: -each["created_ns"])
    return found[:MAX_GROUPS]


def _describe(group: str, entries: list[Dump], dump: Dump, now: float) -> Collective:
    last = entries[-1]
    backend, _, _ = _text(last.get("profiling_name")).partition(":")
    created = _number(last.get("time_created_ns"))
    done = [_seq(each) for each in entries if _state(each) == "completed" and not _is_p2p(each)]
    return {
        "group": group,
        "name": _group_of(last)[1],
        "ranks": _ranks(dump, group),
        "backend": backend,
        **_told(last),
        "done_seq": max(done, default=-1),
        "output_sizes": _sizes(last.get("output_sizes")),
        "output_dtypes": _words(last.get("output_dtypes")),
        "created_ns": created,
        "age_s": round(max(0.0, now - created / 1e9), 3) if created else None,
        "recent": [_told(each) for each in entries[-2 : -2 - MAX_RECENT : -1]],
    }


def _told(entry: Dump) -> Collective:
    return {
        "seq": _seq(entry),
        "op": _text(entry.get("profiling_name")).partition(":")[2],
        "p2p": _is_p2p(entry),
        "state": _state(entry),
        "input_sizes": _sizes(entry.get("input_sizes")),
        "input_dtypes": _words(entry.get("input_dtypes")),
    }


def _group_of(entry: Dump) -> tuple[str, str]:
    named = entry.get("process_group")
    if isinstance(named, (list, tuple)) and named:
        return _text(named[0]), _text(named[1]) if len(named) > 1 else ""
    return str(_number(entry.get("pg_id"))), ""


def _ranks(dump: Dump, group: str) -> list[int]:
    config = dump.get("pg_config")
    told = config.get(group) if isinstance(config, dict) else None
    ranks = told.get("ranks") if isinstance(told, dict) else None
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks)
        except (ValueError, RecursionError):
            ranks = None
    listed = ranks[:MAX_RANKS] if isinstance(ranks, list) else []
    return [rank for rank in listed if _is_number(rank)]


def _is_p2p(entry: Dump) -> bool:
    return entry.get("is_p2p") is True


def _seq(entry: Dump) -> int:
    if _is_p2p(entry):
        return _number(entry.get("p2p_seq_id"))
    return _number(entry.get("collective_seq_id", entry.get("seq_id")))


def _state(entry: Dump) -> str:
    """Return one of ``STATES``. Gloo's stays scheduled, and a retired one is completed.

    With NCCL a retired one that is not completed has run into its timeout.
    """
    state = entry.get("state")
    if entry.get("retired") is True and _text(entry.get("profiling_name")).startswith("gloo:"):
        return "completed"
    return state if state in STATES else "scheduled"


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -MAX <= value < MAX


def _number(value: Any) -> int:
    if _is_number(value):
        return int(value)
    text = value if isinstance(value, str) else ""
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else -1


def _text(value: Any) -> str:
    return str(value)[:MAX_WORDS] if isinstance(value, str) or _is_number(value) else ""


def _words(value: Any) -> list[str]:
    return (
        [_text(each) for each in value[:MAX_TENSORS]] if isinstance(value, (list, tuple)) else []
    )


def _sizes(value: Any) -> list[list[int]]:
    if not isinstance(value, (list, tuple)):
        return []
    return [
        [size for size in each[:MAX_DIMENSIONS] if _is_number(size)]
        for each in value[:MAX_TENSORS]
        if isinstance(each, (list, tuple))
    ]
