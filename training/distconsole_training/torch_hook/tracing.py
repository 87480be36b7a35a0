"""Runs torch's profiler from one step's end to another's, when the agent asks for a trace."""

# Importing pathlib would cost more than everything else here.
# ruff: noqa: PTH104, PTH123

from __future__ import annotations

import json
import os
import sys
import time
from _thread import get_ident

from distconsole_training.guard import count_failure
from distconsole_training.process import process
from distconsole_training.records import OFFSET_WANTED, TOLD_SUFFIX, WANTED_SUFFIX
from distconsole_training.torch_hook.torch_loss import is_capturing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from distconsole_training.recorder import Recorder

MAX_SECONDS = 60.0
"""A longer trace would fill the process's memory."""

ENV_LOG_LEVEL = "KINETO_LOG_LEVEL"
SILENT = "6"
"""Above all levels of the profiler's library, which else logs its start and stop to stderr."""

_going_on: list[_Trace] = []


def trace(recorder: Recorder, step: int) -> None:
    """``step`` has ended: begin, go on with or end the trace that is wanted, but not in a CUDA graph."""
    torch = sys.modules.get("torch")  # a script that marks its steps may have none
    if torch is not None and is_capturing(torch):
        return
    if not _going_on:
        process.wanted = wanted = recorder.map[OFFSET_WANTED]
        _going_on.append(_Trace(recorder.path, wanted))
        process.wanted = -1  # called again at the next step
    one = _going_on[0]
    if one.thread != get_ident():
        return
    try:
        over = one.step_ended(step)
    except Exception as error:  # noqa: BLE001 - the agent gets the error, the training goes on
        _end(one)
        one.fail(error)
        count_failure(error)
    else:
        if over:
            _end(one)


def _end(one: _Trace) -> None:
    _going_on.clear()
    process.wanted = one.wanted


class _Trace:
    """One trace of this process.

    Attributes:
        wanted: The agent's number for it.
        thread: The one whose steps begin and end it: the profiler wants both from one thread.
    """

    def __init__(self, ring: str, wanted: int) -> None:
        self.wanted, self.thread = wanted, get_ident()
        self._profiler: Any = None
        self._mark: Any = None
        self._first_step = -1
        self._began_ns = self._until_ns = 0
        with open(ring + WANTED_SUFFIX, encoding="ascii") as file:
            asked = json.load(file)
        self._path = str(asked["path"])
        self._give_up_ns = int(asked["give_up_ns"])
        self._start_ns = int(asked["start_ns"])
        self._seconds = min(float(asked["seconds"]), MAX_SECONDS)

    def step_ended(self, step: int) -> bool:
        """Return True once the trace is over."""
        now = time.time_ns()
        if self._profiler is None:
            if now >= self._give_up_ns:
                return True
            if now >= self._start_ns:
                self._begin(step)
            return False
        mark, self._mark = self._mark, None
        mark.__exit__(None, None, None)
        if now < self._until_ns:
            self._enter_mark(step + 1)
            return False
        self._profiler.stop()
        ended_ns = time.time_ns()
        self._profiler.export_chrome_trace(self._path)
        self._tell(ended_ns=ended_ns, last_step=step)
        return True

    def fail(self, error: Exception) -> None:
        """Report to the agent that there will be no trace."""
        profiler, self._profiler = self._profiler, None
        self._tell(error=f"{type(error).__name__}: {error}"[:500])
        if profiler is not None:
            profiler.stop()

    def _begin(self, step: int) -> None:
        from torch.autograd import _profiler_enabled
        from torch.profiler import profile

        if _profiler_enabled():
            raise RuntimeError("the script has a profiler of its own at work")
        # By us, so that it is the user's alone, and a failure to write is known before the trace.
        os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self._profiler = profile()
        own = os.environ.get(ENV_LOG_LEVEL)
        os.environ[ENV_LOG_LEVEL] = own or SILENT
        try:
            self._profiler.start()
        finally:
            if own is None:
                del os.environ[ENV_LOG_LEVEL]
        self._first_step = step + 1
        self._began_ns = time.time_ns()
        self._until_ns = self._began_ns + int(self._seconds * 1e9)
        self._enter_mark(step + 1)

    def _enter_mark(self, step: int) -> None:
        from torch.autograd.profiler import record_function

        self._mark = record_function(f"step {step}")
        self._mark.__enter__()

    def _tell(self, *, ended_ns: int = 0, last_step: int = -1, error: str = "") -> None:
        told = {
            "wanted": self.wanted,
            "began_ns": self._began_ns,
            "ended_ns": ended_ns,
            "written_ns": time.time_ns(),
            "first_step": self._first_step,
            "last_step": last_step,
            "error": error,
        }
        path = self._path + TOLD_SUFFIX
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(path + ".new", flags, 0o600), "w", encoding="ascii") as file:
            json.dump(told, file)
        os.rename(path + ".new", path)
