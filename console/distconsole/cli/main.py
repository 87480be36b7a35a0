"""A shell's words to an exit code, headless."""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal
import stat
import sys
import termios
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from enum import IntEnum
from functools import partial
from types import FrameType

from msgspec import UNSET

from distconsole.cli.streams import Streams
from distconsole.errors import ConsoleError, OutputError, Terminated, UsageError
from distconsole.model import requests as ask
from distconsole.model.check_outcome import exit_code_of_check
from distconsole.model.events import (
    BenchEnded,
    CheckEnded,
    CollectivesMeasured,
    ConditionJudged,
    DemoEnded,
    Diagnosed,
    Event,
)
from distconsole.model.run_events import RunEnded
from distconsole.model.verbs import Interrupt, verb_of
from distconsole.operations import Control, StopReason, interrupt, perform
from distconsole.operations.last_resort import LastResort, LeftBehind
from distconsole.operations.sessions import SessionSource
from distconsole.session import open_session
from distconsole.ssh.asking import PERSON
from distconsole.text.output import Paint
from distconsole.text.ringing import notifier_for
from distconsole.text.show import show_for


class ExitCode(IntEnum):
    """The program's exit codes, where they are not a job's."""

    OK = 0
    UNHEALTHY = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130
    TERMINATED = 143


def exit_code_of(event: Event) -> int | None:
    """Return the exit code that ``event`` decides, or None if it decides nothing."""
    match event:
        case RunEnded() if event.error is not UNSET:
            return None  # the error that follows does
        case BenchEnded() | CollectivesMeasured() | ConditionJudged() | DemoEnded():
            return event.exit_code
        case RunEnded() | Diagnosed():
            return event.exit_code
        case CheckEnded():
            return exit_code_of_check(event.report)
        case _:
            return None


def perform_headless(
    request: ask.Request,
    streams: Streams | None = None,
    sessions: SessionSource = open_session,
    began: float | None = None,
) -> int:
    """Do ``request``, print its events, return the exit code; ``began`` in monotonic seconds, None for now."""
    streams = streams or Streams.standard()
    show = show_for(request, streams)
    code: int = ExitCode.OK
    control = Control(began=began)
    if sys.stdin.isatty():
        control.ask = partial(_ask, streams.ask)
        control.confirm = lambda question: (
            _ask(streams.ask, f"{question} [y/N]").lower() in ("y", "yes")
        )
    left = LeftBehind()
    last = LastResort(left.words, control.leave)
    notifier = None

    try:
        look_at_input(request, streams.say)
        notifier = notifier_for(request, streams.ring, streams.say, on_screen=False)
        with interruptible(request, control, streams.say, last):
            takers = [left.see, show.event, *(() if notifier is None else (notifier.see,))]
            code = _follow(request, perform(request, sessions, control), takers)
            show.finish()
    except ConsoleError as error:
        code = error.exit_code
        tell_error(error, streams)
    except Terminated:
        code = ExitCode.TERMINATED
        streams.say("ended by SIGTERM")
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        streams.say("interrupted")
    finally:
        if notifier is not None:
            notifier.close()
        code = _close(streams, code)
        last.close()
    return code


def _follow(
    request: ask.Request, events: Generator[Event], takers: Sequence[Callable[[Event], object]]
) -> int:
    code: int = ExitCode.OK

    def take(event: Event) -> None:
        nonlocal code
        for each in takers:
            each(event)
        decided = exit_code_of(event)
        code = code if decided is None else decided

    with closing(events):  # at the interpreter's end its connections can start no thread
        try:
            for event in events:
                take(event)
        except KeyboardInterrupt as by:
            if verb_of(request).interrupt is not Interrupt.REPORT:
                raise
            for event in interrupt(events, by):
                take(event)
    return code


def _close(streams: Streams, code: int) -> int:
    """Write held output, and return the exit code: ours if it cannot be written."""
    try:
        streams.close()
    except OutputError as error:
        tell_error(error, streams)
        return code or error.exit_code
    return code


def _ask(put: Callable[[str], None], question: str) -> str:
    """Ask on the terminal; Ctrl-C and Ctrl-D there end the program, since nothing goes on yet."""
    put(question)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        line = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)
    if not line:
        raise KeyboardInterrupt
    return line.strip()


def tell_error(error: ConsoleError, streams: Streams) -> None:
    paint: Paint = streams.paint_err
    with suppress(OutputError):  # there is nowhere left to say it
        streams.say(f"{paint('error:', 'red', 'bold')} {error.message}")
        if error.hint:
            first, *rest = error.hint.splitlines()
            streams.say(f"{paint('hint:', 'cyan')} {first}")
            for line in rest:
                streams.say(f"      {line}")
        streams.close()


def send_again(by: KeyboardInterrupt) -> None:
    """Send a signal again that came in a callback, as of an import, which can raise nothing."""
    number = signal.SIGTERM if isinstance(by, Terminated) else signal.SIGINT
    threading.Timer(0.02, os.kill, (os.getpid(), number)).start()


@contextmanager
def interruptible(
    request: ask.Request, control: Control, say: Callable[[str], None], last: LastResort
) -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into a stop of the run that ``request`` starts, a second into a kill.

    Who only looks at a run (``attach``, ``logs``) leaves it; everything else ends as usual. After a
    second signal the program is gone within seconds, whatever it waits for.
    """
    means = verb_of(request).interrupt
    stops = means in (Interrupt.STOP_RUN, Interrupt.STOP_WORK)
    came: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        PERSON.leave()
        by_key = number == signal.SIGINT
        if len(came) > 1:  # first, for what follows may wait for a terminal that takes nothing
            last.begin(ExitCode.INTERRUPTED if by_key else ExitCode.TERMINATED)
        reason = StopReason.INTERRUPT if by_key else StopReason.TERMINATE
        if stops and control.asked is None:
            control.stop(reason)
            say("stopping the run on every host; once more kills it and leaves")
        elif stops:
            control.kill(reason)
            say("killing the run on every host")
        elif means is Interrupt.LEAVE_RUN and control.asked is None:
            control.leave()
            say("leaving; no run is stopped")
        else:
            raise KeyboardInterrupt if by_key else Terminated

    def on_unraisable(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            del came[-1:]
            send_again(lost.exc_value)
        else:
            report(lost)

    report, sys.unraisablehook = sys.unraisablehook, on_unraisable
    before = {each: signal.signal(each, on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
    # ``last`` interrupts waits by it, which needs a handler.
    before[signal.SIGURG] = signal.signal(signal.SIGURG, lambda *_: None)
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)


STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def look_at_input(request: ask.Request, say: Callable[[str], None], descriptor: int = 0) -> None:
    """Say that standard input does not reach the ranks of ``run``, if it has data or the script reads it.

    A shell's loop (``while read host; do distconsole run …``) and a CI system give every program a standard
    input, which most scripts never read. So data alone refuses nothing.

    Raises UsageError if there is data in it, and the script reads it.
    """
    if not isinstance(request, ask.Run) or request.dry_run or request.emit is not None:
        return
    has_data = _has_data(descriptor)
    if has_data is False:
        return
    from distconsole.launch.script import find_traits  # noqa: PLC0415 - most need no look

    reads = any(each in STANDARD_INPUT for each in request.arguments) or find_traits(request).stdin
    if reads and has_data:
        raise UsageError(
            f"{request.script} reads standard input, which does not reach the ranks",
            "put the data into a file that every host has; without the data: < /dev/null",
        )
    if reads or has_data:
        say("standard input does not reach the ranks")


def _has_data(descriptor: int) -> bool | None:
    """Whether something can be read there; None if it may come. A terminal and /dev/null have nothing."""
    try:
        kind = os.fstat(descriptor)
        if stat.S_ISREG(kind.st_mode):
            return kind.st_size > os.lseek(descriptor, 0, os.SEEK_CUR)
        if not (stat.S_ISFIFO(kind.st_mode) or stat.S_ISSOCK(kind.st_mode)):
            return False
        waiting = array.array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
        if waiting[0]:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return False if poll.poll(0) else None  # readable and empty: its end
    except OSError:
        return False
