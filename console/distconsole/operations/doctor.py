"""``doctor``: what this program stands on, on one page without secrets, the home as ``~``."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from locale import getpreferredencoding
from pathlib import Path
from typing import NamedTuple

from distconsole import __version__
from distconsole.config.load import load_config, project_file
from distconsole.config.paths import config_dir, data_dir, state_dir, user_config_file
from distconsole.config.ssh_names import own_ssh_config, ssh_config_file, ssh_names
from distconsole.errors import ConsoleError
from distconsole.formats.figures import bytes_text
from distconsole.model.events import Event, TextMade
from distconsole.model.names import count_text
from distconsole.model.outcome import Failed
from distconsole.model.requests import Doctor
from distconsole.operations.completion import SHELLS, is_installed, login_shell
from distconsole.operations.sessions import SessionSource
from distconsole.runs.store.catalogue import stamps_in
from distconsole.runs.store.store import RunStore
from distconsole.ssh.authentication import describe_keys
from distconsole.ssh.ssh_config import SshConfig

PACKAGES = ("textual", "paramiko", "click", "torch")
MOST_HOSTS = 50
"""Of ssh_config whose keys are looked at."""


class ReportLine(NamedTuple):
    """One line of the page; ``state`` is ``ok``, ``warn`` or ``fail``."""

    name: str
    value: str
    state: str = "ok"
    hint: str = ""


Lines = Iterator[ReportLine]


def doctor(request: Doctor, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """Show the page; raises ConsoleError behind it if something on it is broken."""
    looks: dict[str, Callable[[], Lines]] = {
        "versions": _versions,
        "configuration": _configuration,
        "folders": partial(_folders, store),
        "ssh": partial(_ssh, request.where.ssh_config),
        "terminal": _terminal,
    }
    if request.where.names_hosts:
        looks["hosts"] = partial(_hosts, request, sessions)
    page = {
        name: [
            ReportLine(*(text.replace(str(Path.home()), "~") for text in line))
            for line in _guard(look)
        ]
        for name, look in looks.items()
    }
    broken = [line for lines in page.values() for line in lines if line.state == "fail"]
    if request.json:
        sections = {name: [line._asdict() for line in lines] for name, lines in page.items()}
        yield TextMade(text=json.dumps({"ok": not broken, **sections}))
    else:
        width = max(len(line.name) for lines in page.values() for line in lines)
        for section, lines in page.items():
            yield TextMade(text=section)
            for line in lines:
                mark = "" if line.state == "ok" else line.state.upper()
                yield TextMade(text=f"  {mark:4} {line.name:{width}}  {line.value}")
                if line.hint:
                    yield TextMade(text=f"       hint: {line.hint}")
    if broken:
        hints = dict.fromkeys(line.hint for line in broken if line.hint)
        raise ConsoleError(f"broken: {', '.join(line.name for line in broken)}", "\n".join(hints))


def _guard(look: Callable[[], Lines]) -> Lines:
    try:
        yield from look()
    except ConsoleError as error:
        yield ReportLine("error", error.message, "fail", error.hint)
    except OSError as error:
        yield ReportLine("error", str(error), "fail")


def _versions() -> Lines:
    yield ReportLine("distconsole", f"{__version__} in {Path(__file__).parents[1]}")
    yield ReportLine("Python", f"{platform.python_version()}, {sys.executable}")
    yield ReportLine("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    for name in PACKAGES:
        found = "not here; only the nodes need it" if name == "torch" else "not here"
        with suppress(PackageNotFoundError):
            found = version(name)
        yield ReportLine(name, found)
    ssh = "not here; logins by more than a key need it, and a ProxyCommand"
    with suppress(OSError, subprocess.TimeoutExpired):
        words = ["ssh", "-V"]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False)
        ssh = asked.stderr.strip()
    yield ReportLine("OpenSSH", ssh)


def _configuration() -> Lines:
    """Say which files count, the first one before the second."""
    read: tuple[Path, ...] = ()
    project = project_file(Path.cwd()) or Path.cwd() / user_config_file().name
    try:
        config = load_config()
        read = config.files
        yield from (ReportLine("skipped", each, "warn") for each in config.passed)
    except ConsoleError as error:
        yield ReportLine("error", error.message, "fail", error.hint)
    for name, path in (("1 project", project), ("2 user", user_config_file())):
        state = "read" if path in read else "not read" if path.exists() else "not there"
        yield ReportLine(name, f"{path}: {state}")
    variables = sorted(name for name in os.environ if name.startswith("DISTCONSOLE_"))
    yield ReportLine("variables", ", ".join(variables) or "none of ours is set")


def _folders(store: RunStore) -> Lines:
    for name, folder in (("data", data_dir()), ("state", state_dir()), ("config", config_dir())):
        there = next(each for each in (folder, *folder.parents) if each.exists())
        if there.is_dir() and os.access(there, os.R_OK | os.W_OK | os.X_OK):
            yield ReportLine(
                name, f"{folder}: {'writable' if there == folder else 'not there yet'}"
            )
        else:
            hint = f"make {there} yours and writable; XDG_{name.upper()}_HOME names another place"
            yield ReportLine(name, f"{folder} cannot be used", "fail", hint)
    runs, readable = stamps_in(store.folder), {run for _, _, run in store.names()}
    size = sum(path.stat().st_size for path in store.folder.glob("*"))
    yield ReportLine("runs", f"{len(runs)}, {bytes_text(size)}B")
    broken = [run for run in runs if run not in readable]
    if broken:
        hint = f"distconsole show {broken[0]} says why"
        yield ReportLine("broken", f"{len(broken)} of them: {', '.join(broken[:5])}", "fail", hint)


def _ssh(given: str | None) -> Lines:
    configured = None
    with suppress(ConsoleError):
        configured = load_config(refuse=False).ssh_config
    file = ssh_config_file(given, configured, os.environ)
    path = file or own_ssh_config()
    config, names = SshConfig(file), ssh_names(path)
    options = [config.lookup(name) for name in ("localhost", *names[:MOST_HOSTS])]
    yield ReportLine(
        "ssh_config", f"{path}: {count_text(len(names), 'host') if path.exists() else 'not there'}"
    )
    held, files = describe_keys(options)
    yield ReportLine(
        "ssh-agent", "not running" if held is None else ", ".join(held) or "holds no key"
    )
    yield from (ReportLine("key", f"{name}: {kind}") for name, kind in files.items())
    if not held and not set(files.values()) - {"locked", "unreadable"}:
        hint = "ssh-keygen -t ed25519, and ssh-copy-id HOST; or ssh-add"
        yield ReportLine("key", "none can be used to log in", "warn", hint)


def _terminal() -> Lines:
    env, seen = os.environ.get, os.isatty(1)
    columns, rows = shutil.get_terminal_size()
    yield ReportLine("size", f"{columns}x{rows}" if seen else "stdout is no terminal")
    deep = env("COLORTERM") in ("truecolor", "24bit")
    depth = "24 bit" if deep else "256" if "256" in env("TERM", "") else "16"
    depth = "none by NO_COLOR" if env("NO_COLOR") else depth
    yield ReportLine(
        "colours", f"{depth} (TERM={env('TERM', '')}, COLORTERM={env('COLORTERM', '')})"
    )
    encoding = getpreferredencoding(False)
    name = next((each for each in ("LC_ALL", "LC_CTYPE", "LANG") if env(each)), "LANG")
    mend = () if encoding.lower() == "utf-8" else ("warn", "export LANG=C.UTF-8")
    yield ReportLine("unicode", f"{encoding}, {name}={env(name, '')}", *mend)
    shell = login_shell()
    installed = bool(shell) and is_installed(shell)
    found = f"{'' if installed else 'not '}installed for {shell}"
    other = f"for {SHELLS}; SHELL={env('SHELL', '')}"
    hint = "" if installed or not shell else "distconsole completion"
    yield ReportLine("completion", found if shell else other, "ok", hint)


def _hosts(request: Doctor, sessions: SessionSource) -> Lines:
    with sessions(request.where) as session:
        for outcome in session.connect_all():
            if isinstance(outcome, Failed):
                yield ReportLine(outcome.host, outcome.error.message, "fail", outcome.error.hint)
                continue
            hello = outcome.value.hello
            python = f"Python {hello.python_version} ({hello.python})"
            yield ReportLine(
                outcome.host, f"agent {hello.version}, {python}, {count_text(hello.gpus, 'GPU')}"
            )
