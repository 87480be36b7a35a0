"""``demo``: an embedded cluster on this machine, checked, then trained on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from msgspec import UNSET

from distconsole.checks.engine.run import run_check
from distconsole.config.load import load_config
from distconsole.errors import UnavailableError
from distconsole.model.events import DemoEnded, DemoStep, Event, Narration, RunShown
from distconsole.model.names import RunId
from distconsole.model.requests import Check, Demo, LauncherName, Level, Run
from distconsole.model.run_events import RunEvent, RunEvents, RunFinding, Window
from distconsole.operations.control import Control
from distconsole.operations.launch import launching
from distconsole.operations.sessions import lend
from distconsole.runs.detectors.conclusions import FIRST_FAILURE
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import summarise
from distconsole.runs.timeline import RunTimeline
from distconsole.session import Session

RANKS_A_NODE = 2
SLOW_FROM = 75
"""The step from which a rank is slow: by then the ranks are compared (``pace.WARM_UP_WINDOWS``)."""
DAMAGED_RANK, DAMAGED_AT, STEPS = 1, 430, 500
"""The rank that fails, its step, some 15 s after the slow rank is named, and the steps that there would be."""

NEEDED = {"torch": "torch", "sklearn": "scikit-learn", "numpy": "numpy"}
"""Modules that the training of ``--torch`` imports, and the command that brings them."""

CHECK = ("check", "what is found on nodes of this machine, over SSH")
TRAINING = ("training", "the ranks, which wait for each other in every step")
SLOW = ("slow rank", "which rank is named, since when, and in which part")
FAILURE = ("failure", "which rank failed first, and its traceback")
DIGITS = ("training", "loss and accuracy; ranks learn handwritten digits")


def demo(request: Demo, control: Control, store: RunStore) -> Iterator[Event]:
    """Check embedded nodes, then train over them, with a slow rank and a failure or with torch.

    Raises UnavailableError if what ``--torch`` needs is not installed beside the console.
    """
    missing = _find_missing() if request.torch else ()
    if missing:
        raise UnavailableError(
            f"demo --torch needs {', '.join(missing)}, not installed beside the console",
            "pip install 'distconsole[training]'; distconsole demo needs none of it",
        )
    steps = _Steps((CHECK, DIGITS) if request.torch else (CHECK, TRAINING, SLOW, FAILURE))
    timeline = RunTimeline()
    with ExitStack() as stack:
        yield steps.next()
        from distconsole.ssh.embedded import EmbeddedCluster  # noqa: PLC0415  (loads paramiko)

        # Short, because a Unix socket's path may have 107 characters.
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="dc-demo-", ignore_cleanup_errors=True)
        )
        cluster = stack.enter_context(EmbeddedCluster(request.nodes, folder=Path(folder)))
        session = stack.enter_context(Session(load_config(), cluster.cluster))
        # Without leftovers of others in /dev/shm.
        check = Check(json=request.json, skip=("horovod", "mpi", "slurm", "shm"))
        if not request.torch:
            check = replace(check, level=Level.QUICK, skip=("torch", *check.skip))
        for event in run_check(check, session):
            yield event
            if control.asked is not None:
                break
        if control.asked is None:
            yield steps.next()
            for event in launching.run(_make_run(request), lend(session), control, store):
                if isinstance(event, RunEvent):
                    if steps.is_due(event):
                        yield steps.next()
                    timeline.apply(event)
                yield event
    run = timeline.run if any(view.pid is not None for view in timeline.ranks.values()) else ""
    if run and request.torch and not request.json:
        yield from _conclusion(timeline, store)
    yield DemoEnded(
        run=run, exit_code=_exit_code(timeline, request, control), torch_lacks=_find_missing()
    )


def _find_missing() -> tuple[str, ...]:
    return tuple(package for name, package in NEEDED.items() if find_spec(name) is None)


class _Steps:
    """The parts of the demo, each announced once when it begins."""

    def __init__(self, titles: tuple[tuple[str, str], ...]) -> None:
        self._titles = titles
        self._begun = 0

    def next(self) -> DemoStep:
        title, look = self._titles[self._begun]
        self._begun += 1
        return DemoStep(number=self._begun, of=len(self._titles), title=title, look=look)

    def is_due(self, event: RunEvents) -> bool:
        if self._begun == len(self._titles):
            return False
        if self._titles[self._begun] is SLOW:
            return isinstance(event, Window) and event.step >= SLOW_FROM
        return isinstance(event, RunFinding) and event.check == FIRST_FAILURE


def _make_run(request: Demo) -> Run:
    if request.torch:
        one_thread = (("OMP_NUM_THREADS", "1"),)  # all nodes share this machine's processors
        return Run(
            script=_recipe("digits"), nproc="1", name="digits", env=one_thread, json=request.json
        )
    slow = RANKS_A_NODE * (request.nodes - 1)
    troubles = f"--slow-rank {slow} --slow-from {SLOW_FROM} --steps {STEPS}"
    troubles += f" --damaged-rank {DAMAGED_RANK} --damaged-at {DAMAGED_AT}"
    return Run(
        script=_recipe("without_torch"),
        arguments=tuple(troubles.split()),
        launcher=LauncherName.TORCH,
        nproc=str(RANKS_A_NODE),
        name="demo",
        json=request.json,
    )


def _recipe(name: str) -> str:
    """Return the script, without importing it or its imports."""
    spec = find_spec("distconsole_training")
    if spec is None or spec.origin is None:
        raise UnavailableError(
            "distconsole_training is not installed", "install distconsole again"
        )
    return str(Path(spec.origin).parent / "recipes" / f"{name}.py")


def _exit_code(timeline: RunTimeline, request: Demo, control: Control) -> int:
    """Return the run's exit code; a failure that the demo is about is none of the program's."""
    end = timeline.end
    if end is None:
        return 0 if control.asked is None else control.asked.reason.exit_code
    first = None if end.first_failure is UNSET else end.first_failure
    meant = not request.torch and first is not None and first.rank == DAMAGED_RANK
    return 0 if meant else end.exit_code


def _conclusion(timeline: RunTimeline, store: RunStore) -> Iterator[Event]:
    summary = summarise(store.record(RunId(timeline.run)), timeline)
    yield RunShown(summary=summary)
    accuracy = summary.metrics.get("test_accuracy")
    if accuracy is None or timeline.end is None or timeline.end.exit_code != 0:
        return
    parts = [f"test accuracy {100 * accuracy:.2f} %", f"{timeline.end.seconds:.0f} s"]
    if summary.samples_s is not None:
        parts.append(f"{summary.samples_s:,.0f} samples/s")
    spread = summary.own_ms_spread or summary.step_ms_spread
    if spread is not None:
        parts.append(f"slowest rank {spread:.2f} x the fastest")
    yield Narration(text=", ".join(parts))
