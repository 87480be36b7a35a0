"""Every bound and pace of the agent in one place."""

from __future__ import annotations

MAX_CONNECTIONS = 64
"""Bridges at the same time; a further one gets ``too_many`` and is closed."""

MAX_REQUESTS = 64
"""Unanswered requests of one connection, streams included."""

MAX_THREADS = 192
"""Threads that answer requests, over all connections."""

MAX_ACTIVE_RUNS = 64
"""Runs that are not over; each has a thread and a few descriptors."""

IDLE_SECONDS = 600.0
"""The agent leaves after this long without a connection and without an active run."""

COMPILE_AFTER_SECONDS = 1.0
"""Seconds after the agent's start, which a console waits for, until the program is compiled."""

FREED_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_MMAP_THRESHOLD_": "65536",
}
"""mallopt(3): the agent gives freed memory back. After floods of 1.2 million lines it held 15 MB of its own with them,
25 MB without. Programs that it starts do not inherit them."""

CONNECT_SECONDS = 15.0
"""How long a bridge waits for an agent that it started."""

SEND_SECONDS = 900.0
"""A connection that takes no byte for this long is given up, so that its threads come back."""

TICK_SECONDS, QUIET_TICK_SECONDS = 0.1, 0.2
"""Pace at which a run's sources are read: output and ends of ranks are in the journal this much later. The
slower one is that of a run that has printed nothing for ``QUIET_SECONDS``."""

QUIET_SECONDS = 2.0

WINDOW_SECONDS = 1.0

MIN_WATCH_SECONDS, MAX_WATCH_SECONDS = 0.2, 60.0
"""Bounds of the interval that ``watch`` may ask for."""

SEGMENT_BYTES = 8 * 1024 * 1024
"""A journal segment is closed, and compressed, once it is longer."""

READ_BYTES = 256 * 1024
"""How much of a journal or ring is in memory at a time, per reader."""

ITEM_BYTES = 1024 * 1024
"""An item of ``follow`` is sent once it is longer, however few its entries."""

LOG_SLICE_BYTES = 64 * 1024
"""Longest slice of a log file in one entry; never more characters than ``MAX_LOG_TEXT``."""

LOG_SLICES_PER_TICK = 256
"""Slices of one log file that one batch may take, so that a flood does not starve the rest."""

LOG_COST_PER_SECOND, LOG_COST_AT_ONCE = 2 * 1024 * 1024, 8 * 1024 * 1024
"""How much of a node's logs goes into the journal, so that steps, metrics and states, which come behind
it, are never late. A line costs its bytes and ``LOG_LINE_COST``: consoles take 20,000 of 40 bytes a second."""

LOG_LINE_COST = 64

FLOOD_BYTES = 4 * 1024 * 1024
"""A log that is so far behind is a flood, and its rank is named; its end does not wait for it either."""

LAST_LOG_BYTES = 32 * 1024 * 1024
"""Bytes at the end of a log that are sent when a run is over; the part before stays on the node, counted."""

LATE_SECONDS, LAST_UNCUT_BYTES = 2.0, 1024 * 1024
"""Printed text that would be sent this late is left out, unless it is in this many last bytes of a log:
over a slow connection only lines are late, not steps and states."""

PARTIAL_LINE_SECONDS = 1.0
"""A line without an end is passed on after this long without news."""

MAX_LINE_OF_SHIM = 256 * 1024
"""Longest line of ``shim.jsonl`` that is believed; a longer one is skipped."""

MAX_RINGS = 1024
"""Rings of one run on this node."""

MAX_RING_CAPACITY = 1 << 20
"""Records of a ring whose header we believe (64 MiB)."""

RING_SCAN_SECONDS = 1.0

STALL_SECONDS, STALL_STEPS, STALL_PAUSES = 30.0, 10.0, 1.2
"""A rank has stalled after this long, this many of its median steps, and this many of its longest pauses before, without a step."""

CALL_SECONDS, MIN_CALL_SECONDS, MAX_CALL_SECONDS = 1.5, 0.1, 30.0
"""A rank's default deadline in a roll call, and its bounds."""

MEET_SECONDS = 30.0
"""Ranks that wait this long for the others of their process group are called, too."""

LEFT_BEHIND_SECONDS, LONG_START_SECONDS = 10.0, 60.0
"""Ranks without a step are asked where they are this long after their process group was made or another rank of the node
made its first step, and this long after their start; then after twice as long each time."""

CALL_AGAIN_SECONDS, PATIENT_CALL_SECONDS = 30.0, 5.0
"""Shortest time between calls of stalled ranks that no console asked for; their deadline."""

RUNNING_SECONDS = 10.0
"""A rank that lives this long counts as running without a recorder's report that it trains."""

SHIM_CHECK_SECONDS = 1.0
"""Seconds between checks whether a run's shim still lives."""

SHIM_START_SECONDS = 20.0
"""How long a new shim may take until it answers."""

SHIM_ANSWER_SECONDS = 30.0
"""How long a shim may take to answer one line."""

KEEP_RUN_SECONDS = 14 * 86400.0
"""A run's folder is removed this long after its end."""

KEEP_LEFTOVER_SECONDS = 14 * 86400.0
"""Files of an agent or a hook of another version are removed once unused for this long."""

HOUSEKEEPING_SECONDS = 3600.0
"""Pace of looking for folders to remove."""

MIN_FREE_BYTES = 16 * 1024 * 1024
"""A node folder with less room than this counts as full."""

MIN_RING_ROOM_BYTES = 64 * 1024 * 1024
"""Shared memory is used for rings only with this much free."""

AGENT_LOG_BYTES = 256 * 1024
"""The agent's own log starts over once it is longer."""

PROBE_SECONDS, MAX_PROBE_SECONDS = 60.0, 600.0
"""Default and greatest time of a probe."""
