"""The wire between the console and an agent: names, bounds, encoding. It does no input or output.

Both directions carry one JSON object a line (RFC 8259, UTF-8, no raw newline inside), at most
``MAX_LINE_BYTES`` long.

Console to agent::

    {"id": 7, "op": "follow", ...arguments}

Agent to console, any number of items and then exactly one of the other two::

    {"id": 7, "item": {...}}
    {"id": 7, "result": {...}}
    {"id": 7, "error": {"code": "...", "message": "...", "hint": "..."}}

Requests of one connection run concurrently; answers carry the id and may interleave. ``cancel``
ends a stream: its request is answered with ``{"result": {"cancelled": true}}``.

Operations, and what answers them; ``requests.AgentRequest`` has their arguments:

``hello, ping``  see ``answers.Answers``.
``probe``        result ``facts`` (see ``probes``).
``cancel``       of the request ``target``: result empty.
``watch``        items ``sample`` bodies until cancelled.
``prepare``      result ``coordinator: {address, port} | null, master_port: int | null, shim_pid``; ``spec`` is a
                 ``runspec.RunSpec``.
``start, stop, kill, forget``  results ``started``, ``stopping``, ``killing``, ``forgotten``: bool.
``follow``       entries after ``after``, of which ``journal`` is the writer: items ``{"entries": [...], "journal": str}``,
                 with ``trouble: str`` while the journal cannot be written (empty: it can again), and in the first
                 ``after: seq`` if the journal has fewer of them (see below); result ``{"last": seq}`` after ``end``.
``runs``         result ``runs: [...]`` (``RUN_FIELDS``).
``slurm``        by ``do``: ``submit`` (``argv``) ``job``; ``show`` ``text``; ``cancel`` ``cancelled``; ``step`` ``started``;
                 ``shim`` as ``prepare``, which in a run below Slurm answers ``shim_argv`` instead; ``checkpoint``
                 ``path: str | null``, the checkpoint that the job has left for a restart.
``sync``         the ``manifest`` (null: the one sent before): result ``missing: [sha256, ...], tree``; with nothing
                 missing the code stands ready.
``sync_take``    ``pieces: [[sha256, bytes in all, offset, bytes], ...]`` of ``data``: result ``taken: bytes``.
``roll_call``    result ``ranks: [CALL, ...]`` (below), ``time_ns, host``; the calls are also in the run's journal,
                 while it goes on.
``survey``       result ``jobs: [JOB, ...]`` (below) of this user that anything has started, ``logs: [{key, path, inode,
                 stream, ranks, next, output}], ras: [str], user, time_ns, host``; ``calls``: ask the ranks.
``trace``        items: first ``tracing: [rank, ...]``, then for a rank ``rank, told`` (``records.TOLD_SUFFIX``),
                 ``bytes, name, packed``; result ``time_ns``. ``ranks`` null: all; ``start_ns`` 0: soon.
``trace_take``   result ``data``; the last piece removes it.

A journal entry is ``{"seq": int, "t": float, "kind": str, ...}``: ``seq`` counts from 1 without a
gap on each node and run, ``t`` is UNIX seconds on the node's clock. Kinds:

``state``    ``rank, local_rank, pid, state`` (starting, running, exited, failed, killed or
             stalled) and, once it ended, ``exit_code`` (128+S for signal S), ``signal``, ``t_ns``,
             and ``stopped``: true if the SIGTERM that ended it is that of the stop.
             ``planned``: the number is the plan's; a rank that joined a group may have another there.
``phase``    ``rank, phase, seconds`` since the rank was started, and ``child`` if another process of
             the script started it. Of ``rendezvous`` (the rank asks for
             its group) and ``init_process_group`` (it has it) also ``world, group_rank``: the size and
             its rank there, and ``planned``: the size by the plan; null if unknown. Of
             ``first_step`` perhaps ``alone``: no group was there.
``window``   ``rank, step`` (last), ``steps, skipped, step_ms: [mean, p95] | null, data_ms,
             forward_ms, backward_ms, optimizer_ms, samples_s, metrics: {name: last}, dropped,
             points: {name: [[step, value, samples | null], ...]}``, and if measured the time that
             the rank waited for others ``waited_ms: [step, data, forward, backward, optimizer]``, and
             ``cpu_wait, disk_wait``: percent of the time that its main thread waited for a processor
             or a disk; ``workers``, while it waits for data: how many its DataLoader has, percent
             of a processor that each of them uses, percent of them that wait for a disk now;
             ``batches``: the rank has made no step yet, and the numbers count batches.
``check``    a rank's check of itself (``run --verify-sync``): ``rank, step``; ``parameters, state,
             batch``: checksums in hexadecimal, null without one; ``layout``: only checks
             of equal layout may be compared; ``wrapped, same_epoch``: see
             ``distconsole_training.records``; ``place: [rank, world size] | null`` by its process
             group; ``details``: eight hexadecimal digits a parameter, ``names``: their parameters,
             once a layout (both null if unknown); ``bad_gradient``: the first of them
             whose gradient is not finite, or null.
``sample``   ``node: {...} | null, gpus: [...]`` (``NODE_FIELDS``, ``GPU_FIELDS``).
``log``      ``rank | null, stream: "out" | "err", offset, text``: a slice of the output, cut
             anywhere; slices of one rank and stream join without a gap.
``failure``  ``rank, t_ns, exit_code, signal, error, traceback``: this node's evidence on a rank
             that failed by itself.
``note``     ``check, severity, summary, hint, rank?, host?, seen?``: a message for the operator;
             ``host`` is the node in question, if that is another node of the run; ``seen`` is
             evidence, such as a traceback.
``verdict``  ``state, exit_code, first_failure: {rank, host, exit_code, signal?, error, traceback}
             | null``: the coordinator's, the same on every node. State ``lost``: a node that has
             lost the others cannot know how a run ends that may go on without it.
``restart``  ``restart, of, checkpoint, pause, first_failure``: on the first node: an attempt failed,
             and in ``pause`` seconds the ranks start for the ``restart``-th time again.
``attempt``  ``restart, of, checkpoint``: on every node: all that follows is of this attempt. The
             ranks count their steps from 0 again.
``roll_call``  ``rank, why: "asked" | "stalled" | "stop" | "start", call: CALL``: the state of a rank. All
             ranks of the node are called together: when a rank has stalled, when the set
             of stalled ranks changes, before a stop during a stall, and when a console asks. For
             ``start`` only ranks long without a step are called, in ways that run no code in them.
``end``      ``state, exit_code, seconds``: the last entry; nothing of the run is left here. ``seconds``
             go from the start of the first rank to the end, of the last rank if the run succeeded.

``journal`` names the writer of the last entry of an item; it is empty for an agent of the first
version. A node that loses its power may lose the end of its journal, and reuses the numbers of
the lost entries. A console that asks for entries after 100 of a writer whose entries end here with
63 receives ``{"entries": [], "after": 63}`` and then the entries after 63. Without ``journal`` such
a request is refused instead.

A CALL is the state of a rank. Only ``rank``, ``pid`` and ``alive`` are always there; unknown fields are left out or
null. ``local_rank``; ``t`` is UNIX seconds; ``ended`` ``{"exit_code" | "signal", "t"}`` or null; ``raised`` the
uncaught exception that the hook has noted of it, ``Type: message``, empty without one; ``stage`` ``not_started,
starting, stepping, between`` or ``ended``; ``step`` the last finished one (-1: none), ``silent_s`` the seconds since,
``usual_s`` a step's usual duration; ``way`` is how the stacks were read: ``server`` (torch's worker server),
``signal`` (of an older agent), ``py-spy``, ``python`` (the rank's own Python, 3.14 or newer) or ``proc`` (/proc alone,
which knows no stack of Python); ``refused``
``[{"way", "why"}]``. ``threads``: ``[{"name", "tid", "main", "frames": [{"function", "file", "line"}]}]``, innermost
frame first, without values; ``native``: functions of the kernel or of C that the main thread is in. ``state`` is that
of the main thread (proc(5)), ``wchan`` its sleep in the kernel, ``syscall`` ``{"name", "fd"}``; ``waits_for``
``{"kind", "what"}``, of a ``file, socket, pipe, lock, child, terminal, debugger, disk``, or ``stopped``; ``tracer`` a
debugger's pid. ``cpu_s`` and ``main_cpu_s`` are seconds used within ``over_s``, ``major_faults_s`` page faults a
second that needed a disk; ``swap_bytes``, ``rss_bytes``. ``children``: ``[{"pid", "state", "name", "cpu_s",
"ended"}]``; ``gpu`` ``{"index", "util", "power_w", "power_usual_w"}``. ``collectives``: of each process group the
last one by torch's flight recorder, ``{"group", "name", "ranks", "seq", "op", "backend", "state", "done_seq", "p2p",
"input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "created_ns", "age_s", "recent": [{"seq", "op", "p2p",
"state", "input_sizes", "input_dtypes"}]}``, newest first. ``horovod``: ``{"stalled": [name], "missing": {name:
[rank]}}``, in its own words. ``note`` names missing parts.

A JOB is the part of a job on one node, found in /proc. Parts of one ``key`` are of one job, unless ``here``: then it
means this node alone. ``launcher`` and ``script``; ``endpoint`` is its ranks' rendezvous, ``ident`` the launcher's
name for it, ``run`` its id for a run of ours; ``size`` of its world, 0 if unknown; ``age_s``; ``gone``: ranks that
were started here and of which no process is left. ``spawned``: ranks are counted from 0 on each node, first on the
one that ``leads``. ``ranks``: a CALL each, whose ``silent_s`` is the time since its main thread last ran; its
``stage`` is ``stepping`` if its place changed between two looks, else left out. ``output`` of ``logs``: whole
lines of a regular file that ranks print into, from byte ``logs[path]`` or its last 16 KiB, at most ``MAX_LOG_TEXT``;
``next`` is the next offset. ``ras``: the faults that NCCL's RAS reports.

``manifest`` and ``data`` are ``base64(zlib(bytes))``; the manifest's bytes are those of ``{"files":
[[path, mode, bytes, sha256], ...], "links": [[path, target], ...], "folders": [path, ...]}``, and
their SHA-256 is the ``tree`` that a spec's ``code`` names. ``data`` of ``trace_take``
is the base64 of a piece of a gzip file of ``packed`` bytes: a trace in Chrome's format as torch's profiler writes it.
"""

from __future__ import annotations

import json
import re

PROTOCOL_VERSION = 1

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Longest line either side accepts; a longer one ends the connection."""

MAX_ENTRIES_PER_ITEM = 512
"""Journal entries in one item of ``follow``."""

MAX_LOG_TEXT = 64 * 1024
"""Characters of text in one ``log`` entry."""

MAX_PIECES_BYTES = 4 * 1024 * 1024
"""Bytes of content in one ``sync_take``, before they are packed."""

MAX_METRICS = 64
"""Metric names of one rank; later names are counted as dropped."""

MAX_POINTS = 16
"""Points of one metric in one window; more are thinned to steps divisible by a power of two."""

MAX_CHECKED = 256
"""Parameters, or groups of them, in one ``check``."""
MAX_CHECKED_NAME = 256

PLACEHOLDER = re.compile(r"(\{+)(port|run_dir)(\}+)")
"""Placeholders that a shim replaces: the rendezvous port, and the run's folder on its node."""

Values = dict[str, object]
"""Fields of the contract and their values, None for an unknown one."""

RUN_FIELDS = (
    "run",
    "name",
    "state",
    "created",
    "script",
    "launcher",
    "world_size",
    "node_index",
    "nodes",
    "last_seq",
    "journal",
    "trouble",
)
"""``journal`` is the writer of the entry ``last_seq``, empty if unknown. ``state`` is
``unreadable`` if the node cannot read its files of the run, and ``trouble`` then names the
file and the reason; otherwise it is null. Such a run is never removed by itself."""

NODE_FIELDS = (
    "cpu",
    "cpus",
    "load1",
    "mem_used",
    "mem_total",
    "net_rx_s",
    "net_tx_s",
    "disk_read_s",
    "disk_write_s",
    "swap_in_s",
    "disk_wait",
    "net_errors_s",
    "net_resent_s",
    "cpu_mhz",
    "cpu_model",
)
"""Percent over all CPUs (0 to 100), bytes, bytes a second; null if psutil is missing. ``disk_wait`` is the percentage
of the time in which a process waited for a disk; ``net_errors_s`` counts errors and dropped packets of the interfaces,
``net_resent_s`` TCP segments; ``cpu_mhz`` is the processors' greatest clock rate, ``cpu_model`` their name."""

BUSY_FIELDS = ("pid", "user", "command", "cpu", "memory")
"""Of a process that uses the processors: percent of one processor since the reading before, and resident bytes. Items of
``watch`` have ``processes``, the busiest first, once they were read again, every five seconds at most."""

POWER, ECC = "power_w", "ecc_uncorrected"
CALL_GPU = {"index": "gpu", "util": "util", POWER: POWER}
"""Of a rank's GPU in a call -> where ``GPU_FIELDS`` have it."""
GPU_FIELDS = (
    "gpu",
    "uuid",
    "name",
    "mig",
    "util",
    "mem_used",
    "mem_total",
    "temp_c",
    POWER,
    "sm_clock_mhz",
    "mem_clock_mhz",
    "throttle",
    ECC,
    "pcie_rx_s",
    "pcie_tx_s",
    "nvlink_rx_s",
    "nvlink_tx_s",
    "pcie",
    "xid",
    "rank",
    "processes",
    "age_s",
)
"""``processes``: ``[{pid, user, command, mem_used, rank: int|null}, ...]`` as last listed; ``age_s``
the age of the values when the driver stopped answering; null for values that the driver lacks. ``pcie``: ``[lanes, the
most, generation, the highest]``; ``xid``: the number of an error that the driver reported within ``XID_SECONDS``."""

XID_SECONDS = 10.0

MAX_CALL_BYTES = 64 * 1024
"""One rank's CALL as JSON; frames are left out first."""


class ErrorCode:
    """Stable words for a refused request."""

    BAD_REQUEST = "bad_request"
    UNKNOWN_OP = "unknown_op"
    NO_SUCH_RUN = "no_such_run"
    RUN_EXISTS = "run_exists"
    STORAGE = "storage"
    START_FAILED = "start_failed"
    NO_SCRIPT = "no_script"
    PROBE_FAILED = "probe_failed"
    TIMED_OUT = "timed_out"
    TOO_MANY = "too_many"
    INTERNAL = "internal"


class ProtocolError(Exception):
    """A line that is too long, is not JSON, or is not an object."""


def encode(message: Values) -> bytes:
    """Return ``message`` as one line. Raises ProtocolError if it exceeds ``MAX_LINE_BYTES``."""
    line = json.dumps(message, separators=(",", ":"), ensure_ascii=True).encode("ascii") + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"a message of {len(line)} bytes exceeds {MAX_LINE_BYTES}")
    return line


def decode(line: bytes) -> Values:
    """Return the object that ``line`` holds. Raises ProtocolError if it holds none."""
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"a line of {len(line)} bytes exceeds {MAX_LINE_BYTES}")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON line: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError("a line that is not a JSON object")
    return message


def fill(word: str, port: int | str | None, run_dir: str) -> str:
    """Return a word of a plan with ``{port}`` (None leaves it) and ``{run_dir}`` filled in; doubled braces lose a pair."""

    def filled(found: re.Match[str]) -> str:
        before, name, after = found.groups()
        if len(before) > 1 and len(after) > 1:
            return found[0][1:-1]
        if name == "run_dir":
            return f"{before[1:]}{run_dir}{after[1:]}"
        return found[0] if port is None else f"{before[1:]}{port}{after[1:]}"

    return PLACEHOLDER.sub(filled, word)
