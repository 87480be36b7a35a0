"""``setup``: installs missing packages. Horovod is built once for each kind of host, and proved.

Building and installing are ordinary runs of one process a host, so they are logged, can be stopped,
and leave nothing. Only the Python that the ranks use changes, and it asks before.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from distconsole.checks.facts.node import MpiFacts
from distconsole.config.paths import expand_home
from distconsole.errors import ConsoleError, PlanError, UsageError
from distconsole.launch.engines import HorovodBuild, engines_of
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
from distconsole.rpc.link import NodeLink
from distconsole.rpc.wire import decode_as
from distconsole.runs.store.store import RunStore
from distconsole.session import Session, connect_all, on_every, probe, require_all

HOROVOD_VERSION = "0.28.1"
"""The newest release."""

BUILD_CPU_MINUTES = 5
"""That a build takes of one processor, about."""


class InstalledTorch(msgspec.Struct, frozen=True, kw_only=True):
    """The torch of a host's Python, as its version file says."""

    version: str = ""
    cuda: str | None = None
    hip: str | None = None


class BuildFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the probe ``build`` about a host.

    Attributes:
        tag: The ABI of its Python, as in the names of compiled modules.
        site: Where that Python has its packages; ``writable`` by us; ``site_id`` is the same on
            hosts that share the folder.
        managed: Whether the system forbids pip to change it (PEP 668).
        tools: Compilers and the like, by name; null for a missing one.
        nccl: Whether there is a header of NCCL, in torch's own wheels or in the system.
        missing: Python packages that a build imports and that are not there.
        libstdcxx: The C++ library that its Python loads, such as ``libstdc++.so.6.0.33``; empty
            where it finds none, and from older agents.
    """

    tag: str
    platform: str = ""
    libc: str = ""
    executable: str = ""
    site: str = ""
    site_id: str = ""
    writable: bool = True
    managed: bool = False
    pip: bool = True
    torch: InstalledTorch | None = None
    tools: dict[str, str | None] = {}
    cpus: int = 1
    mpi: MpiFacts = MpiFacts(present=False)
    nccl: bool = False
    missing: tuple[str, ...] = ()
    libstdcxx: str = ""

    @property
    def python(self) -> str:
        """Its version for pip, such as ``3.11``; empty for another ABI."""
        digits = self.tag.removeprefix("cpython-").partition("-")[0].rstrip("t")
        return f"{digits[0]}.{digits[1:]}" if digits.isdigit() and len(digits) > 1 else ""

    @property
    def kind(self) -> tuple[str, ...]:
        """Hosts that are equal in this can have the same wheel."""
        torch = self.torch or InstalledTorch()
        mpi = f"{self.mpi.family} {self.mpi.version.partition('.')[0]}" if self.mpi.present else ""
        gpu = torch.cuda or torch.hip or ""
        return (self.tag, self.platform, self.libc, self.libstdcxx, torch.version, mpi, gpu)

    @property
    def wheel_folder(self) -> str:
        """Name of the folder for a wheel built here, also if hosts of other kinds share the home."""
        able = (*self.kind, *_able(self)[:2])
        return f"horovod{HOROVOD_VERSION}-{hashlib.sha256(repr(able).encode()).hexdigest()[:16]}"

    @property
    def compiler(self) -> bool:
        return any(self.tools.get(name) for name in ("g++", "c++"))


@dataclass(frozen=True, slots=True)
class Build:
    """One wheel: the host that builds it, its folder there, and the hosts that get it.

    Attributes:
        hosts: That lack it.
        installs: Those of them that install it: one of those that share a folder.
        facts: Of the host that builds it.
        without: Features that it is built without, and their requirements; empty if none is lacking.
    """

    host: HostName
    folder: str
    minutes: int
    torch: str
    hosts: tuple[HostName, ...]
    installs: tuple[HostName, ...]
    facts: BuildFacts
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SetupPlan:
    """Builds and installations; ``cannot`` has by host the reason against any, and the remedy."""

    fine: tuple[HostName, ...]
    builds: tuple[Build, ...]
    cannot: Mapping[HostName, tuple[str, str]]


def works(horovod: HorovodBuild | None, torch: str) -> bool:
    return horovod is not None and horovod.library and horovod.against in ("", torch)


def plan_setup(
    facts: Mapping[HostName, BuildFacts], horovod: Mapping[HostName, HorovodBuild | None]
) -> SetupPlan:
    fine, cannot = [], {}
    lacking: dict[tuple[str, ...], list[HostName]] = {}
    for host, each in facts.items():
        reason = _obstacle(each)
        if each.torch is not None and works(horovod.get(host), each.torch.version):
            fine.append(host)
        elif reason is not None:
            cannot[host] = reason
        else:
            lacking.setdefault(each.kind, []).append(host)
    builds = []
    for kind, hosts in lacking.items():
        able = [host for host, each in facts.items() if each.kind == kind and each.compiler]
        builder = max(able, key=lambda host: _able(facts[host]), default=None)
        if builder is None:
            why = ("no C++ compiler, on any host of its kind", "install g++ (apt install g++)")
            cannot.update(dict.fromkeys(hosts, why))
            continue
        own = facts[builder]
        folder = own.wheel_folder
        minutes = math.ceil(BUILD_CPU_MINUTES / own.cpus)
        torch = own.torch.version if own.torch is not None else ""
        places = {facts[host].site_id or host: host for host in reversed(hosts)}
        installs = tuple(host for host in hosts if host in places.values())
        build = Build(builder, folder, minutes, torch, tuple(hosts), installs, own, _without(own))
        builds.append(build)
    return SetupPlan(tuple(fine), tuple(builds), cannot)


def _obstacle(facts: BuildFacts) -> tuple[str, str] | None:
    """Return why Horovod cannot be installed there, and what to do; None if it can."""
    other = "give --python a virtual environment's interpreter"
    if facts.torch is None:
        return f"{facts.executable} has no torch", f"pip install torch there, or {other}"
    if not facts.pip:
        return f"{facts.executable} has no pip", f"python -m ensurepip there, or {other}"
    if facts.managed:
        return f"{facts.executable} belongs to the system (PEP 668)", other
    if not facts.writable:
        return f"{facts.site} is not writable for us", other
    return None


def _without(facts: BuildFacts) -> tuple[str, ...]:
    """Return what the best host of a kind lacks for the fastest collectives."""
    lacking = []
    if facts.torch is not None and facts.torch.cuda:
        slow = f"without NCCL, so that gradients go through the host's memory: torch is for CUDA {facts.torch.cuda}"
        if not facts.tools.get("nvcc"):
            how = "install the CUDA toolkit, or bring it by --setup 'module load cuda'"
            lacking.append(f"{slow}, and there is no nvcc ({how})")
        elif not facts.nccl:
            lacking.append(f"{slow}, and there is no nccl.h (install libnccl-dev)")
    if facts.mpi.present and not facts.tools.get("mpicxx"):
        how = f"{facts.mpi.family or 'MPI'}'s development package"
        lacking.append(f"without MPI: there is an mpirun and no mpicxx (install {how})")
    return tuple(lacking)


def _able(facts: BuildFacts) -> tuple[bool, bool, int]:
    tools = facts.tools
    return bool(tools.get("mpicxx")), bool(tools.get("nvcc")) and facts.nccl, facts.cpus


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

    Raises UsageError without a person to ask; PlanError if the hosts that lack it cannot have it;
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
        # Its place on its host, its bytes and its SHA-256.
        named = [line.removeprefix(WHEEL_WORD) for line in lines if line.startswith(WHEEL_WORD)]
        try:
            told = json.loads(named[-1])
            wheel, size, sha256 = str(told["wheel"]), int(told["size"]), str(told["sha256"])
        except (ValueError, TypeError, KeyError, IndexError):
            no_wheel = "the build ended well and named no wheel"
            raise ConsoleError(no_wheel, "try again; see its logs") from None
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
            if isinstance(event, LogLine) and not event.transient:
                lines.append(event.line)
                if not event.line.startswith((WHEEL_WORD, *PIP_NOISE)):
                    yield Narration(text=f"{event.host}: {event.line}")
            elif isinstance(event, RunEnded):
                ended = event
            elif isinstance(event, Narration) and event.severity in (Severity.WARN, Severity.FAIL):
                yield event
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
