"""Whether the bandwidth that ``bench collectives`` tells is that of a plain loop over torch.distributed.

Two ranks on this machine time both at each size, in turns within one process group, so that the
machine's other work falls on both alike: our own worker's timing, and the loop that one would write by
hand. The loop runs twice a round: where its ratio to itself differs from 1, so may ours.
"""

import json
import math
import statistics
import sys
import time
from typing import Any

from benchmarks.alone import Figures, Row, program
from benchmarks.measure import Spread
from benchmarks.ranks import Job, bare_environment, places

TOLERANCE = 0.05
OPS = ("all_reduce", "all_gather", "broadcast")
ELEMENTS = (1, 4096, 65536, 1048576, 4194304)
RANKS = 2
CASE_SECONDS = 0.05


def be(rounds: str) -> None:
    """One rank: print, as rank 0, the seconds of each contestant by operation and size."""
    import torch
    import torch.distributed as dist

    from distconsole_agent.probes.collectives.by_torch import TensorValues, Torch
    from distconsole_agent.probes.collectives.values import Case, iterations_for, repeat

    engine = Torch("gloo", 60.0)
    values = TensorValues(torch, engine.world, 1)

    def by_hand(op: str, elements: int, iterations: int) -> float:
        tensor = torch.zeros(elements)
        parts = [torch.zeros(elements) for _ in range(RANKS)]
        work = {
            "all_reduce": lambda: dist.all_reduce(tensor),
            "all_gather": lambda: dist.all_gather(parts, tensor),
            "broadcast": lambda: dist.broadcast(tensor, RANKS - 1),
        }[op]
        work()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(iterations):
            work()
        return (time.perf_counter() - began) / iterations

    def ours(op: str, elements: int, iterations: int) -> float:
        case = Case(op, "float32", elements, iterations)
        prepared = engine.prepare(case, values.of(case, engine.rank, 0, elements, 0))
        prepared.run()
        return repeat(engine, prepared, case, CASE_SECONDS)[0]

    found: dict[str, list[list[float]]] = {}
    for op in OPS:
        for elements in ELEMENTS:
            once = engine.greatest(by_hand(op, elements, 3))
            iterations = iterations_for(once, CASE_SECONDS)
            turns = (by_hand, ours, by_hand)
            for number in range(int(rounds)):
                order = turns if number % 2 == 0 else turns[::-1]
                found.setdefault(f"{op} {elements * 4}", []).append(
                    [each(op, elements, iterations) for each in order]
                )
    if engine.rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")
    engine.close()


def measure(rounds: int = 15) -> dict[str, Any]:
    """Run both ranks and return the ratios of each round."""
    commands = [
        (program("collectives_cost", rounds), bare_environment() | place)
        for place in places(RANKS)
    ]
    with Job(commands) as job:
        found: dict[str, list[list[float]]] = json.loads(job.result())
    sizes: dict[str, Any] = {}
    every: dict[str, list[float]] = {"ours": [], "noise": []}
    for name, turns in found.items():
        # Bandwidth over bandwidth: the seconds by hand over ours; first and last turn are by hand.
        # Their geometric mean, because an arithmetic one of noisy values favours ours.
        ours = [math.sqrt(first * last) / middle for first, middle, last in turns]
        noise = [last / first for first, _, last in turns]
        every["ours"] += ours
        every["noise"] += noise
        sizes[name] = {
            "seconds": Spread.of([middle for _, middle, _ in turns]),
            "ours": Spread.of(ours),
            "noise": Spread.of(noise),
        }
    return {
        "rounds": rounds,
        "sizes": sizes,
        "median": {name: statistics.median(values) for name, values in every.items()},
    }


def rows(figures: Figures) -> list[Row]:
    """Return the summary's row."""
    median = figures["median"]
    return [
        Row(
            "bench collectives: busbw over that of a plain loop",
            f"{median['ours']:.3f}",
            f"the loop over itself {median['noise']:.3f}",
            "within 5 %",
            abs(median["ours"] - 1) <= TOLERANCE,
        )
    ]
