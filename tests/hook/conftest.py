"""Runs real scripts in real interpreters, bare and watched; judges nothing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import distconsole_training
from distconsole_agent.journal.rings import Header, step_of
from distconsole_training import records
from suite.warm import Script, Warm

PACKAGE = Path(distconsole_training.__file__).parent
SECONDS = 150
STAMP = re.compile(r"^[WIE]\d{4} [\d:.]+ \d+ ", re.MULTILINE)
"""Time and pid, with which torch begins the lines of its log."""

PEACEFUL = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
"""Few threads, and no warning of Gloo's where this machine's name has no address."""

RECORD_FIELDS = [
    "sequence",
    "step",
    "time_ns",
    "kind",
    "flags",
    "name",
    "samples",
    "seconds",
    "data",
    "forward",
    "backward",
    "optimizer",
    "value",
]


@dataclass(frozen=True)
class RingFile:
    """What one process left in its ring."""

    header: dict[str, Any]
    names: list[str]
    rows: list[dict[str, Any]]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == records.STEP]

    @property
    def phases(self) -> list[str]:
        return [records.PHASES[row["name"]] for row in self.rows if row["kind"] == records.PHASE]

    @property
    def worlds(self) -> list[tuple[str, int, float]]:
        """What the phases say of a world: its size and the rank in it."""
        return [
            (records.PHASES[row["name"]], row["samples"], row["value"])
            for row in self.rows
            if row["kind"] == records.PHASE and row["samples"]
        ]

    @property
    def is_alone(self) -> bool:
        """Whether its first step was made without a group."""
        return any(row["kind"] == records.PHASE and row["flags"] for row in self.rows)

    @property
    def metrics(self) -> list[tuple[str, int, float, int]]:
        return [
            (self.names[row["name"]], row["step"], row["value"], row["samples"])
            for row in self.rows
            if row["kind"] == records.METRIC
        ]

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.steps]


def read_ring(path: Path) -> RingFile:
    """Return the content of a ring that nobody writes any more and that never wrapped round."""
    raw = path.read_bytes()
    header = Header(*records.HEADER.unpack_from(raw))._asdict()
    assert header["magic"] == records.MAGIC
    names = [
        raw[records.NAMES_OFFSET + index * records.NAME_BYTES :][: records.NAME_BYTES]
        .rstrip(b"\0")
        .decode()
        for index in range(header["names_used"])
    ]
    rows = []
    for index in range(min(header["written"], header["capacity"])):
        offset = records.RECORDS_OFFSET + index * records.RECORD.size
        record = records.RECORD.unpack_from(raw, offset)
        if record[3] == records.TIMES:
            record = step_of(raw, offset)
        row = dict(zip(RECORD_FIELDS, record, strict=True))
        assert row["sequence"] == index + 1
        rows.append(row)
    return RingFile(header, names, rows)


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    code: int
    out: str
    err: str
    rings: list[RingFile] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    folder: Path = Path()

    @property
    def seen(self) -> tuple[int, str, str]:
        """What the user sees."""
        return self.code, self.out, STAMP.sub("", self.err)

    @property
    def ring(self) -> RingFile:
        """The only ring; the hook must have had no failure of its own."""
        assert len(self.rings) == 1, (self.rings, self.out, self.err)
        assert self.rings[0].header["guard_errors"] == 0
        return self.rings[0]


class Runner:
    """Starts scripts in a folder of their own."""

    def __init__(self, folder: Path, hook: Path, warm: Callable[[], Warm] | None = None) -> None:
        self.folder = folder
        self.hook = hook
        self._warm = warm
        self.scripts = folder / "job"
        self.scripts.mkdir()

    def script(self, text: str, name: str = "train.py") -> Path:
        path, aside = self.scripts / name, self.scripts / f".{name}"
        aside.write_text(textwrap.dedent(text))
        aside.replace(
            path
        )  # whole at any moment: one that was started before may just begin to read it
        return path

    def watched(self, text: str, *options: str, **more: Any) -> Outcome:
        """Run a script with the hook and return how it ended."""
        return self._finish(self._start(text, options, hooked=True, **more))

    def bare(self, text: str, *options: str, **more: Any) -> Outcome:
        """Run a script without the hook and return how it ended."""
        return self._finish(self._start(text, options, hooked=False, **more))

    def forked(self, text: str, env: Mapping[str, str] | None = None) -> Outcome:
        """Run a script with the hook, in a fork of an interpreter that has torch already."""
        state = self._state("forked")
        out, err = state / "out", state / "err"
        assert self._warm is not None
        script, environment = self.script(text), {**self._hooked(state), **(env or {})}
        (code,) = self._warm().run(Script(script, script.parent, environment, out, err))
        return self._outcome(code, out.read_text(), err.read_text(), state)

    def both(self, text: str, *options: str, **more: Any) -> tuple[Outcome, Outcome]:
        """Run a script without the hook and with it, at the same time."""
        bare = self._start(text, options, hooked=False, **more)
        watched = self._start(text, options, hooked=True, **more)
        return self._finish(bare), self._finish(watched)

    def unchanged(self, text: str, *options: str, **more: Any) -> Outcome:
        """Assert that the user sees no difference; return the watched outcome."""
        bare, watched = self.both(text, *options, **more)
        assert watched.seen == bare.seen
        return watched

    def begin(self, text: str, **more: Any) -> tuple[subprocess.Popen[str], Path]:
        """Start a script with the hook; return its process and the folder of what it leaves."""
        return self._start(text, (), hooked=True, **more)

    def _start(
        self,
        text: str,
        options: Sequence[str],
        *,
        hooked: bool,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        python: str = sys.executable,
        command: Callable[[Path], list[str]] | None = None,
        path: str = "",
    ) -> tuple[subprocess.Popen[str], Path]:
        script = self.script(text)
        state = self._state("watched" if hooked else "bare")
        environment = {**PEACEFUL, **clean_environment()}
        environment.update({**(self._hooked(state) if hooked else {}), **(env or {})})
        folders = [str(self.hook)] if hooked else []
        environment["PYTHONPATH"] = os.pathsep.join(folders + ([path] if path else []))
        words = command(script) if command else [python, *options, str(script), *arguments]
        process = subprocess.Popen(
            words,
            cwd=self.scripts,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return process, state

    def _finish(self, started: tuple[subprocess.Popen[str], Path]) -> Outcome:
        process, state = started
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"no end after {SECONDS} s: {out}\n{err}")
        return self._outcome(process.returncode, out, err, state)

    def _state(self, name: str) -> Path:
        """Make an empty folder for what a process leaves."""
        state = self.folder / name
        shutil.rmtree(state, ignore_errors=True)
        (state / "rings").mkdir(parents=True)
        (state / "errors").mkdir()
        return state

    def _hooked(self, state: Path) -> dict[str, str]:
        """Return what the hook is told."""
        return {
            records.ENV_RUN: "test-run",
            records.ENV_RINGS: str(state / "rings"),
            records.ENV_ERRORS: str(state / "errors"),
            records.ENV_HOOK: str(self.hook),
        }

    def _outcome(self, code: int, out: str, err: str, state: Path) -> Outcome:
        rings = [read_ring(path) for path in sorted((state / "rings").glob("*.ring"))]
        errors = [json.loads(path.read_text()) for path in sorted((state / "errors").iterdir())]
        return Outcome(code, out, err, rings, errors, state)


def clean_environment() -> dict[str, str]:
    """Return our environment without what makes a process a rank or a test."""
    foreign = ("DISTCONSOLE_", "PYTEST", "COV_", "PYTHON", "SLURM_", "OMPI_", "PMI", "HOROVOD_")
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) and name not in ranks
    }


def make_hook_folder(folder: Path) -> Path:
    """Lay the hook out as the agent does."""
    shutil.copytree(
        PACKAGE,
        folder / "distconsole_training",
        ignore=shutil.ignore_patterns("__pycache__", "recipes"),
    )
    shutil.copy(PACKAGE / "_sitecustomize.py", folder / "sitecustomize.py")
    return folder


@pytest.fixture(scope="session")
def hook_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hook_folder(tmp_path_factory.mktemp("hook") / "hook-0123456789abcdef")


@pytest.fixture(scope="session")
def warm(hook_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """One interpreter with torch and the hook for all scripts that need no start of their own."""
    made = start_warm(hook_folder, tmp_path_factory.mktemp("warm"))
    yield made
    made.close()


def start_warm(hook: Path, folder: Path, **more: str) -> Warm:
    """Start an interpreter with torch and the hook; ``more`` is in its environment."""
    environment = {**PEACEFUL, **clean_environment(), "PYTHONPATH": str(hook)}
    told = dict.fromkeys((records.ENV_RINGS, records.ENV_ERRORS), str(folder))
    named = {records.ENV_RUN: "test-run", records.ENV_HOOK: str(hook)}
    return Warm({**environment, **told, **named, **more})


@pytest.fixture(scope="session")
def standing_runner(tmp_path_factory: pytest.TempPathFactory, hook_folder: Path) -> Runner:
    """For what several tests compare with."""
    return Runner(tmp_path_factory.mktemp("standing"), hook_folder)


@pytest.fixture
def runner(request: pytest.FixtureRequest, tmp_path: Path, hook_folder: Path) -> Runner:
    return Runner(tmp_path, hook_folder, lambda: request.getfixturevalue("warm"))


@pytest.fixture(scope="session")
def warm_verifying(hook_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """As ``warm``, for scripts that check themselves every two steps."""
    folder = tmp_path_factory.mktemp("warm_verifying")
    made = start_warm(hook_folder, folder, **{records.ENV_VERIFY: "2"})
    yield made
    made.close()


@pytest.fixture
def verifying(warm_verifying: Warm, tmp_path: Path, hook_folder: Path) -> Runner:
    return Runner(tmp_path, hook_folder, lambda: warm_verifying)
