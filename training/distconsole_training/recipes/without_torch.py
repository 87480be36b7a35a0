"""Data-parallel training with the standard library alone: a line is fitted through points.

An ordinary ``env://`` script for any number of ranks. Each rank reads points of its own; in every
step all ranks wait for each other and average their gradients, as DistributedDataParallel does.
``--slow-rank`` and ``--damaged-rank`` put one rank into a trouble that the console has to find.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import time
from typing import IO

from distconsole_training import mark_step, report

BATCH = 32
FORWARD_SECONDS, BACKWARD_SECONDS = 0.015, 0.02
"""Time that a GPU would compute; this script sleeps instead."""

MEETING_SECONDS, RETRY_SECONDS = 60.0, 0.2


def main() -> None:
    """Fit the line."""
    options = read_options()
    ranks = TcpRanks()
    slope = height = 0.0
    for step in range(options.steps):
        is_slow = ranks.rank == options.slow_rank and step >= options.slow_from
        is_damaged = ranks.rank == options.damaged_rank and step == options.damaged_at
        with mark_step(samples=BATCH) as marked:
            marked.begin("data")
            lines = read_lines(step * ranks.world_size + ranks.rank, is_damaged=is_damaged)
            points = list(map(parse, lines))
            marked.begin("forward")
            errors = [slope * x + height - y for x, y in points]
            loss = sum(error * error for error in errors) / BATCH
            time.sleep(FORWARD_SECONDS + options.slow_seconds * is_slow)
            marked.begin("backward")
            for_slope = sum(2 * error * x for error, (x, _) in zip(errors, points)) / BATCH
            for_height = sum(2 * error for error in errors) / BATCH
            time.sleep(BACKWARD_SECONDS)
            for_slope, for_height = ranks.average([for_slope, for_height])
            marked.begin("optimizer")
            slope -= options.lr * for_slope
            height -= options.lr * for_height
            report(loss=loss, samples=BATCH)
        if ranks.rank == 0 and step % 50 == 49:
            print(f"step {step + 1}: y = {slope:.2f} x + {height:.2f}", flush=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--slow-rank", type=int, help="a rank whose forward takes longer")
    parser.add_argument("--slow-from", type=int, default=75, help="from this step on")
    parser.add_argument("--slow-seconds", type=float, default=0.03, help="how much longer")
    parser.add_argument("--damaged-rank", type=int, help="a rank that reads a damaged line")
    parser.add_argument("--damaged-at", type=int, default=230, help="in this step")
    return parser.parse_args()


def read_lines(batch: int, *, is_damaged: bool) -> list[str]:
    """Return the points of a batch, which lie around y = 3 x + 2, as lines of a file."""
    lines = []
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        x = math.sin(number)
        lines.append(f"{x:.4f} {3 * x + 2 + 0.3 * math.sin(9 * number):.4f}")
    return [line.replace(".", ",") for line in lines] if is_damaged else lines


def parse(line: str) -> tuple[float, float]:
    """Return the point in ``line``; raises ValueError if it is damaged."""
    x, y = line.split()
    return float(x), float(y)


class TcpRanks:
    """The ranks of this job, each connected to rank 0 over TCP."""

    def __init__(self) -> None:
        """Connect; raises OSError if the others do not come in time."""
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        place = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
        if self.rank == 0:
            with socket.create_server(place) as server:
                server.settimeout(MEETING_SECONDS)
                others = [server.accept()[0] for _ in range(self.world_size - 1)]
        else:
            others = [connect(place, time.monotonic() + MEETING_SECONDS)]
        self.others = [other.makefile("rw") for other in others]

    def average(self, values: list[float]) -> list[float]:
        """Return the mean of each value over all ranks, once all are here; raises OSError if one is gone."""
        if self.rank == 0:
            every = [values, *map(receive, self.others)]
            values = [sum(column) / self.world_size for column in zip(*every)]
        for other in self.others:
            other.write(json.dumps(values) + "\n")
            other.flush()
        return values if self.rank == 0 else receive(self.others[0])


def receive(other: IO[str]) -> list[float]:
    """Return the values that another rank has sent; raises ConnectionError if it is gone."""
    line = other.readline()
    if not line:
        raise ConnectionError("another rank has closed its connection")
    values: list[float] = json.loads(line)
    return values


def connect(place: tuple[str, int], due: float) -> socket.socket:
    """Return a connection to rank 0, which may not listen yet; tries until ``due``, in monotonic seconds."""
    try:
        return socket.create_connection(place)
    except ConnectionRefusedError:
        if time.monotonic() > due:
            raise
    time.sleep(RETRY_SECONDS)
    return connect(place, due)


if __name__ == "__main__":
    main()
