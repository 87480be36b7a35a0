"""``demo``: an embedded cluster on this machine, checked, then trained on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from distconsole.config.load import load_config
from distconsole.errors import UnavailableError, UsageError
from distconsole.model.events import Event, Narration, RunShown
from distconsole.model.requests import Check, Demo, LauncherName, Run
from distconsole.model.run_events import RunEvent
from distconsole.operations.check import check
from distconsole.operations.control import Control
from distconsole.operations.launch import launching
from distconsole.operations.sessions import lend
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import summarise
from distconsole.runs.timeline import RunTimeline
from distconsole.session import Session

NAME = "digits"
MAX_NODES = 8
NEEDED = ("torch", "sklearn", "numpy")


def demo(request: Demo, control: Control, store: RunStore) -> Iterator[Event]:
    """Check embedded nodes, then train a small network on handwritten digits over them.

    Raises UnavailableError if torch or scikit-learn is not installed beside the console; UsageError
    for a number of nodes that one machine cannot play.
    """
    _require(request)
    with ExitStack() as stack:
        yield Narration(
            text=f"{request.nodes} nodes on this machine, each reached by real SSH on loopback"
        )
        session = stack.enter_context(_start_nodes(request.nodes, stack))
        for event in check(Check(json=request.json), lend(session)):
            yield event
            if control.asked is not None:
                break
        run = Run(
            script=str(_recipe()),
            launcher=LauncherName.AUTO,
            nproc="1",
            name=NAME,
            json=request.json,
        )
        timeline = RunTimeline()
        for event in launching.run(run, lend(session), control, store):
            if isinstance(event, RunEvent):
                timeline.apply(event)
            yield event
    if not request.json and timeline.end is not None and timeline.plan is not None:
        yield from _conclusion(timeline, store)


def _require(request: Demo) -> None:
    if not 1 <= request.nodes <= MAX_NODES:
        raise UsageError(f"--nodes {request.nodes}: this machine plays 1 to {MAX_NODES} nodes")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"the demo trains, and {', '.join(missing)} is not installed beside the console",
            "pip install 'distconsole[training]'",
        )


def _start_nodes(nodes: int, stack: ExitStack) -> Session:
    """Return a session on fresh embedded nodes; ``stack`` ends them and removes their folder."""
    from distconsole.ssh.embedded import EmbeddedCluster  # noqa: PLC0415  (loads paramiko)

    # Short, because a Unix socket's path may have 107 characters.
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="dc-demo-", ignore_cleanup_errors=True)
    )
    cluster = stack.enter_context(EmbeddedCluster(nodes, folder=Path(folder)))
    return Session(load_config(), cluster.cluster)


def _recipe() -> Path:
    """Return the script, without importing it or what it imports."""
    spec = find_spec("distconsole_training")
    if spec is None or spec.origin is None:
        raise UnavailableError(
            "distconsole_training is not installed", "install distconsole again"
        )
    return Path(spec.origin).parent / "recipes" / "digits.py"


def _conclusion(timeline: RunTimeline, store: RunStore) -> Iterator[Event]:
    """Yield the summary, and in one line what it comes to."""
    with store.open(store.resolve(timeline.run)) as run_file:
        summary = summarise(run_file.record(), timeline)
    yield RunShown(summary=summary)
    accuracy = summary.metrics.get("test_accuracy")
    if accuracy is None or timeline.end is None or timeline.end.exit_code != 0:
        return
    parts = [f"test accuracy {100 * accuracy:.2f} %", f"{timeline.end.seconds:.0f} s"]
    if summary.samples_s is not None:
        parts.append(f"{summary.samples_s:,.0f} samples/s")
    if summary.step_ms_spread is not None:
        parts.append(f"slowest rank {summary.step_ms_spread:.2f} x the fastest")
    yield Narration(text=", ".join(parts))
    yield Narration(text=f"once more, from the store: distconsole replay {timeline.run}")
