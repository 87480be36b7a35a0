"""Stacks of Python as faulthandler, py-spy and Python itself write them, as threads of a CALL: functions, files and lines."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_THREADS, MAX_FRAMES, MAX_WORDS = 32, 64, 512

HOOK = "/distconsole_training/torch_hook/"
"""Frames of our wrappers are left out."""

OUTERMOST = ("<module>", "_run_module_as_main")

_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')

Thread = dict[str, Any]


def parse_faulthandler(text: str) -> list[Thread]:
    """Return the threads of a dump, the main one first; those that run no Python are left out.

    faulthandler lists the newest thread first, so the main one, the oldest, comes last. Raises ValueError
    if that one is missing: after 100 threads faulthandler ends with ``...``.
    """
    threads: list[Thread] = []
    for line in text.splitlines():
        if line == "...":
            raise ValueError("more than 100 threads, and not the main one among them")
        begins = _THREAD.match(line)
        frame = _FRAME.match(line)
        if begins is not None:
            threads.append(_thread(begins.group(1) or "", 0))
        elif frame is not None and threads:
            path, number, function = frame.groups()
            threads[-1]["frames"].append(
                _frame(function, path, int(number) if number.isdigit() else 0)
            )
    if threads:
        threads[-1]["main"] = True
    return _bounded(threads)


def parse_py_spy(text: str, pid: int) -> list[Thread]:
    """Return the threads of ``py-spy dump --json`` for ``pid``, the main one first.

    Raises ValueError when ``text`` is no such dump.
    """
    try:
        told = json.loads(text)
    except RecursionError:
        told = None
    if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
        raise ValueError("no dump of py-spy")
    threads = []
    for each in told:
        tid = each.get("os_thread_id")
        thread = _thread(str(each.get("thread_name") or ""), tid if isinstance(tid, int) else 0)
        thread["main"] = tid == pid
        frames = each.get("frames")
        for frame in frames if isinstance(frames, list) else ():
            if isinstance(frame, dict) and isinstance(frame.get("line"), int):
                # Newer ones give qualified names: _exception_logger.<locals>.wrapper.
                name = str(frame.get("name")).rpartition(".")[2]
                words = (name, str(frame.get("filename")), frame["line"])
                thread["frames"].append(_frame(*words))
        threads.append(thread)
    return _bounded(threads)


def parse_python(text: str, main: int) -> list[Thread]:
    """Return the threads that ``ways.READER`` prints, that of id ``main`` first.

    Raises ValueError when ``text`` is no such list.
    """
    threads = []
    try:
        for tid, frames in json.loads(text):
            thread = _thread("", _number(tid))
            thread["main"] = tid == main
            for function, path, line in frames:
                # 3.14 and newer give qualified names.
                name = str(function).rpartition(".")[2]
                thread["frames"].append(_frame(name, str(path), _number(line)))
            threads.append(thread)
    except (TypeError, RecursionError):
        raise ValueError("no stacks of Python") from None
    return _bounded(threads)


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError("no number of a thread or a line")
    return int(value)


def ends_early(threads: list[Thread]) -> bool:
    """Return whether outer calls of the main thread lack: a stack that is whole begins with a module."""
    frames = threads[0]["frames"]
    return len(frames) < MAX_FRAMES and frames[-1]["function"] not in OUTERMOST


def _bounded(threads: list[Thread]) -> list[Thread]:
    running = [thread for thread in threads if thread["frames"]]
    for thread in running:
        users = [frame for frame in thread["frames"] if HOOK not in frame["file"]]
        thread["frames"] = (users or thread["frames"])[:MAX_FRAMES]
    return sorted(running, key=lambda thread: not thread["main"])[:MAX_THREADS]


def _thread(name: str, tid: int) -> Thread:
    return {"name": name[:MAX_WORDS], "tid": tid, "main": False, "frames": []}


def _frame(function: str, path: str, line: int) -> dict[str, Any]:
    return {"function": function[:MAX_WORDS], "file": path[:MAX_WORDS], "line": line}
