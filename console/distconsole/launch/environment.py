"""The variables that a user gives to a job, from ``--env`` and ``--env-file``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from distconsole.errors import ConfigError, UsageError
from distconsole.model.requests import Run

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
MAX_FILE_BYTES = 1024 * 1024


def user_env(request: Run) -> dict[str, str]:
    """Return the variables that the user adds; ``--env`` wins over the file.

    Raises ConfigError if the file cannot be read, or a line means nothing; UsageError if a name is
    not one.
    """
    env = read_env_file(Path(request.env_file)) if request.env_file else {}
    for name, value in request.env:
        if not NAME.match(name):
            raise UsageError(f"--env {name}=… is not a variable's name", "letters, digits and _")
        env[name] = value
    return env


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines.

    Blank lines, ``#`` lines and a leading ``export`` are allowed; a value in quotes is unquoted as
    the shell does it, and nothing is expanded.

    Raises ConfigError, naming the file and the line.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(
                f"{path} is larger than {MAX_FILE_BYTES} bytes", "is it the right file?"
            )
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"--env-file {path} cannot be read: {error.strerror}",
            "give the path of a file of NAME=value lines",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--env-file {path} is no text in UTF-8, at byte {error.start}",
            "is it the right file?",
        ) from None
    env: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.removeprefix("export ").partition("=")
        if not equals or not NAME.match(name.strip()):
            raise ConfigError(f"{path}:{number}: not NAME=value", "one variable a line")
        env[name.strip()] = _unquote(value.strip(), path, number)
    return env


def _unquote(value: str, path: Path, number: int) -> str:
    if value[:1] not in ("'", '"'):
        return value
    try:
        words = shlex.split(value, comments=True)
    except ValueError as error:
        raise ConfigError(f"{path}:{number}: {error}", "close the quotes") from None
    return words[0] if words else ""
