"""This process as the console sees it: ring, rank, start-up phases, reports and its last error.

The ring is made when the process first does something worth recording, so processes that never
train (data workers, compilers, scripts without torch) leave no trace.
"""

# Importing pathlib would cost more than everything else here.
# ruff: noqa: PTH104, PTH110, PTH118, PTH208

from __future__ import annotations

import os
import sys
import time
from _thread import RLock
from functools import partial
from itertools import count

from distconsole_training.guard import guarded, tally

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from distconsole_training.identity import Identity
    from distconsole_training.loss import Late
    from distconsole_training.recorder import Recorder

# As in ``records``, which costs an import of struct.
ENV_RINGS = "DISTCONSOLE_RINGS"
ENV_ERRORS = "DISTCONSOLE_ERRORS"

_MAX_LATE = 256
_MAX_MESSAGE = 4096
_MAX_STEP = (1 << 62) - 1
_MAX_RINGS = 1024

_FLAGS, _EXIT_CODE, _PF_EXITING = 6, 49, 0x4
"""Fields of /proc/PID/stat behind the name (proc(5)), and the flag of a process that the kernel is ending."""

_noted_by: list[int] = []
_readers: list[Any] = []
"""Holds the reader of device scalars, once a tensor was reported."""


class Process:
    """One process of a run; the parent's and a forked child's are different ones.

    Attributes:
        identity: Its rank and world, as far as known; None until the ring was wanted.
        inherited_local_rank: A child's ``LOCAL_RANK`` as its parent left it; None of another process.
        made: The ring, once it was made.
        grouped: Whether Horovod was initialised.
        late: Values on their way from a device, and their receivers.
        wanted: How many traces were asked of it and are done, as the ring counts them; -1 during one.
        marked_step: The step that the script has marked last (``mark_step``); -1 if it marks none.
    """

    def __init__(self) -> None:
        self.on_fork: list[Callable[[], None]] = []
        self.before_finish: list[Callable[[], None]] = []
        self._begin()

    def _begin(self) -> None:
        self.started_ns, self.started_time_ns, is_child = _start()
        self.identity: Identity | None = None
        self.grouped = False
        self.steps, self.batches = count(), count()
        self.last_step = self.marked_step = -1
        self.wanted = 0
        # A child of the script inherits its parent's variables, and so a rank that is not its own.
        self._trusts_environment = not is_child
        self.inherited_local_rank = os.environ.get("LOCAL_RANK") if is_child else None
        self._pid = os.getpid()
        self.made: Recorder | None = None
        self._may_record = True
        self._making = RLock()
        self._phases: list[tuple[str, int]] = [("interpreter", self.started_ns)]
        self.late: list[tuple[Late, Callable[[Any], None]]] = []

    def forked(self) -> None:
        """Start over in a forked child: it never writes into its parent's ring."""
        tally.on_error = None
        if self.made is not None:
            self.made.close()
        self._begin()
        for forget in self.on_fork:
            forget()

    def recorder(self) -> Recorder | None:
        """Return the ring, made now if it was not; None without a console or without room."""
        if self.made is None:
            # Another thread may be making it; a signal handler of the one that is gets None.
            with self._making:
                if self._may_record:
                    self._make_recorder()
        return self.made

    def phase(self, name: str, world: Identity | None = None) -> None:
        """A start-up phase was reached; it is written when there is a ring."""
        now = time.monotonic_ns()
        if self.made is not None:
            self.made.phase(name, now, world)
        else:
            self._phases.append((name, now))

    def identify(self, refine: Callable[[Identity], Identity]) -> None:
        """Refine the identity so far by ``refine``, and put it into the ring."""
        recorder = self.recorder()
        if recorder is not None and self.identity is not None:
            known = refine(self.identity)
            if known != self.identity:
                self.identity = known
                recorder.identify(known)

    def later(self, value: Late, deliver: Callable[[Any], None]) -> None:
        """Call ``deliver`` once ``value`` has arrived from its device; the oldest are given up."""
        self.late.append((value, deliver))
        if len(self.late) > _MAX_LATE:
            del self.late[0]

    def deliver_late(self) -> None:
        """Deliver arrived values; never waits."""
        while self.late:
            value, deliver = self.late[0]
            if not value.arrived():
                return
            del self.late[0]
            deliver(value.value())

    def finish(self) -> None:
        if self._pid != os.getpid():
            return
        for step in self.before_finish:
            step()
        if self.made is not None:
            self.deliver_late()
            self.made.finish()

    def _make_recorder(self) -> None:
        self._may_record = False
        folder = os.environ.get(ENV_RINGS)
        if not folder:
            return
        from distconsole_training.identity import from_environment
        from distconsole_training.recorder import Recorder
        from distconsole_training.records import HEADER_CHILD

        environment: Any = os.environ if self._trusts_environment else {}
        self.identity = from_environment(environment)
        started = self.started_ns, self.started_time_ns
        flags = 0 if self._trusts_environment else HEADER_CHILD
        self.made = recorder = Recorder(folder, self.identity, *started, flags=flags)
        for name, reached_ns in self._phases:
            recorder.phase(name, reached_ns)
        self._phases.clear()
        own = self._trusts_environment or "multiprocessing.util" not in sys.modules
        if not own and sys.version_info < (3, 13):  # which finalizes behind the exception
            from multiprocessing import parent_process, util

            if parent_process() is not None:
                util.Finalize(None, note_printed, exitpriority=1 << 30)  # the first of them


def _start() -> tuple[int, int, bool]:
    """Return the start of this process and True for a child, as ``sitecustomize`` saw it."""
    for finder in sys.meta_path:
        started: tuple[int, int, bool] | None = getattr(finder, "distconsole_started", None)
        if started is not None:
            return started
    return time.monotonic_ns(), time.time_ns(), False


def _note(error: BaseException, time_ns: int) -> None:
    """Note the first uncaught exception of this process in a file."""
    pid = os.getpid()
    folder = os.environ.get(ENV_ERRORS)
    if not folder or pid in _noted_by:
        return
    _noted_by.append(pid)
    identity = process.identity
    if identity is None:
        from distconsole_training.identity import from_environment

        identity = from_environment(os.environ)
    path = os.path.join(folder, f"{pid}.json")
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, _encode(pid, identity.rank, time_ns, error))
    finally:
        os.close(descriptor)
    os.rename(path + ".new", path)


def note_printed() -> None:
    """Note the exception that ends a child of multiprocessing, which prints it itself, behind its finalizers."""
    error = sys.exc_info()[1]
    if isinstance(error, Exception):
        note(error, time.time_ns())


def _encode(pid: int, rank: int, time_ns: int, error: BaseException) -> bytes:
    """Return the file's JSON, at most ``MAX_ERROR_BYTES``: of a longer traceback the end is kept."""
    import json

    from distconsole_training.records import MAX_ERROR_BYTES

    text, message = _format(error)
    text = text[-MAX_ERROR_BYTES:]
    name = type(error).__name__
    said, _, rest = message.partition(": ")
    if isinstance(error, SyntaxError):  # its lines of source stand in the traceback
        message = str(error)
    elif said.rpartition(".")[2] == name:  # Python puts the type's module before it
        message = rest
    # While torchrun has restarts left, this process's end is not the job's.
    done, allowed = (
        os.environ.get(f"TORCHELASTIC_{count}", "") for count in ("RESTART_COUNT", "MAX_RESTARTS")
    )
    report = {
        "pid": pid,
        "rank": rank,
        "retried": done.isdigit() and allowed.isdigit() and int(done) < int(allowed),
        "ended": _find_ended(),
        "time_ns": time_ns,
        "type": name,
        "message": message[:_MAX_MESSAGE],
        "traceback": text,
    }
    encoded = json.dumps(report).encode("ascii")
    while len(encoded) > MAX_ERROR_BYTES:
        surplus = len(encoded) - MAX_ERROR_BYTES
        # An escaped character takes up to twelve bytes.
        text = text[max(surplus // 12, 1) :]
        report["traceback"] = text
        encoded = json.dumps(report).encode("ascii")
    return encoded


def _find_ended() -> list[tuple[int, int]]:
    """Return pid and wait status (-1 if unknown) of each process with a ring here that has ended by now.

    Once this process has ended as well, its parent may have killed others, or taken their ends.
    """
    try:
        names = os.listdir(os.environ[ENV_RINGS])[:_MAX_RINGS]
        statuses = {int(pid): _status(pid) for pid in {name.partition("-")[0] for name in names}}
    except (KeyError, OSError, ValueError, IndexError):
        return []
    return [(pid, status) for pid, status in statuses.items() if status is not None]


def _status(pid: str) -> int | None:
    """Return the wait status of a process, -1 if it is unknown; None while the process lives."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except FileNotFoundError:
        return -1 if os.path.exists("/proc/self/stat") else None
    try:
        fields = os.read(descriptor, 4096).rpartition(b")")[2].split()
    except ProcessLookupError:
        return -1
    finally:
        os.close(descriptor)
    if not int(fields[_FLAGS]) & _PF_EXITING:
        return None
    return int(fields[_EXIT_CODE]) or (0 if fields[0] == b"Z" else -1)


def _format(error: BaseException) -> tuple[str, str]:
    import traceback

    kind = type(error)
    if not _imports_again(error):
        try:
            lines = traceback.format_exception(kind, error, error.__traceback__)
            last = traceback.format_exception_only(kind, error)
            return "".join(lines), "".join(last).strip()
        except Exception:  # noqa: BLE001, S110 - Python 3.15, of a missing module below a non-package
            pass
    calls = "".join(traceback.format_tb(error.__traceback__))
    message = f"{kind.__name__}: {error}"
    return f"Traceback (most recent call last):\n{calls}{message}\n", message


def _imports_again(error: BaseException) -> bool:
    """Return whether Python would import a package that has failed again, to give advice about a module that it lacks."""
    of: BaseException | None = error if sys.version_info >= (3, 15) else None
    seen: set[int] = set()
    while of is not None and id(of) not in seen:
        seen.add(id(of))
        name = of.name if isinstance(of, ModuleNotFoundError) else None
        package = (name or "").rpartition(".")[0]
        if package and package not in sys.modules:
            return True
        of = of.__cause__ or of.__context__
    return False


def _report(step: Any, samples: Any, metrics: dict[str, Any]) -> None:
    recorder = process.recorder()
    if recorder is None:
        return
    known = whole(step)
    at = _current_step() if known is None else known
    weight = whole(samples) or 0
    at = min(max(at, 0), _MAX_STEP)
    for name, value in (metrics or ({"samples": weight} if weight else {})).items():
        _report_one(recorder, name, at, value, weight)
    if process.late:
        process.deliver_late()


def whole(value: Any) -> int | None:
    """Return ``value`` as a whole number; None without one, or if reading it would wait for a device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return None
    return None if value is None else int(value)


def _put(recorder: Recorder, name: str, step: int, value: Any, samples: int) -> None:
    number = _number(value)
    if isinstance(number, float):
        recorder.metric(name, step, number, samples)
    elif number is not None:
        process.later(number, partial(_write_late, recorder, name, step, samples))


def _write_late(
    recorder: Recorder, name: str, step: int, samples: int, value: float | None
) -> None:
    if value is not None:
        recorder.metric(name, step, value, samples)


def _number(value: Any) -> Any:
    """Return ``value`` as a float, as a value on its way from a device, or None if it is neither."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.numel() != 1:
            return None
        if not _readers:
            from distconsole_training.torch_hook.torch_loss import ScalarReader

            _readers.append(ScalarReader(torch))
        return _readers[0].read(value.detach())
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        return None
    return float(value)


def _current_step() -> int:
    if process.marked_step >= 0:
        return process.marked_step
    patches = sys.modules.get("distconsole_training.torch_hook.torch_patches")
    watching = getattr(patches, "watching", ())
    return watching[0].current_step() if watching else process.last_step


process = Process()
note = guarded(_note)
put = guarded(_report)
_report_one = guarded(_put)
forked = guarded(process.forked)
finish = guarded(process.finish)
