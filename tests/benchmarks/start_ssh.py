"""A warm start by the system's ssh: held against the floor that it has, a login by ssh to each host, and the same
verb by paramiko, one after the other. Agents run, keys let in.

``python -m benchmarks.start_ssh [--json FILE] [--rounds N] [--hosts N]``
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, run_alone, text
from benchmarks.cluster import bed_and_folder, distconsole, finish, log_in_to_all, warm
from benchmarks.measure import alternate, ratios, spreads
from testbed import Testbed

TARGET = 1.1
VERBS = {"top": ("top", "--once"), "run": ("run", "--launcher", "torch")}


class Starts:
    """What is done on all hosts of a bed at once."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self._bed, self._folder = bed, folder
        (script := folder / "says.py").write_text("print('it runs')\n")
        self._script = str(script)

    def ours(self, verb: str, transport: str) -> float:
        """Seconds of a verb, the program's start and end included; raises RuntimeError if it fails."""
        words = [*VERBS[verb], "--transport", transport]
        words += [self._script] if verb == "run" else []
        return finish(distconsole(self._bed, *words), self._folder)[1]


def measure(rounds: int, hosts: int) -> dict[str, Any]:
    """Do each once a round; return seconds, and ratios within the same round."""
    with bed_and_folder(hosts) as (bed, folder):
        warm(bed, folder)
        starts = Starts(bed, folder)
        contestants: dict[str, Callable[[], float]] = {"ssh": partial(log_in_to_all, bed)}
        for verb in VERBS:
            for transport in ("openssh", "paramiko"):
                contestants[f"{verb}_{transport}"] = partial(starts.ours, verb, transport)
        found = alternate(contestants, rounds, warmed=lambda: None)
    floors = {
        verb: [sum(pair) for pair in zip(found["ssh"], found[f"{verb}_paramiko"], strict=True)]
        for verb in VERBS
    }
    return {
        "hosts": hosts,
        "rounds": rounds,
        "seconds": spreads(found),
        "ratios": {verb: ratios(found[f"{verb}_openssh"], floors[verb]) for verb in VERBS},
        "target": TARGET,
    }


def rows(figures: Figures) -> list[Row]:
    """Return what the summary of all benchmarks takes."""
    seconds = {kind: f"{text(found)} s" for kind, found in figures["seconds"].items()}
    return [
        Row(
            f"{verb} by ssh, {figures['hosts']} hosts",
            seconds[f"{verb}_openssh"],
            f"{text(over)} of ssh to all, {seconds['ssh']}, and by paramiko, {seconds[f'{verb}_paramiko']}",
            f"≤ {figures['target']}",
            over["median"] <= figures["target"],
        )
        for verb, over in figures["ratios"].items()
    ]


if __name__ == "__main__":
    run_alone("start_ssh", __doc__, measure, rows, rounds=7, hosts=4)
