"""The ring that a rank writes and the agent reads: its layout in bytes, and nothing that runs.

One file a process, mapped by both sides, little-endian throughout, one writer, no lock::

    0      header         HEADER (see below), written once, except the fields named live
    1024   name table     MAX_NAMES x NAME_BYTES, UTF-8, zero-padded; an entry never changes
    4096   records        capacity x RECORD.size

``OFFSET_WANTED`` is the one byte that the agent writes: a trace is wanted (``torch_hook.tracing``).

The record with index ``i`` (from 0) lies in slot ``i % capacity`` and carries ``sequence = i + 1``;
the writer stores the record and then ``written = i + 1`` in the header. A reader that wants index
``i`` takes the slot and accepts it only if its sequence is ``i + 1`` before and after the copy; if
it is larger the record was overwritten and counts as dropped.

Record kinds:

``STEP``    one training step ended: ``step`` counts from 0 in this process, ``time_ns`` is
            CLOCK_MONOTONIC at its end, ``a..e`` are step, data, forward, backward and optimizer
            seconds (NaN if unknown), ``value`` the loss (NaN if not in this record), ``samples`` the
            samples of the step (0 if unknown), ``flags`` SKIPPED and MICRO as below.
``METRIC``  ``report(name=value)``: ``name`` indexes the name table, ``step``, ``value``,
            ``samples`` its weight (0 if unknown).
``PHASE``   a start-up phase was reached: ``name`` indexes PHASES. Of ``rendezvous`` and
            ``init_process_group`` it has ``samples``, the world size that the process asks for and
            that its group has (0 if unknown), and ``value``, its rank there (NaN if unknown);
            ``flags`` of ``first_step`` may be ALONE.
``LOSS``    the loss of a step whose own record lacks it, because its value arrived late from
            a device, or because it is NaN: ``step``, ``value``. A NaN here is the loss.
``DETAIL``  a part of the check of ``step`` (a ``WORDS`` record): eight checksums of 32 bits, two in
            a word, the lower one first; ``name`` counts the step's details from 0.
``CHECK``   the check of ``step`` (a ``WORDS`` record), after its details: ``name`` is how many there
            were; ``samples`` the number of checksums in them, plus 65,536 times the place among them,
            from 1, of the first gradient that is not finite (0: none was seen); ``flags``: the parts
            present. The words are the checksums of parameters, optimizer state and batch, and
            ``PLACE``: the process, and the processes it may be compared with.
``WAIT``    the part of ``step`` that this rank waited for other ranks, as far as measured: written
            before the step's own record, with its ``time_ns``; ``a..e`` are seconds within all of
            the step, and within its data, forward, backward and optimizer. There is none if
            the process has no group, or makes its steps without torch. ``samples`` are the milliseconds
            between two steps with one, if the cost of measuring makes them rarer than usual.
``BATCH``   a batch of a DataLoader is over of which no step came, in a process that has made no step
            yet: as ``STEP``, ``step`` counts batches, ``c`` is all after the fetch.
``TIMES``   as ``STEP``, of an ordinary step of less than four seconds, with when its parts began and
            ended in place of how long they took: the lower 32 bits of CLOCK_MONOTONIC in nanoseconds at the end of the
            step before, as the batch was asked for, as it came, as backward began, as it ended, and
            as the optimizer began, which ended at ``time_ns``.
"""

from __future__ import annotations

import struct

MAGIC = b"DCRING2\n"
OLDER_MAGIC = b"DCRING1\n"
"""Of rings without ``TIMES``, which a job that began before an update still writes."""
HEADER_BYTES = 1024
NAMES_OFFSET = 1024
RECORDS_OFFSET = 4096
NAME_BYTES = 48
MAX_NAMES = 64

HEADER = struct.Struct("<8s IIII i i i I q q q q q i i 64s")
"""magic, record bytes, capacity, attempt, pid, rank, local rank, world size, names used,
written, guard errors, started time_ns (UNIX), started monotonic_ns, run's hash, parent pid,
flags, title. Live fields: rank, local rank, world size, names used, written, guard errors, flags.
``rank`` is -1 until it is known. ``attempt`` is that of ``ENV_ATTEMPT``, 0 without it."""

OFFSET_RANK = 24
OFFSET_LOCAL_RANK = 28
OFFSET_WORLD_SIZE = 32
OFFSET_NAMES_USED = 36
OFFSET_WRITTEN = 40
OFFSET_GUARD_ERRORS = 48
OFFSET_FLAGS = 84
"""Byte offsets of the live fields in the header."""

OFFSET_WANTED = 1016
"""A byte of the header, by the agent: how many traces were asked of this process, modulo 256."""

RECORD = struct.Struct("<Q Q q B B H I f f f f f 4x d")
"""sequence, step, time_ns, kind, flags, name, samples, a, b, c, d, e, value: 64 bytes."""

MOMENTS = struct.Struct("<Q Q q B B H I 6I d")
"""The record of the kind ``TIMES``: as RECORD, with six moments for a..e."""

WORDS = struct.Struct("<Q Q q B B H I 4Q")
"""The record of the kinds ``DETAIL`` and ``CHECK``: as RECORD, with four words for a..value."""

PLACE = struct.Struct("<H H I")
"""The last word of a ``CHECK``: rank and world size of ``torch.distributed`` or Horovod (``NOWHERE``
without either), and a checksum of the parameters' names, shapes and types and of the group that has
replicas of them: only equal ones may be compared."""

NOWHERE = 0xFFFF

DEFAULT_CAPACITY = 16384
"""Records in a ring (1 MiB): 27 minutes at 10 steps a second, 16 seconds at 1,000."""

STEP, METRIC, PHASE, LOSS, DETAIL, CHECK, WAIT, BATCH, TIMES = 1, 2, 3, 4, 5, 6, 7, 8, 9

SKIPPED = 1
"""The optimizer did not run in this step (a GradScaler found infinities)."""
MICRO = 2
"""More than one backward ran in this step (gradient accumulation, several losses)."""

HAS_PARAMETERS, HAS_STATE, HAS_BATCH = 1, 2, 4
"""Flags of a ``CHECK``: which of its words hold a checksum."""
SAME_EPOCH = 8
"""A DistributedSampler that shuffles began two passes with the same epoch."""
WRAPPED = 16
"""The parameters are those of a module that keeps its replicas equal (DistributedDataParallel)."""

HEADER_FINISHED = 1
"""Header flag: the process went through its exit handlers."""
HEADER_CHILD = 2
"""Header flag: another Python process of the run forked the process, or started it by multiprocessing."""

PHASES = ("interpreter", "import_torch", "init_process_group", "first_step", "rendezvous")
"""``rendezvous``: the process asks for its process group, and waits for the others."""

ALONE = 1
"""Flag of the PHASE ``first_step``: the step was made without ``torch.distributed``, Horovod or MPI."""

LOSS_NAME = "loss"
"""The metric that the hook's own loss is shown as; a reported metric of this name replaces it."""

SAMPLES_NAME = "samples"
"""No metric: the samples of a step, if the script reports them and nothing else."""

RING_SUFFIX = ".ring"
"""A ring is ``<pid>-<start>.ring`` in the folder of ``ENV_RINGS``."""

CHECKED_SUFFIX = ".checked"
"""Beside a ring with checks: a JSON list of the names of its details."""
MAX_CHECKED = 256
"""Checksums in the details of one step; of more parameters, neighbours share one."""
MAX_CHECKED_BYTES = 64 * 1024

WANTED_SUFFIX = ".wanted"
"""Beside a ring: the trace that is wanted, ``{"start_ns", "give_up_ns", "seconds", "path"}``, in UNIX time;
torch's profiler writes it to ``path``, in a folder that is the user's alone."""
TOLD_SUFFIX = ".told"
"""Behind that path, once all is over: ``{"wanted", "began_ns", "ended_ns", "written_ns", "first_step",
"last_step", "error"}``."""

ENV_RUN = "DISTCONSOLE_RUN"
"""The run's id. Leftovers are recognised by ``DISTCONSOLE_RUN_DIR``, the run's folder on the node."""
ENV_RINGS = "DISTCONSOLE_RINGS"
ENV_ERRORS = "DISTCONSOLE_ERRORS"
"""Where ``<pid>.json`` goes with the first uncaught exception: ``{"pid", "rank", "time_ns",
"type", "message", "traceback"}``, written aside and renamed."""
ENV_HOOK = "DISTCONSOLE_HOOK"
"""The folder on PYTHONPATH that holds our ``sitecustomize``; "0" switches the hook off."""

ENV_ATTEMPT = "DISTCONSOLE_ATTEMPT"
"""Number of the run's attempt, from 1: ranks may be restarted. A clock, which may be set in between,
would not show it."""

ENV_ROLL_CALL = "DISTCONSOLE_ROLL_CALL"
""""0": no server for roll calls is started in a rank."""

SERVER_SUFFIX = ".server"
"""Beside a ring: the socket of torch's worker server, if the rank has one."""

ENV_VERIFY = "DISTCONSOLE_VERIFY"
"""Every how many steps a rank checks itself (``run --verify-sync``); without it none does."""

MAX_ERROR_BYTES = 64 * 1024
"""Longest error file; a longer traceback keeps its end."""

MAX_SAMPLES = 0xFFFFFFFF
"""Most samples that a record can hold; more are unknown."""

assert RECORD.size == MOMENTS.size == WORDS.size == 64
assert HEADER.size <= HEADER_BYTES
