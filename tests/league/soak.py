"""One healthy training for minutes or hours, and whatever is said of it: nothing may be that warns.

Each finding, and each answer to ``why``, is a line of JSON in the file of results, with what the training did then.
"""

import faulthandler
import json
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from distconsole.model.diagnosis.diagnosis import CALM, Diagnosis
from distconsole.model.events import Diagnosed, Event
from distconsole.model.findings import Severity
from distconsole.model.requests import LauncherName, Run, Why
from distconsole.model.run_events import LogLine, RunEnded, RunEvent, RunFinding, Window
from distconsole.operations import Control, SessionSource, perform
from league.cases import HERE
from league.trying import START_SECONDS, nodes
from suite.driving import Operator

ASK_SECONDS = 300.0
ANSWER_SECONDS = 40.0
STEP_MS = 100.0
KEPT_WINDOWS = 80
"""Of all ranks, to be written with a finding: about twenty seconds of four."""


class Heard:
    """What was said of the training, and what it did at that time."""

    def __init__(self, results: Path) -> None:
        self.alarms = 0
        self.phases: Counter[str] = Counter()
        self.run = ""
        self.steps = 0
        self.over = threading.Event()
        self.began = threading.Event()
        self._results = results
        self._since = time.time()
        self._phase = "start"
        self._windows: deque[Window] = deque(maxlen=KEPT_WINDOWS)
        self._writing = threading.Lock()

    def take(self, event: Event) -> None:
        """Take what the run tells."""
        match event:
            case LogLine(line=line) if line.startswith("PHASE "):
                self._phase = line.split()[2]
                self.phases[self._phase] += 1
                self.began.set()
            case Window():
                self._windows.append(event)
                self.steps = max(self.steps, event.step)
            case RunFinding():
                alarm = event.severity in (Severity.WARN, Severity.FAIL)
                windows = to_builtins(list(self._windows)) if alarm else []
                self.write("finding", f"{event.check}: {event.summary}", alarm, windows=windows)
            case RunEnded():
                self.over.set()
            case RunEvent():
                self.run = event.run

    def answer(self, found: Diagnosis) -> None:
        """Take what ``why`` says: that all is well, or which phase takes its time."""
        alarm = found.hang or found.kind not in CALM
        self.write("why", found.summary, alarm, kind=found.kind.value, told=to_builtins(found))

    def write(self, what: str, said: str, alarm: bool, **more: Any) -> None:
        """Print what was ``said``, and append it to the results."""
        now = time.time()
        with self._writing, self._results.open("a") as file:
            self.alarms += alarm
            row = {"t": now, "minute": round((now - self._since) / 60, 2), "phase": self._phase}
            row |= {"what": what, "alarm": alarm, "said": said, "step": self.steps}
            file.write(json.dumps(row | more) + "\n")
        mark = "ALARM" if alarm else "ok   "
        print(f"{row['minute']:6.1f} min {mark} {self._phase}: {what}: {said}", flush=True)


def soak(minutes: float, seed: int, results: Path, folder: Path) -> int:
    """Train for ``minutes``, or until it is interrupted; return the exit code, 1 after an alarm."""
    heard = Heard(results)
    scripts = Path(shutil.copytree(HERE, folder / "scripts"))
    request = Run(
        str(scripts / "soak_job.py"),
        ("--at", str(seed), "--step-ms", f"{STEP_MS:g}"),
        launcher=LauncherName.TORCH,
        nproc="2",
        env=(("OMP_NUM_THREADS", "1"), ("PYTHONDONTWRITEBYTECODE", "1")),
        name="soak",
        grace_seconds=1,
    )
    until = time.monotonic() + 60 * minutes
    try:
        with nodes(folder) as (_cluster, sessions), _train(request, sessions, heard):
            if not heard.began.wait(START_SECONDS):
                heard.write("end", "the training did not begin", alarm=True)
            while (left := until - time.monotonic()) > 0 and heard.began.is_set():
                if heard.over.wait(min(left, ASK_SECONDS)):
                    heard.write("end", "the training ended by itself", alarm=True)
                    break
                _ask(heard, sessions)
    except KeyboardInterrupt:
        print("interrupted: what was said until now counts")
    done = ", ".join(f"{name} {count}" for name, count in sorted(heard.phases.items()))
    heard.write("sum", f"{heard.alarms} alarms in {heard.steps} steps; {done}", alarm=False)
    return 1 if heard.alarms else 0


@contextmanager
def _train(request: Run, sessions: SessionSource, heard: Heard) -> Iterator[None]:
    """Have the run go on in the background, and nothing of it be kept; it is killed at the end."""
    control = Control()
    stopping = threading.Event()

    def perform_it() -> None:
        try:
            for event in perform(request, sessions, control):
                if not stopping.is_set():
                    heard.take(event)
        finally:
            heard.over.set()

    thread = threading.Thread(target=perform_it)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        control.kill()
        thread.join(START_SECONDS)


def _ask(heard: Heard, sessions: SessionSource) -> None:
    with Operator(Why(heard.run), sessions) as why:
        try:
            why.finish(ANSWER_SECONDS)
        except AssertionError as error:
            faulthandler.dump_traceback()
            heard.write("why", str(error), alarm=True)
            return
    heard.answer(why.of(Diagnosed)[0].diagnosis)
