"""From the command to the script's first line and to the end of its first all-reduce on two hosts:
distconsole, the same ranks started by hand over ssh, torchrun and horovodrun. It trains nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import rows_of_turns
from benchmarks.cluster import (
    Program,
    distconsole,
    environment,
    on_hosts,
    over_ssh,
    torchrun,
    warm,
)
from benchmarks.measure import Compared, compare
from suite.obstacles import obstacle
from testbed import Testbed

TARGET = 1.15
FIRST = r"began at (\d+), first all-reduce at (\d+)"
FIRST_PORT = 29700

TORCH_SCRIPT = """\
import time

began_ns = time.time_ns()
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"began at {began_ns}, first all-reduce at {time.time_ns()}", flush=True)
assert total.item() == dist.get_world_size()
dist.destroy_process_group()
"""

HOROVOD_SCRIPT = """\
import time

began_ns = time.time_ns()
import torch
import horovod.torch as hvd

hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
print(f"began at {began_ns}, first all-reduce at {time.time_ns()}", flush=True)
assert total.item() == hvd.size()
"""

KINDS = {"warm": TARGET, "cold": None, "torchrun": None, "ours_torchrun": None, "horovodrun": None}
LINES = [
    Compared("start, by hand over ssh", "by_hand"),
    *(
        Compared(f"start, {kind.replace('_', ' ')}", kind, "by_hand", "by hand", ratio=target)
        for kind, target in KINDS.items()
    ),
]

Times = tuple[float, float]
"""Seconds from the command to the script's first line, and to its sum, on the last rank."""


def until_all(commands: Sequence[list[str]], variables: Mapping[str, str], each: int) -> Times:
    """Run the commands together, each of which starts ``each`` ranks, and wait for all their sums.

    Raises:
        RuntimeError: if one of them fails.
    """
    with ExitStack() as stack:
        programs = [stack.enter_context(Program(command, variables)) for command in commands]
        lines = [line for program in programs for line in program.see(FIRST, count=each)]
        for program in programs:
            if code := program.wait():
                raise RuntimeError(f"a start ended with {code}: {program.lines[-5:]}")
    found = [match for line in lines if (match := re.search(FIRST, line.text))]
    typed_ns = min(program.began_ns for program in programs)
    script_ns, sum_ns = (max(int(match[part]) for match in found) for part in (1, 2))
    return (script_ns - typed_ns) / 1e9, (sum_ns - typed_ns) / 1e9


class Starts:
    """The ways to start one rank on each host of a bed."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self._bed = bed
        self._folder = folder
        self._port = FIRST_PORT
        self.script_seconds: dict[str, list[float]] = {}
        self._torch = self._write("first_torch.py", TORCH_SCRIPT)
        self._horovod = self._write("first_horovod.py", HOROVOD_SCRIPT)

    def seconds(self, kind: str) -> float:
        """Start the ranks this way; keep the seconds to the script, return those to its sum."""
        to_script, to_sum = getattr(self, kind)()
        self.script_seconds.setdefault(kind, []).append(to_script)
        return float(to_sum)

    def compare(
        self, kinds: Iterable[str], rounds: int, lines: Sequence[Compared]
    ) -> dict[str, Any]:
        """Start each kind once a round."""
        ways = {kind: partial(self.seconds, kind) for kind in kinds}
        script = self.script_seconds
        return compare(ways, rounds, lines, warmed=script.clear, **{"script at": script})

    def by_hand(self) -> Times:
        """The shortest thing that a person can type: two ssh commands with the variables of env://."""
        return self._on_each(
            lambda rank, port: [
                "env",
                *self._rendezvous(port),
                f"RANK={rank}",
                f"WORLD_SIZE={len(self._bed.hosts)}",
                "GLOO_SOCKET_IFNAME=eth0",
                "python3",
                self._torch,
            ]
        )

    def torchrun(self) -> Times:
        return self._on_each(lambda rank, port: torchrun(self._bed, rank, port, 1, self._torch))

    def horovodrun(self) -> Times:
        names = [host.name for host in self._bed.hosts]
        words = ["horovodrun", "--gloo", "--network-interfaces", "eth0", "-np", str(len(names))]
        words += ["-H", ",".join(f"{name}:1" for name in names), "python3", self._horovod]
        return self._until_all([over_ssh(self._bed, names[0], *words)])

    def warm(self) -> Times:
        return self._warm()

    def cold(self) -> Times:
        """No agent runs, and its file has to be pushed: the hosts were just switched on."""
        self._bed.reset()
        return self._ours()

    def ours_torchrun(self) -> Times:
        return self._warm("--launcher", "torchrun")

    def _warm(self, *options: str, script: str = "") -> Times:
        warm(self._bed, self._folder)
        return self._ours(*options, script=script)

    def _ours(self, *options: str, script: str = "") -> Times:
        return self._until_all([distconsole(self._bed, "run", *options, script or self._torch)])

    def _on_each(self, words: Callable[[int, int], list[str]]) -> Times:
        self._port += 1
        hosts = enumerate(self._bed.hosts)
        return self._until_all(
            [over_ssh(self._bed, host.name, *words(rank, self._port)) for rank, host in hosts]
        )

    def _until_all(self, commands: Sequence[list[str]]) -> Times:
        each = len(self._bed.hosts) // len(commands)
        return until_all(commands, environment(self._folder), each)

    def _rendezvous(self, port: int) -> list[str]:
        return [f"MASTER_ADDR={self._bed.hosts[0].address}", f"MASTER_PORT={port}"]

    def _write(self, name: str, text: str) -> str:
        path = self._folder / name
        path.write_text(text)
        return str(path)


@on_hosts(2, node_ssh=True)
def measure(
    bed: Testbed, folder: Path, rounds: int = 7, only: str = ",".join(line.kind for line in LINES)
) -> dict[str, Any]:
    """Start each kind once a round and return seconds, and ratios within the same round."""
    skipped = {"horovodrun": reason} if (reason := obstacle("horovod")) else {}
    kinds = {"by_hand": None} | dict.fromkeys(only.split(","))
    figures = Starts(bed, folder).compare(
        [kind for kind in kinds if kind not in skipped], rounds, LINES
    )
    return {**figures, "skipped": skipped}


rows = rows_of_turns
