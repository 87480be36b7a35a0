"""``completion``: the shell completes our lines from then on, by one command."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from distconsole.config.paths import config_dir, data_dir, replace_file
from distconsole.errors import ConsoleError, UsageError
from distconsole.grammar.verbs import completion_script
from distconsole.model.events import Event, TextMade
from distconsole.model.requests import COMPLETING_SHELLS, InstallCompletion

SHELLS = ", ".join(COMPLETING_SHELLS)
MARK = "_DISTCONSOLE_COMPLETE={}_source"
"""Marks a line of a shell's start file that completes without our file, as earlier versions wrote it."""


def login_shell() -> str:
    """Return the user's shell; empty if it is one that cannot complete our lines."""
    name = Path(os.environ.get("SHELL", "")).name
    return name if name in COMPLETING_SHELLS else ""


def is_installed(shell: str) -> bool:
    """Say whether ``shell`` completes our lines: it finds our file, or its start file has a line that does."""
    script, start = _places(shell)
    lines = ""
    with suppress(OSError):
        lines = start.read_text(errors="replace") if start else ""
    return MARK.format(shell) in lines or (
        script.exists() and (start is None or _line(shell, script) in lines)
    )


def install_completion(request: InstallCompletion) -> Iterator[Event]:
    """Have the shell complete; raises UsageError without a shell, ConsoleError if a file cannot be written."""
    shell = request.shell or login_shell()
    if not shell:
        found = os.environ.get("SHELL") or "not set"
        raise UsageError(f"SHELL is {found}; completion is for {SHELLS}", "name one of these")
    if request.show:
        yield TextMade(text=completion_script(shell))
        return
    script, start = _places(shell)
    if is_installed(shell) and not script.exists():
        yield TextMade(text=f"already installed: {start} has a line with {MARK.format(shell)}")
        return
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        replace_file(script, completion_script(shell).encode(), 0o644)
        yield TextMade(text=f"written: {script}")
        line = "" if start is None else _line(shell, script)
        if start is not None and not is_installed(shell):
            start.parent.mkdir(parents=True, exist_ok=True)
            before = start.read_bytes() if start.exists() else b""
            with start.open("ab") as file:
                file.write(b"\n" * (before[-1:] not in (b"", b"\n")) + line.encode() + b"\n")
            yield TextMade(text=f"added to {start}: {line}")
        yield TextMade(text=f"a new {shell} completes with Tab")
    except OSError as error:
        by_hand = f"distconsole completion {shell} --show prints what {shell} has to read"
        raise ConsoleError(f"{error.filename}: {error.strerror}", by_hand) from None


def _places(shell: str) -> tuple[Path, Path | None]:
    """Return our file for ``shell``, and its start file, None if the shell finds ours by itself."""
    if shell == "fish":
        return config_dir().parent / "fish/completions/distconsole.fish", None
    script = data_dir() / f"completion.{shell}"
    if shell == "zsh":
        return script, Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc"
    login = Path.home() / ".bash_profile"  # each window of a macOS terminal is a login
    return script, login if sys.platform == "darwin" else Path.home() / ".bashrc"


def _line(shell: str, script: Path) -> str:
    home = Path.home()
    path = shlex.quote(str(script))
    if script.is_relative_to(home):
        path = f'"$HOME"/{shlex.quote(str(script.relative_to(home)))}'
    needs = (
        "(( $+functions[compdef] )) || { autoload -Uz compinit; compinit; }; "
        if shell == "zsh"
        else ""
    )
    return f"[ -r {path} ] && {{ {needs}. {path}; }}"
