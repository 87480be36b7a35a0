"""A screen attached to a case's run, and how long it takes to answer a key. It judges nothing.

Two views are asked for in turn while the fault comes and goes. From an answer's time is taken what the thread that
draws waited for a processor: that is the machine's.
"""

import sys
import threading
import time
from pathlib import Path
from typing import Self

from benchmarks.glass import SEQUENCE, Watched
from testbed import Testbed

LOGS, RUN = b"\x1b[15~", b"\x1bOS"
ONLY_IN_LOGS = "─ Level ─"
BEGUN = "5 logs"
PAUSE_SECONDS = 0.4


class Screen(threading.Thread):
    """Presses keys from its start until the block ends.

    Args:
        folder: That of the consoles whose run it is.

    Attributes:
        answers: Seconds for each key, without waiting for a processor.
        error: Why no more was pressed; empty where nothing was wrong.
    """

    def __init__(self, bed: Testbed, folder: Path, run: str) -> None:
        super().__init__(name="screen")
        self.answers: list[float] = []
        self.error = ""
        where = ["--ssh-config", str(bed.ssh_config), "--hosts", bed.names]
        self._argv = [sys.executable, "-m", "distconsole", "attach", *where, run]
        self._environment = {
            name: str(folder / "data") for name in ("XDG_DATA_HOME", "XDG_STATE_HOME")
        }
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Press no more keys, and end the screen."""
        self._over.set()
        self.join()

    def run(self) -> None:
        program = Watched(self._argv, self._environment)
        try:
            with program:
                program.look_until(lambda text: BEGUN in text, "the first picture")
                program.look_for(1.0)
                while not self._over.is_set():
                    self._press(program, LOGS)
                    self._press(program, RUN)
        except (TimeoutError, OSError) as error:
            self.error = f"{str(error).splitlines()[0]}: {SEQUENCE.sub('', program.last)[-6000:]}"

    def _press(self, program: Watched, key: bytes) -> None:
        program.look_for(PAUSE_SECONDS)
        waited, began = waiting_seconds(program.pid), time.perf_counter()
        program.press(key)
        seen = program.look_until(
            lambda text: (ONLY_IN_LOGS in text) == (key == LOGS), f"what {key!r} asks for"
        )
        self.answers.append(seen - began - (waiting_seconds(program.pid) - waited))


def waiting_seconds(pid: int) -> float:
    """Return how long a process's first thread was ready and had no processor (Linux: sched-stats.rst)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
