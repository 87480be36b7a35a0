"""Stored runs as nodes would have told them: journal entries, which the tests fold as the program does.

Times, figures and words follow from the arguments alone. It decides nothing about a run's picture.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import EndState, PlanMade, PlannedHost, RunEnded
from distconsole.rpc.wire import encode_entry
from distconsole.runs.following.follow import EntryWriter
from distconsole.runs.store.run_file import RunFile, RunRecord, StoredEntry
from distconsole.runs.store.store import RunStore

START = 1_763_700_000.0
"""UNIX seconds at which every run begins."""
PHASES = (
    ("interpreter", 0.3),
    ("import_torch", 2.1),
    ("init_process_group", 4.8),
    ("first_step", 6.5),
)
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 87, in main
    loss.backward()
RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"""
STEPS_A_WINDOW = 20
Body = dict[str, Any]


@dataclass(frozen=True)
class Journal:
    """What to tell of one run.

    Attributes:
        seconds: One window a rank in each.
        slow: A rank that takes half as long again.
        lockstep: Whether the others wait for it in backward, as in DDP.
        fails: A rank that raises at the end; None for a run that succeeds.
        ended: False for a run that goes on.
        words: What takes the place of names and lines that come from a node.
        odd_t: A time at which the record has the run's start, its plan, its end and every third entry.
    """

    run: str = "digits-1121-a3f9"
    hosts: int = 2
    per_host: int = 2
    seconds: int = 60
    slow: int | None = None
    lockstep: bool = False
    fails: int | None = None
    ended: bool = True
    words: str = ""
    env: dict[str, str] = field(default_factory=dict)
    odd_t: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts."""
        return tuple(f"node{number + 1}" for number in range(self.hosts))

    @property
    def world(self) -> int:
        """The ranks."""
        return self.hosts * self.per_host

    @property
    def started(self) -> float:
        """When it began, by its record."""
        return START if self.odd_t is None else self.odd_t

    def plan(self) -> PlanMade:
        """Return the plan."""
        command = f"/opt/venv/bin/python train.py --epochs 3 {self.words}".rstrip()
        return PlanMade(
            t=self.started,
            run=self.run,
            launcher="torch",
            why="the script uses torch.distributed",
            world_size=self.world,
            hosts=tuple(
                PlannedHost(
                    host=name,
                    ranks=tuple(range(place * self.per_host, (place + 1) * self.per_host)),
                    command=command,
                    env={"MASTER_ADDR": "10.0.0.1", "WORLD_SIZE": str(self.world), **self.env},
                )
                for place, name in enumerate(self.names)
            ),
            name="digits",
            script=f"/home/me/train.py{self.words}",
        )

    def end(self) -> RunEnded | None:
        """Return the end, as the store keeps it beside the entries."""
        if not self.ended:
            return None
        state = EndState.SUCCEEDED if self.fails is None else EndState.FAILED
        code = 0 if self.fails is None else 1
        t, seconds = START + self.seconds + 1, self.seconds + 1.0
        if self.odd_t is not None:
            t = seconds = self.odd_t
        return RunEnded(t=t, run=self.run, state=state, exit_code=code, seconds=seconds)

    def entries(self) -> Iterator[StoredEntry]:
        """Yield all entries, by time."""
        last = dict.fromkeys(self.names, 0)
        for t, place, body in self._told():
            host = self.names[place]
            last[host] += 1
            entry = encode_entry({"seq": last[host], "t": t, **body})
            odd = self.odd_t is not None and not last[host] % 3
            kept = self.odd_t if odd and self.odd_t is not None else t
            if not math.isnan(kept):  # SQLite keeps none
                yield StoredEntry(HostName(host), last[host], kept, entry)

    def write(self, store: RunStore) -> None:
        """Keep it as a run that was followed."""
        plan, end = msgspec.json.encode(self.plan()), self.end()
        record = RunRecord(
            RunId(self.run), "digits", self.started, self.names, b"", plan,
            b"" if end is None else msgspec.json.encode(end),
        )  # fmt: skip
        with store.create(record) as run_file:
            keep(run_file, self.entries())

    def _told(self) -> Iterator[tuple[float, int, Body]]:
        yield from self._beginning()
        for second in range(self.seconds):
            t = START + 7 + second
            for rank in range(self.world):
                yield t, rank // self.per_host, self.window(rank, second)
            if second % 2 == 0:
                for place in range(self.hosts):
                    yield t, place, self.sample(place, second)
            if second % 10 == 0:
                for rank in range(self.world):
                    yield (
                        t,
                        rank // self.per_host,
                        line(rank, f"epoch {second // 10}{self.words}"),
                    )
        if self.ended:
            yield from self._ending(START + 7 + self.seconds)

    def _beginning(self) -> Iterator[tuple[float, int, Body]]:
        for rank in range(self.world):
            place = rank // self.per_host
            for state, late in (("starting", 0.0), ("running", 0.2)):
                yield START + late, place, self.state(rank, state)
            for phase, seconds in PHASES:
                yield (
                    START + seconds, place,
                    {"kind": "phase", "rank": rank, "phase": phase, "seconds": seconds + rank % 7 / 10},
                )  # fmt: skip

    def state(self, rank: int, state: str, **more: Any) -> Body:
        """Return what a rank is from now on."""
        place = {"rank": rank, "local_rank": rank % self.per_host, "pid": 4000 + rank}
        return {"kind": "state", **place, "state": state, **more}

    def window(self, rank: int, second: int) -> Body:
        """Return what a rank did in one second."""
        slow = 1.5 if rank == self.slow else 1.0
        step = (second + 1) * STEPS_A_WINDOW - 1
        loss = 2.3 * math.exp(-second / 30) + 0.05 * math.sin(second + rank)
        wait = 25.0 if self.lockstep and self.slow not in (None, rank) else 0.0
        milliseconds = 50.0 * slow + wait + math.sin(second * 0.7 + rank) * 2
        name = f"loss{self.words}"
        return {
            "kind": "window", "rank": rank, "step": step, "steps": STEPS_A_WINDOW,
            "step_ms": [milliseconds, milliseconds * 1.2],
            "data_ms": 2.0 + (50 if self.lockstep else 25) * (slow - 1), "forward_ms": 15.0, "backward_ms": 25.0 + wait,
            "optimizer_ms": 4.0, "samples_s": 640.0 / slow, "metrics": {name: loss}, "dropped": 0,
            "points": {name: [[step - 10, loss + 0.01, 32.0], [step, loss, 32.0]]},
        }  # fmt: skip

    def sample(self, place: int, second: int) -> Body:
        """Return a host's load, and its GPUs'."""
        gpus = [
            {
                "gpu": local, "uuid": f"GPU-{place:02x}{local:02x}", "name": f"NVIDIA H100{self.words}",
                "util": 80.0 + math.sin(second + local) * 10, "mem_used": 40 << 30, "mem_total": 80 << 30,
                "temp_c": 61.0, "power_w": 410.0, "rank": place * self.per_host + local,
            }
            for local in range(self.per_host)
        ]  # fmt: skip
        node = {
            "cpu": 35.0,
            "mem_used": 64 << 30,
            "mem_total": 512 << 30,
            "net_rx_s": 1e8,
            "net_tx_s": 1e8,
        }
        return {"kind": "sample", "node": node, "gpus": gpus}

    def _ending(self, t: float) -> Iterator[tuple[float, int, Body]]:
        first = None
        if self.fails is not None:
            place = self.fails // self.per_host
            error = f"{TRACEBACK.splitlines()[-1]}{self.words}"
            trace = f"{TRACEBACK}{self.words}"
            for words in trace.split("\n"):
                yield t, place, line(self.fails, words, "err")
            first = {
                "rank": self.fails, "host": self.names[place], "exit_code": 1,
                "error": error, "traceback": trace,
            }  # fmt: skip
            yield (
                t, place,
                {"kind": "failure", "rank": self.fails, "t_ns": int(t * 1e9), "exit_code": 1,
                 "error": error, "traceback": trace},
            )  # fmt: skip
        for rank in range(self.world):
            state = "failed" if rank == self.fails else "killed" if first else "exited"
            code = {"failed": 1, "killed": 143, "exited": 0}[state]
            yield t, rank // self.per_host, self.state(rank, state, exit_code=code)
        state = "failed" if first else "succeeded"
        code = 1 if first else 0
        for place in range(self.hosts):
            said = {"state": state, "exit_code": code}
            yield t + 0.5, place, {"kind": "verdict", **said, "first_failure": first}
        for place in range(self.hosts):
            seconds = {"seconds": self.seconds + 1.0}
            yield t + 1, place, {"kind": "end", "state": state, "exit_code": code, **seconds}


def line(rank: int, text: str, stream: str = "out") -> Body:
    """Return a line that a rank printed."""
    return {"kind": "log", "rank": rank, "stream": stream, "offset": 0, "text": f"{text}\n"}


def stored_entry(host: str, seq: int, t: float, /, **body: Any) -> StoredEntry:
    """Return an entry as the store keeps it."""
    return StoredEntry(HostName(host), seq, t, encode_entry({"seq": seq, "t": t, **body}))


def keep(run_file: RunFile, entries: Iterable[StoredEntry], size: int = 4096) -> None:
    """Write entries as they are written while a run is followed, in batches of ``size``."""
    writer, rest = EntryWriter(run_file.path), iter(entries)
    while batch := list(islice(rest, size)):
        writer.put(batch)
    writer.close()
    assert not writer.failure, writer.failure
