"""The kernel's log about GPUs, memory, disks and links, sorted into kinds.

Formats: Documentation/ABI/testing/dev-kmsg; NVIDIA's Xid messages.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

from distconsole_agent.probes.programs import run_program
from distconsole_agent.system.kernel_files import boottime

KMSG = "/dev/kmsg"
MAX_RECORDS = 200_000
MAX_EVENTS = 64
MAX_TEXT = 240
MAX_SEARCHED = 1024
"""Of a record: its beginning matters, and some patterns take the square of a line's length."""
JOURNAL_LINES = 20_000

_PATTERNS = (
    ("xid", re.compile(r"NVRM: Xid \((?:PCI:)?(?P<on>[\w:.]+)\): (?P<code>\d+)")),
    ("sxid", re.compile(r"nvidia-nvswitch\d*: SXid \(PCI:(?P<on>[\w:.]+)\): (?P<code>\d+)")),
    (
        "off_bus",
        re.compile(r"NVRM: GPU (?:at )?(?:PCI:)?(?P<on>\w+(?::\w+)+).* fallen off the bus"),
    ),
    ("oom", re.compile(r"ut of memory: Killed process \d+ \((?P<on>[^)]*)\)")),
    ("nfs_back", re.compile(r"nfs: server (?P<on>\S+) OK")),
    ("nfs", re.compile(r"nfs: server (?P<on>\S+) not responding")),
    ("lustre", re.compile(r"Lustre: (?P<on>\S+?):? .*Connection to .* was lost")),
    ("neighbours", re.compile(r"neighbou?r table overflow")),
    ("conntrack", re.compile(r"nf_conntrack: .*table full, dropping packet")),
    ("syn_flood", re.compile(r"[Pp]ossible SYN flooding on port (?P<on>\S+?)\. ")),
    ("hung", re.compile(r"INFO: task (?P<on>\S+):\d+ blocked for more than \d+ seconds")),
    ("hardware", re.compile(r"\[Hardware Error\]|mce: .*Machine check|EDAC (?P<on>\S+): \d+ UE ")),
    ("pcie", re.compile(r"pcieport (?P<on>\S+): AER: .*(?:Uncorrect|Fatal)", re.IGNORECASE)),
    ("disk", re.compile(r"I/O error, dev (?P<on>\S+?),|Remounting filesystem read-only")),
    ("disk", re.compile(r"(?:EXT4-fs|BTRFS) error \(device (?P<on>[\w-]+)\)")),
    ("disk", re.compile(r"XFS \((?P<on>[\w-]+)\): .*[Ss]hut(?:ting)? ?down")),
    ("link", re.compile(r"(?P<on>[\w.]+):? (?:NIC )?[Ll]ink (?:is )?[Dd]own")),
    ("heat", re.compile(r"CPU\d+: (?:Core|Package) temperature.* above threshold")),
)
_NUMBER = re.compile(r"[0-9]{1,18}")
_MONOTONIC = re.compile(r"\[\s*(\d+\.\d+)\] (?:\S+ )?kernel: (.*)")
"""A line of ``journalctl -o short-monotonic``."""


def look(seconds: float) -> dict[str, object]:
    """Return the facts of group ``kernel``: ``source``, and ``events`` with kind, place, count, age.

    If this user may not read the log, as usual, ``source`` is empty and ``error`` has the reason.
    """
    error = ""
    try:
        descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as refused:
        records = _journal(seconds)
        source = "journal" if records else ""
        error = "" if records else f"{KMSG}: {refused.strerror}; journalctl -k: nothing"
    else:
        try:
            records = list(_kmsg(descriptor, time.monotonic() + 0.7 * seconds))
        finally:
            os.close(descriptor)
        source = "kmsg"
    events = events_of(records, boottime())
    return {"source": source, "events": events, "error": error}


def _kmsg(descriptor: int, due: float) -> Iterator[tuple[float, str]]:
    """Yield seconds since boot and text of the kernel's present messages."""
    for _ in range(MAX_RECORDS):
        try:
            record = os.read(descriptor, 8192)
        except BlockingIOError:
            return
        except BrokenPipeError:
            # The next message was overwritten meanwhile; the read after it goes on behind.
            continue
        except OSError:
            return
        if not record or time.monotonic() > due:
            return
        parsed = parse_record(record.decode("utf-8", "replace"))
        if parsed is not None:
            yield parsed


def parse_record(record: str) -> tuple[float, str] | None:
    """Return seconds since boot and text of one record of /dev/kmsg; None for one from user space."""
    head, _, text = record.partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not all(map(_NUMBER.fullmatch, (fields[0], fields[2]))):
        return None
    # The facility is above the three bits of the level: 0 is the kernel, any user may write the others.
    if int(fields[0]) >> 3:
        return None
    return int(fields[2]) / 1e6, text.split("\n", 1)[0]


def _journal(seconds: float) -> list[tuple[float, str]]:
    """Return the same from the journal; empty if that may not be read either."""
    program = shutil.which("journalctl")
    if program is None:
        return []
    options = ("-k", "-b", "-q", "--no-pager", "-o", "short-monotonic", "-n", str(JOURNAL_LINES))
    ended = run_program([program, *options], 0.7 * seconds)
    lines = map(_MONOTONIC.match, ended.out.splitlines())
    return [(float(found[1]), found[2]) for found in lines if found]


def events_of(records: list[tuple[float, str]], uptime: float) -> list[dict[str, Any]]:
    """Return the events of known kinds in ``records`` (seconds since boot, text), the latest last."""
    events: dict[tuple[str, str, str], dict[str, Any]] = {}
    for at, whole in records:
        text = whole[:MAX_SEARCHED]
        for kind, pattern in _PATTERNS:
            found = pattern.search(text)
            if found is None:
                continue
            groups = found.groupdict()
            on, code = (groups.get("on") or "")[:64], groups.get("code") or ""
            if kind == "nfs_back":
                events.pop(("nfs", on, ""), None)
                break
            event = events.pop((kind, on, code), {"count": 0})
            events[kind, on, code] = {
                "kind": kind,
                "on": on,
                "code": int(code) if code else None,
                "count": event["count"] + 1,
                "age_seconds": round(max(0.0, uptime - at), 1),
                "text": "".join(c if c.isprintable() else " " for c in text)[:MAX_TEXT],
            }
            break
    return list(events.values())[-MAX_EVENTS:]
