"""``setup``: installs missing packages. Horovod is built once for each kind of host, and proved.

Building and installing are ordinary runs of one process a host, so they are logged, can be stopped,
and leave nothing. Only the Python that the ranks use changes, and it asks before.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from distconsole.config.paths import expand_home
from distconsole.errors import ConsoleError, PlanError, UsageError
from distconsole.launch.engines import engines_of
from distconsole.model.events import Event, Narration, warn
from distconsole.model.findings import Severity
from distconsole.model.names import HostName
from distconsole.model.requests import Check, LauncherName, Prepare, Run
from distconsole.model.run_events import EndState, LogLine, RunEnded
from distconsole.operations import check
from distconsole.operations.control import Control
from distconsole.operations.launch import launching
from distconsole.operations.sessions import SessionSource, lend
from distconsole.operations.setup.node_programs import build_horovod
from distconsole.operations.setup.plan import (
    HOROVOD_VERSION,
    Build,
    BuildFacts,
    SetupPlan,
    plan_setup,
)
from distconsole.rpc.link import NodeLink
from distconsole.rpc.wire import decode_as
from distconsole.runs.store.store import RunStore
from distconsole.session import Session, connect_all, on_every, probe, require_all

PROBE_SECONDS = 30.0
DOWNLOAD_SECONDS = 120.0
MAX_WHEEL_BYTES = 512 * 1024 * 1024
WHEEL_WORD = "distconsole-wheel "
PROGRAMS = "distconsole.operations.setup.node_programs"
LAST_LINES = 4
PIP_NOISE = ("WARNING: Retrying", "WARNING: Running pip as")


def prepare(
    request: Prepare, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Report the missing packages, ask, build, install, and have the checks prove it.

    Raises UsageError if nobody is there to ask; PlanError if the hosts that lack it cannot have it;
    ConsoleError if something could not be built or installed.
    """
    with sessions(request.where) as session:
        connect_all(session)
        everyone = [host.name for host in session.cluster.hosts]
        plan = look(session, everyone, request.rebuild)
        yield from _tell_plan(plan)
        if request.dry_run or not plan.builds:
            _refuse(plan)
            return
        _consent(request, plan, control)
        launch = partial(launching.run, sessions=lend(session), control=control, store=store)
        work = _Work(request, launch, everyone)
        for build in plan.builds:
            yield from work.bring(session, build)
        _refuse(plan)
    checked = Check(where=request.where, only=("horovod",))
    yield from check.check(checked, sessions)


def look(session: Session, hosts: Sequence[HostName], rebuild: bool = False) -> SetupPlan:
    """Ask the hosts for their packages; return the plan (``rebuild``: anyway); raises UnreachableError."""

    def ask(link: NodeLink) -> tuple[Any, Any]:
        host = link.host
        shell = {"python": link.python, "setup": host.setup}
        engines = {"engines": ["horovod"], **shell}
        wanted = {"modules": dict(build_horovod.NEEDS), **shell}
        return (
            probe(link, "build", PROBE_SECONDS, wanted),
            probe(link, "engines", PROBE_SECONDS, engines),
        )

    found = require_all(on_every(session, hosts, ask), "the hosts cannot be looked at")
    answers = dict(zip(hosts, found, strict=True))
    facts = {host: decode_as(build, BuildFacts) for host, (build, _) in answers.items()}
    engines = {host: engines_of(told, ("horovod",)) for host, (_, told) in answers.items()}
    there = {host: each.horovod for host, each in engines.items()}
    return plan_setup(facts, {} if rebuild else there)


def _tell_plan(plan: SetupPlan) -> Iterator[Narration]:
    if plan.fine:
        yield Narration(text=f"Horovod fits the torch on {', '.join(plan.fine)}")
    for build in plan.builds:
        yield Narration(
            text=f"Horovod {HOROVOD_VERSION} would be built for torch {build.torch} on "
            f"{build.host} (about {build.minutes} min) and installed on {', '.join(build.hosts)}"
        )
        for lacking in build.without:
            yield warn(f"{build.host}: {lacking}")
    for host, (why, _) in plan.cannot.items():
        yield Narration(text=f"{host}: {why}", severity=Severity.FAIL)


def _refuse(plan: SetupPlan) -> None:
    if plan.cannot:
        hints = dict.fromkeys(hint for _, hint in plan.cannot.values())
        raise PlanError(f"Horovod cannot be brought to {', '.join(plan.cannot)}", "\n".join(hints))


def _consent(request: Prepare, plan: SetupPlan, control: Control) -> None:
    if request.yes:
        return
    hosts = ", ".join(host for build in plan.builds for host in build.hosts)
    if control.confirm is None:
        raise UsageError(f"setup would change the Python on {hosts}", "setup --yes does it")
    if not control.confirm(f"Change the Python on {hosts}?"):
        raise UsageError("nothing was changed", "setup --yes asks nothing")


@dataclass(frozen=True, slots=True)
class _Work:
    """Builds, fetches and installs, each by ``launch``, which is ``run`` on the session's hosts."""

    request: Prepare
    launch: Callable[..., Iterator[Event]]
    everyone: Sequence[HostName]

    def bring(self, session: Session, build: Build) -> Iterator[Event]:
        with _folder("build_horovod.py") as folder:
            source = _fetch_source(self.request.source, folder)
            if source is None:
                source = f"horovod=={HOROVOD_VERSION}"
                text = f"no pip here can fetch it, so {build.host} fetches it itself"
                yield Narration(text=text)
            _fetch_tools(build.facts, folder)
            words = (source, build.folder)
            lines = yield from self._run("build_horovod.py", words, folder, (build.host,))
        wheel, size, sha256 = _read_wheel(lines)
        name = wheel.rpartition("/")[2]
        yield Narration(text=f"built on {build.host}: {name}, {size >> 20} MiB")
        with _folder("install_horovod.py") as folder:
            data = fetch(session.link(build.host), wheel, size, sha256)
            (folder / name).write_bytes(data)
            yield from self._run("install_horovod.py", (name,), folder, build.installs)

    def _run(
        self, script: str, arguments: tuple[str, ...], folder: Path, hosts: Sequence[HostName]
    ) -> Generator[Event, None, list[str]]:
        """Run a program of ours on ``hosts``; returns the lines that it printed."""
        request = Run(
            script=script,
            arguments=arguments,
            where=self.request.where,
            launcher=LauncherName.SINGLE,
            workdir=str(folder),
            sync=True,
            watch=False,
            name="setup-" + script.partition("_")[0],
        )
        others = [host for host in self.everyone if host not in hosts]
        lines: list[str] = []
        ended: RunEnded | None = None
        for event in self.launch(request, exclude=others):
            match event:
                case LogLine(transient=False):
                    lines.append(event.line)
                    if not event.line.startswith((WHEEL_WORD, *PIP_NOISE)):
                        yield Narration(text=f"{event.host}: {event.line}")
                case RunEnded():
                    ended = event
                case Narration(severity=Severity.WARN | Severity.FAIL):
                    yield event
                case _:
                    pass
        if ended is None or ended.state is not EndState.SUCCEEDED:
            _fail(script, lines, ended)
        return lines


def _fail(script: str, lines: Sequence[str], ended: RunEnded | None) -> None:
    what = "built" if script.startswith("build") else "installed"
    if ended is not None and ended.state is EndState.STOPPED:
        error = ConsoleError(f"stopped: Horovod was not {what}")
        error.exit_code = ended.exit_code
        raise error
    run = f"distconsole logs {ended.run}" if ended is not None else ""
    words = [line for line in lines if not line.startswith(PIP_NOISE)][-LAST_LINES:]
    raise ConsoleError(f"Horovod could not be {what}: " + "\n".join(words), run)


def _read_wheel(lines: Sequence[str]) -> tuple[str, int, str]:
    """Return the wheel's place on its host, its bytes and its SHA-256."""
    named = [line.removeprefix(WHEEL_WORD) for line in lines if line.startswith(WHEEL_WORD)]
    with suppress(ValueError, TypeError, KeyError, IndexError):
        told = json.loads(named[-1])
        return str(told["wheel"]), int(told["size"]), str(told["sha256"])
    raise ConsoleError("the build ended well and named no wheel", "try again; see its logs")


def fetch(link: NodeLink, wheel: str, size: int, sha256: str) -> bytes:
    """Return a wheel built on a node; raises NodeError, or ConsoleError if it is not the one that was built."""
    data = bytearray()
    while len(data) < min(size, MAX_WHEEL_BYTES):
        wanted = {"wheel": wheel, "offset": len(data)}
        answer = probe(link, "build.wheel", PROBE_SECONDS, wanted)
        piece = base64.b64decode(answer.get("data", ""))
        if not piece:
            break
        data += piece
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ConsoleError(f"{wheel} on {link.host.name} is not the wheel that was built there")
    return bytes(data)


def _fetch_source(given: str | None, folder: Path) -> str | None:
    """Put Horovod's source into ``folder`` for nodes without an index; return its name, None if none is had."""
    if given is not None:
        try:
            shutil.copy(expand_home(given), folder)
        except OSError as error:
            raise UsageError(f"--source {given}: {error.strerror}") from None
        return Path(given).name
    wanted = ("--no-binary", "horovod", "--no-build-isolation", f"horovod=={HOROVOD_VERSION}")
    _download(wanted, folder)
    return next((path.name for path in folder.glob("horovod-*.tar.gz")), None)


def _fetch_tools(facts: BuildFacts, folder: Path) -> None:
    """Put missing build tools for that host into ``folder``, as far as they can be had here."""
    lacking = [*facts.missing, *(() if facts.tools.get("cmake") else ("cmake",))]
    machine = facts.platform.removeprefix("linux-")
    if not lacking or not facts.python or machine == facts.platform:
        return
    platforms = [f"manylinux{age}_{machine}" for age in ("2014", "_2_17", "1", "2010")]
    wanted = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", facts.python]
    wanted += [word for platform in platforms for word in ("--platform", platform)]
    for package in lacking:
        _download((*wanted, package), folder)


def _download(wanted: Sequence[str], folder: Path) -> None:
    """Have pip download a package without its requirements into ``folder``; empty if it cannot."""
    words = [sys.executable, "-P", "-m", "pip", "download", "-q"]
    words.append("--disable-pip-version-check")
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [*words, "--no-deps", "-d", str(folder), *wanted],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )


@contextmanager
def _folder(program: str) -> Iterator[Path]:
    """Give a folder with one of the programs in it, to be brought by ``--sync``."""
    with tempfile.TemporaryDirectory(prefix="distconsole-setup-") as name:
        source = resources.files(PROGRAMS) / program
        with resources.as_file(source) as path:
            shutil.copyfile(path, Path(name) / program)
        yield Path(name)
