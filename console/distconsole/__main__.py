"""The program's door: words in, exit code out; chooses between lines and the screen."""

from __future__ import annotations

import gc
import io
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from distconsole.config.schema import Config
    from distconsole.model.requests import Request

BEGAN = time.monotonic()
"""When this program was started, but for the interpreter's own start."""

INTERRUPTED = 130
"""As ``cli.main`` has them, which is not imported this early."""


def main() -> None:
    """Run the program on the process's own arguments and exit."""
    mend_streams()
    gc.disable()  # what is loaded stays; looking for garbage in it takes a tenth of the time until it is
    try:
        if "_DISTCONSOLE_COMPLETE" in os.environ:
            from dataclasses import replace  # noqa: PLC0415

            from distconsole.grammar.completion import shell_vocabulary  # noqa: PLC0415
            from distconsole.grammar.verbs import shell_complete  # noqa: PLC0415

            shell_complete(replace(shell_vocabulary(), fields=_condition_fields))
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # Before there was anything to stop: at first everything is imported, hence nothing above.
        code = INTERRUPTED
        _say_interrupted()
    sys.exit(code)


def _say_interrupted() -> None:
    """Print it, where a login has asked a question behind that: hosts are connected while the rest is imported."""
    from contextlib import suppress  # noqa: PLC0415

    from distconsole.ssh.asking import PERSON  # noqa: PLC0415

    PERSON.leave()
    with suppress(OSError, KeyboardInterrupt), PERSON.turn():
        sys.stderr.write("interrupted\n")


def _condition_fields(verb: str) -> Mapping[str, str]:
    from distconsole.runs.conditions.condition_fields import condition_fields  # noqa: PLC0415

    return condition_fields(verb)


def mend_streams() -> None:
    """Let nothing that a rank prints, and no closed stream, end the program.

    Characters that the locale's encoding lacks are written as escapes. A stream that was closed
    (``<&-``, ``>&-``) is None in Python, and becomes one that is empty or swallows.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - for the whole life of the process
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(words: list[str]) -> int:
    """Do what ``words`` ask for and return the exit code.

    The headless half and the screen are imported only when they are needed: a script that calls
    ``distconsole run`` must not pay for the screen.
    """
    from distconsole.config.load import load_config  # noqa: PLC0415
    from distconsole.errors import (  # noqa: PLC0415
        MORE_THREADS,
        OUT_OF_THREADS,
        ConfigError,
        ConsoleError,
        is_out_of_threads,
    )
    from distconsole.grammar.verbs import parse_args, parse_untrusted  # noqa: PLC0415

    try:
        try:
            config = load_config()
        except ConfigError as error:
            return _headless(parse_untrusted(words, error))
        request = parse_args(_without_alias(words, config), defaults=config.verbs)
        if getattr(request, "run", None) == "":
            from distconsole.operations.stored.newest import name_run  # noqa: PLC0415

            request, told = name_run(request)
            if told and not wants_screen(request):
                _print(notes=(told,))
        if not wants_screen(request):
            return _headless(request, config)
        from distconsole.tui import open_screen  # noqa: PLC0415

        return open_screen(request, config)
    except (ConsoleError, OSError, RuntimeError) as error:
        from distconsole.cli.main import tell_error  # noqa: PLC0415
        from distconsole.cli.streams import Streams  # noqa: PLC0415

        if isinstance(error, RuntimeError):
            if not is_out_of_threads(error):
                raise
            error = ConsoleError(OUT_OF_THREADS, MORE_THREADS)
        if not isinstance(error, ConsoleError):
            if error.filename is None:
                raise
            cure = f"see who may: ls -ld {os.path.split(error.filename)[0] or '.'}"
            error = ConsoleError(f"{error.filename}: {error.strerror}", cure)
        tell_error(error, Streams.standard())
        return error.exit_code


def _without_alias(words: list[str], config: Config) -> list[str]:
    """Return ``words`` without an alias in front; raises ConsoleError if that means nothing."""
    from distconsole.grammar.verbs import VERBS  # noqa: PLC0415

    first = next((word for word in words if not word.startswith("-")), None)
    if first is None or first in VERBS:
        return words  # a file of aliases is not even read then
    from distconsole.config.shortcuts import aliases_file, read_aliases_file  # noqa: PLC0415
    from distconsole.grammar.aliases import expand_words  # noqa: PLC0415

    known = {**config.aliases, **read_aliases_file(aliases_file())}
    aliases = {name: alias for name, alias in known.items() if name not in VERBS}
    return expand_words(words, aliases)


def _headless(request: Request, config: Config | None = None) -> int:
    """Do ``request`` (``config`` None if it needs none); its hosts are being connected meanwhile."""
    from distconsole.model import requests as ask  # noqa: PLC0415

    if isinstance(request, ask.ShowHelp):
        return _print(request.text)
    if config is not None and config.passed:
        _print(notes=config.passed)
    ahead = None
    if config is not None and isinstance(request, ask.Run | ask.Check):
        from distconsole.session import SessionAhead  # noqa: PLC0415

        where: ask.Where | None = request.where
        if isinstance(request, ask.Run) and request.slurm is not None:
            where = request.submits_from  # the nodes are not known yet
        ahead = SessionAhead(where, config) if where is not None else None
    try:
        from distconsole.cli.main import perform_headless  # noqa: PLC0415

        gc.freeze()
        gc.enable()
        if ahead is None:
            return perform_headless(request, began=BEGAN)
        return perform_headless(request, sessions=ahead, began=BEGAN)
    finally:
        if ahead is not None:
            ahead.close()


def _print(text: str = "", notes: Iterable[str] = ()) -> int:
    """Print ``text`` as data and ``notes`` beside it; what does requests is not even loaded."""
    from distconsole.cli.streams import Streams  # noqa: PLC0415

    streams = Streams.standard()
    for line in notes:
        streams.say(line)
    if text:
        streams.data(text)
    streams.close()
    return 0


def wants_screen(request: Request) -> bool:
    """Say whether ``request`` opens the screen: by its kind, and only on a terminal."""
    from distconsole.model.verbs import Opens, verb_of  # noqa: PLC0415

    terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    opens = verb_of(request).opens
    return opens is Opens.ALWAYS or (opens is Opens.ON_TERMINAL and terminal)


if __name__ == "__main__":
    main()
