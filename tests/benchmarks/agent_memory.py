"""What an agent and a console hold after many runs: a fresh one against the same after floods, a check and 500 runs.

One embedded node over real SSH; the console is this process. ``uss`` is what a process has for itself alone.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil

from benchmarks.alone import MIB, Figures, Row, at_most
from distconsole.config.schema import Config
from distconsole.model.requests import Check, LauncherName, Request, Run
from distconsole.operations import perform
from distconsole.session import Session
from distconsole.ssh.embedded import EmbeddedCluster
from suite.environment import scrubbed

TARGET = 22.0
"""MB of RSS that the agent may have at the end."""
SMALL = """
from distconsole_training import mark_step
for step in range(50):
    with mark_step():
        pass
    print(step)
"""
FLOOD = "for n in range({lines}): print(n, 'and some words to fill the line as a training script would')"
FLOODS = 2


def measure(runs: int = 500, lines: int = 300_000) -> dict[str, Any]:
    """Return what both processes hold at each mark, in MB."""
    marks: dict[str, Any] = {}
    with _operator() as (perform_one, folder, agent):
        script = folder / "train.py"

        def run(text: str) -> None:
            script.write_text(text)
            perform_one(Run(str(script), nproc="2", launcher=LauncherName.TORCH, grace_seconds=1))

        def mark(name: str) -> None:
            marks[name] = {"agent": _held(agent()), "console": _held(psutil.Process())}

        run(SMALL)
        mark("one run")
        for _ in range(FLOODS):
            run(FLOOD.format(lines=lines))
        mark(f"{FLOODS} floods of {2 * lines:,} lines")
        perform_one(Check())
        mark("a check")
        for _ in range(runs - FLOODS - 1):
            run(SMALL)
        mark(f"{runs} runs")
    return {"marks": marks, "target": TARGET}


@contextmanager
def _operator() -> Iterator[tuple[Any, Path, Any]]:
    kept = scrubbed(os.environ)
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        folder = Path(name)
        os.environ.clear()
        os.environ.update(kept | {"HOME": name, "XDG_DATA_HOME": f"{name}/data"})
        nodes = EmbeddedCluster(1, folder=folder / "nodes")
        with nodes as cluster, Session(Config(), cluster.cluster) as session:

            def perform_one(request: Request) -> None:
                for _ in perform(request, lambda _where: nullcontext(session)):
                    pass

            def agent() -> psutil.Process:
                for each in psutil.process_iter(["cmdline"]):
                    words = each.info["cmdline"] or []
                    if "agent" in words and any(word.startswith(name) for word in words):
                        return each
                raise RuntimeError("there is no agent")

            yield perform_one, folder, agent


def _held(process: psutil.Process) -> dict[str, float]:
    held = process.memory_full_info()
    return {"rss": round(held.rss / MIB, 1), "uss": round(held.uss / MIB, 1)}


def rows(figures: Figures) -> list[Row]:
    (_, first), *_, (last, held) = figures["marks"].items()
    target = figures["target"]
    return [
        Row(
            f"agent after {last}",
            f"{held['agent']['rss']} MiB",
            f"after one {first['agent']['rss']} MiB",
            *at_most(target, held["agent"]["rss"], " MiB"),
        ),
        Row(
            f"console after {last}",
            f"{held['console']['rss']} MiB",
            f"after one {first['console']['rss']} MiB",
        ),
    ]
