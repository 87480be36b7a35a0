"""The ring that a rank writes and the agent reads: its layout in bytes, and nothing that runs.

One file a process, mapped by both sides, little-endian throughout, one writer, no lock::

    0      header         HEADER (see below), written once, except the fields named live
    1024   name table     MAX_NAMES x NAME_BYTES, UTF-8, zero-padded; an entry never changes
    4096   records        capacity x RECORD.size

The record with index ``i`` (from 0) lies in slot ``i % capacity`` and carries ``sequence = i + 1``;
the writer stores the record and then ``written = i + 1`` in the header. A reader that wants index
``i`` takes the slot and accepts it only if its sequence is ``i + 1`` before and after the copy; if
it is larger the record was overwritten and counts as dropped.

Record kinds:

``STEP``    one training step ended: ``step`` counts from 0 in this process, ``time_ns`` is
            CLOCK_MONOTONIC at its end, ``a..e`` are step, data, forward, backward and optimizer
            seconds (NaN where unknown), ``value`` the loss (NaN where the record does not say it), ``samples`` the
            samples of the step (0 where unknown), ``flags`` SKIPPED and MICRO as below.
``METRIC``  ``report(name=value)``: ``name`` indexes the name table, ``step``, ``value``,
            ``samples`` its weight (0 where unknown).
``PHASE``   a start-up phase was reached: ``name`` indexes PHASES.
``LOSS``    the loss of a step whose own record does not say it, because its value arrived late from
            a device, or because it is NaN: ``step``, ``value``. A NaN here is the loss.
"""

from __future__ import annotations

import struct

MAGIC = b"DCRING1\n"
HEADER_BYTES = 1024
NAMES_OFFSET = 1024
RECORDS_OFFSET = 4096
NAME_BYTES = 48
MAX_NAMES = 64

HEADER = struct.Struct("<8s IIII i i i I q q q q q i i 64s")
"""magic, record bytes, capacity, reserved, pid, rank, local rank, world size, names used,
written, guard errors, started time_ns (UNIX), started monotonic_ns, run's hash, parent pid,
flags, title. Live fields: rank, local rank, world size, names used, written, guard errors, flags.
``rank`` is -1 until it is known."""

HEADER_FIELDS = (
    "magic",
    "record_bytes",
    "capacity",
    "reserved",
    "pid",
    "rank",
    "local_rank",
    "world_size",
    "names_used",
    "written",
    "guard_errors",
    "started_time_ns",
    "started_monotonic_ns",
    "run_hash",
    "parent_pid",
    "flags",
    "title",
)

OFFSET_RANK = 24
OFFSET_LOCAL_RANK = 28
OFFSET_WORLD_SIZE = 32
OFFSET_NAMES_USED = 36
OFFSET_WRITTEN = 40
OFFSET_GUARD_ERRORS = 48
OFFSET_FLAGS = 84
"""Byte offsets of the live fields in the header."""

RECORD = struct.Struct("<Q Q q B B H I f f f f f 4x d")
"""sequence, step, time_ns, kind, flags, name, samples, a, b, c, d, e, value: 64 bytes."""

DEFAULT_CAPACITY = 16384
"""Records in a ring (1 MiB): 27 minutes at 10 steps a second, 16 seconds at 1,000."""

STEP, METRIC, PHASE, LOSS = 1, 2, 3, 4

SKIPPED = 1
"""The optimizer did not run in this step (a GradScaler found infinities)."""
MICRO = 2
"""More than one backward ran in this step (gradient accumulation, several losses)."""

HEADER_FINISHED = 1
"""Header flag: the process went through its exit handlers."""

PHASES = ("interpreter", "import_torch", "init_process_group", "first_step")

LOSS_NAME = "loss"
"""The metric that the hook's own loss is shown as; a reported metric of this name replaces it."""

RING_SUFFIX = ".ring"
"""A ring is ``<pid>-<start>.ring`` in the folder of ``ENV_RINGS``."""

ENV_RUN = "DISTCONSOLE_RUN"
"""The run's id. Leftovers are recognised by ``DISTCONSOLE_RUN_DIR``, the run's folder on the node."""
ENV_RINGS = "DISTCONSOLE_RINGS"
"""Where rings go."""
ENV_ERRORS = "DISTCONSOLE_ERRORS"
"""Where ``<pid>.json`` goes with the first uncaught exception: ``{"pid", "rank", "time_ns",
"type", "message", "traceback"}``, written aside and renamed."""
ENV_HOOK = "DISTCONSOLE_HOOK"
"""The folder on PYTHONPATH that holds our ``sitecustomize``; "0" switches the hook off."""

MAX_ERROR_BYTES = 64 * 1024
"""Longest error file; a longer traceback keeps its end."""

assert RECORD.size == 64
assert HEADER.size <= HEADER_BYTES
