"""From a rank's death to the last process of its run gone on both hosts, and to the verdict read by
the operator; against torchrun on the same script. It judges no exit code: tests do.
"""

import json
import os
import re
import select
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, at_most, text
from benchmarks.cluster import (
    SECONDS,
    Line,
    Program,
    distconsole,
    environment,
    on_hosts,
    over_ssh,
    torchrun,
    warm,
)
from benchmarks.measure import Spread
from testbed import Host, Process, Testbed
from testbed.keeper import wait_for

TARGET_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
NPROC = 2
RANKS = 2 * NPROC
SCRIPT_NAME = "rank_that_dies.py"
DYING = r"dying at (\d+) pid (\d+)"
FIRST_PORT = 29800

SCRIPT = """\
import os, pathlib, signal, sys, time
import torch
import torch.distributed as dist

death, wait = sys.argv[1:]
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("up", dist.get_rank(), flush=True)
if dist.get_rank() == dist.get_world_size() - 1:
    while not pathlib.Path("/tmp/die").exists():
        time.sleep(0.002)
    print("dying at", time.time_ns(), "pid", os.getpid(), flush=True)
    if death == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("this rank ends here")
if wait == "collective":
    dist.all_reduce(torch.ones(1))
time.sleep(1000)
"""

DEATHS = ("sigkill", "exception")
WAITS = ("collective", "elsewhere")
PARTS = ("dying", "ranks", "all", "verdict")


@dataclass(frozen=True)
class Death:
    """Seconds after the end of the process that died; ``PATIENCE_SECONDS`` where it took longer.

    Attributes:
        dying: From the rank's last word before it died to the end of its process: the time that
            Python takes to leave, which is no launcher's. It alone is counted from that word.
        ranks: Until no process of the script is left on any host.
        all: Until nothing else of the launcher is either: shims, or torchrun's own processes.
        verdict: Until the operator's program said how the run ended.
    """

    dying: float
    ranks: float
    all: float
    verdict: float


@contextmanager
def ends(pids: Sequence[int]) -> Iterator[Callable[[], dict[int, int]]]:
    """Watch processes by descriptor; the yielded function waits for them and says when each ended.

    Times are UNIX nanoseconds; a process that outlived the wait is not in the answer.
    """
    watched: dict[int, int] = {}
    found: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                watched[os.pidfd_open(pid)] = pid

        def wait() -> dict[int, int]:
            poll, deadline = select.poll(), time.monotonic() + PATIENCE_SECONDS
            for descriptor in watched:
                poll.register(descriptor, select.POLLIN)
            while len(found) < len(watched) and (left := deadline - time.monotonic()) > 0:
                for descriptor, _ in poll.poll(left * 1000):
                    found[watched[descriptor]] = time.time_ns()
                    poll.unregister(descriptor)
            return found

        yield wait
    finally:
        for descriptor in watched:
            os.close(descriptor)


class Deaths:
    """Runs on a bed whose last rank dies when told to."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self._bed = bed
        self._folder = folder
        self._port = FIRST_PORT
        self._script = folder / SCRIPT_NAME
        self._script.write_text(SCRIPT)

    def distconsole(self, death: str, wait: str) -> Death:
        warm(self._bed, self._folder)
        words = ("--json", "--nproc", str(NPROC), str(self._script), death, wait)
        return self._die([distconsole(self._bed, "run", *words)], "pyz shim", json_end)

    def torchrun(self, death: str, wait: str) -> Death:
        """The verdict is the end of the last of the two commands: each tells its own host's part."""
        self._port += 1
        words = (str(self._script), death, wait)
        commands = [
            over_ssh(self._bed, host.name, *torchrun(self._bed, rank, self._port, NPROC, *words))
            for rank, host in enumerate(self._bed.hosts)
        ]
        return self._die(commands, "torchrun", None)

    def _die(
        self, commands: Sequence[list[str]], launcher: str, verdict: Callable[[Line], bool] | None
    ) -> Death:
        with ExitStack() as stack:
            programs = [
                stack.enter_context(Program(command, environment(self._folder)))
                for command in commands
            ]
            self._wait_until_up(programs)
            last_host = {each.host_pid: each.pid for each in self._ranks(self._bed.hosts[-1])}
            ranks = [each.pid for host in self._bed.hosts for each in self._ranks(host)]
            others = [each.pid for host in self._bed.hosts for each in host.processes(launcher)]
            if len(ranks) < RANKS:
                raise RuntimeError(f"{len(ranks)} of {RANKS} ranks run")
            ended = stack.enter_context(ends([*ranks, *others]))
            self._bed.hosts[-1].path("/tmp/die").touch()
            ended_ns = ended()
            word_ns, host_pid = self._died(programs)
            died_ns = ended_ns[last_host[host_pid]]
            said_ns = [self._said(program, verdict) for program in programs]
            self._clean(SCRIPT_NAME, launcher)

        def seconds(pids: Sequence[int]) -> float:
            last = max(ended_ns.get(pid, 0) if pid in ended_ns else sys.maxsize for pid in pids)
            return PATIENCE_SECONDS if last == sys.maxsize else (last - died_ns) / 1e9

        said = (
            PATIENCE_SECONDS if None in said_ns else (max(filter(None, said_ns)) - died_ns) / 1e9
        )
        dying = (died_ns - word_ns) / 1e9
        return Death(dying, seconds(ranks), seconds([*ranks, *others]), said)

    def _wait_until_up(self, programs: Sequence[Program]) -> None:
        def up() -> bool:
            return sum("up " in line.text for each in programs for line in each.lines) >= RANKS

        if not wait_for(up, SECONDS):
            said = [line.text for each in programs for line in each.lines[-20:]]
            raise RuntimeError("\n".join(["not every rank started", *said]))

    @staticmethod
    def _ranks(host: Host) -> list[Process]:
        return [
            process
            for process in host.processes(SCRIPT_NAME)
            if Path(process.argv[0]).name.startswith("python")
            and "torchrun" not in process.argv[1]
        ]

    @staticmethod
    def _died(programs: Sequence[Program]) -> tuple[int, int]:
        """Return when the rank said its last word, and its pid on its host."""
        for program in programs:
            with suppress(TimeoutError):
                (line,) = program.see(DYING, seconds=2.0)
                found = re.search(DYING, line.text)
                return int(found[1]), int(found[2])
        raise RuntimeError("the rank that was to die did not say so")

    @staticmethod
    def _said(program: Program, verdict: Callable[[Line], bool] | None) -> int | None:
        """Return when the verdict was read; without a test for it, when the program was over."""
        if verdict is None:
            over = program.process.poll() is not None
            return program.lines[-1].time_ns if over and program.lines else None
        program.wait()
        return next((line.time_ns for line in program.lines if verdict(line)), None)

    def _clean(self, *texts: str) -> None:
        for host in self._bed.hosts:
            host.path("/tmp/die").unlink(missing_ok=True)
            for pattern in texts:
                host.signal(9, pattern)


def json_end(line: Line) -> bool:
    """Whether the line is the ``end`` event of ``run --json``."""
    return line.text.startswith("{") and json.loads(line.text).get("event") == "end"


@on_hosts(2)
def measure(
    bed: Testbed, folder: Path, rounds: int = 5, torchrun_rounds: int = 1
) -> dict[str, Any]:
    """Let a rank die each way ``rounds`` times."""
    found: defaultdict[str, list[Death]] = defaultdict(list)
    deaths = Deaths(bed, folder)
    for number in range(max(rounds, torchrun_rounds)):
        for death, wait in product(DEATHS, WAITS):
            for kind, most in (("distconsole", rounds), ("torchrun", torchrun_rounds)):
                if number < most:
                    died = getattr(deaths, kind)(death, wait)
                    found[f"{kind}/{death}/{wait}"].append(died)
    return {
        kind: {part: Spread.of([getattr(death, part) for death in died]) for part in PARTS}
        for kind, died in found.items()
    }


def _seconds_text(seconds: Mapping[str, float]) -> str:
    longer = seconds["median"] >= PATIENCE_SECONDS
    return f"> {PATIENCE_SECONDS:g}" if longer else text(seconds)


def rows(figures: Figures) -> list[Row]:
    rows = []
    for kind, parts in figures.items():
        launcher, death, wait = kind.split("/")
        wanted = TARGET_SECONDS if launcher == "distconsole" else None
        rows.append(
            Row(
                f"death by {death}, others in {wait}: {launcher}".replace("in else", "else"),
                f"gone {_seconds_text(parts['all'])} s, verdict {_seconds_text(parts['verdict'])} s",
                "",
                *at_most(wanted, max(parts["all"]["median"], parts["verdict"]["median"])),
            )
        )
    return rows
