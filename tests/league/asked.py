"""The class asked: busy ranks are asked where they are by each way that exists, and live and work as if nobody had."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import distconsole_training
from distconsole_agent.roll_call import recorder, ways
from distconsole_agent.roll_call.calling import RECORDERS
from league.cases import HERE, Case
from league.trying import Verdict

ASKS, RANKS = 1000, 4
LATE_SECONDS = 5.0
PACKAGE = Path(distconsole_training.__file__).parent
HERE_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

Ask = Callable[[int, str], Any]


def _ask_server(pid: int, rings: str) -> Any:
    path = ways.find_server(rings, pid)
    found = ways.stacks_by_server(path, "R", LATE_SECONDS)
    if path is not None:
        recorder.read_dump(ways.ask_server_for_any(path, RECORDERS, LATE_SECONDS))
    return found


ASKED_BY: dict[str, Ask] = {
    "py-spy": lambda pid, _: ways.stacks_by_py_spy(pid, sys.executable, "R", LATE_SECONDS),
    "python": lambda pid, _: ways.stacks_by_python(pid, "R", LATE_SECONDS),
    "server": _ask_server,
}


def python_of(version: str) -> str:
    """Return the interpreter of a version; empty where there is none."""
    return sys.executable if version == HERE_VERSION else shutil.which(f"python{version}") or ""


def obstacle_of_asked(case: Case) -> str:
    """Return why a case of this class cannot run here; empty where it can."""
    if not _imports(python_of(case.launcher), _needs(case) or "ctypes"):
        return f"needs Python {case.launcher} {_needs(case)}".rstrip()
    if case.place == "py-spy" and ways.find_py_spy(sys.executable) is None:
        return "needs py-spy"
    if case.place == "python" and int(case.launcher.split(".")[1]) < ways.READS_SINCE:
        return f"Python {case.launcher} cannot read another process"
    return ""


def _needs(case: Case) -> str:
    return "torch" if case.place == "server" or case.fault == "trains" else ""


@cache
def _imports(python: str, module: str) -> bool:
    words = [python, "-c", f"import {module}"]
    return bool(python) and subprocess.run(words, check=False, capture_output=True).returncode == 0


def try_asked(case: Case, asks: int = ASKS) -> Verdict:
    """Ask busy ranks ``asks`` times, and each until it has ended; compare how they end with one that nobody asks."""
    count: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="asked-") as folder:
        truth = _Rank(case, Path(folder) / "alone").end()
        if truth[0] != 0:
            return Verdict(error=f"it ends by itself: {truth}"[:600])
        for number in range(RANKS):
            count.update(_ask_rank(_Rank(case, Path(folder) / str(number)), asks // RANKS, truth))
    told = {key: count[key] for key in ("ranks", "asks", "answers", "deaths", "changed")}
    said = ", ".join(f"{value} {key}" for key, value in told.items())
    alarms = [said] if told["deaths"] or told["changed"] or not told["answers"] else []
    return Verdict("asked", said=said, alarms=alarms, asked=told)


def _ask_rank(rank: "_Rank", asks: int, truth: tuple[int, str, str]) -> Counter[str]:
    count = Counter(ranks=1)
    while count["asks"] < asks and rank.lives():
        count.update(rank.ask())
    rank.stop()
    while rank.lives():
        count.update(rank.ask())
    seen = rank.end()
    count["deaths"] += seen[0] != 0
    count["changed"] += seen[0] == 0 and seen != truth
    return count


class _Rank:
    """A watched process of ``asked_job.py``; it is up once it is made."""

    def __init__(self, case: Case, folder: Path) -> None:
        hook, rings = folder / "hook", folder / "rings"
        for each in (hook, rings, folder / "errors"):
            each.mkdir(parents=True)
        shutil.copytree(PACKAGE, hook / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(PACKAGE / "_sitecustomize.py", hook / "sitecustomize.py")
        named = {"RUN": "asked", "RINGS": rings, "ERRORS": folder / "errors", "HOOK": hook}
        environment = {f"DISTCONSOLE_{name}": str(value) for name, value in named.items()}
        self._ask, self._rings, self._end = ASKED_BY[case.place], str(rings), folder / "end"
        self._is_there = ways.find_server if case.place == "server" else lambda *_: True
        words = [python_of(case.launcher), str(HERE / "asked_job.py"), case.fault, str(self._end)]
        words += filter(None, [_needs(case)])
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **environment, "PYTHONPATH": str(hook), "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._first = self._process.stdout.readline()

    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self) -> Sequence[str]:
        """Ask once; return what is to be counted."""
        if not self._is_there(self._rings, self._process.pid):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.005)
            return ()
        with suppress(ways.WayRefusedError, ValueError):
            return ("asks", "answers") if self._ask(self._process.pid, self._rings) else ("asks",)
        return ("asks",)

    def stop(self) -> None:
        self._end.touch()

    def end(self) -> tuple[int, str, str]:
        """Have the rank end; return its exit code and what it has printed."""
        self.stop()
        out, err = self._process.communicate(timeout=120)
        return self._process.returncode, self._first + out, err
