"""Decides if a rank that ended failed by itself, and by which error.

A script's own spawner names "process N"; the headers of the rings give its rank. Without the hook, torch's
message and the children's error files show which of them failed first.
"""

from __future__ import annotations

import contextlib
import os
import pickletools
import re
import signal
import stat
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from distconsole_agent.contract.runspec import OWN_WORLDS, TORCHRUN, RunSpec
from distconsole_agent.coordination.blame import (
    ENDED_BEFORE,
    MAX_ERROR_CHARS,
    MAX_TRACEBACK_CHARS,
    Failure,
    is_consequence,
)
from distconsole_agent.supervisor import failures
from distconsole_agent.supervisor.killing import KillEvidence, Kills, examine_kill
from distconsole_agent.supervisor.processes import Exit, RankProcess, exit_of
from distconsole_agent.system import steady
from distconsole_agent.system.kernel_files import end_of

if TYPE_CHECKING:
    from distconsole_agent.journal.rings import Header

CHILD_SECONDS = 60.0
"""A child's exception explains its rank's end only if it is not older: the rank lived on after an
older one, so it had dealt with it. (torchrun gives its other workers 30 s before it ends.)"""

RAISED_EXIT_CODE = 1
"""Python's exit code after an uncaught exception."""

_TERMINATED = re.compile(
    r"\b(?:in spawned process (?=\d)|process (?=\d{1,6} terminated with))(\d{1,6})", re.IGNORECASE
)
"""Of ``failures.headline``, and of ProcessRaisedException and ProcessExitedException in
torch/multiprocessing/spawn.py, which catches a child's exceptions, so that its own hook never sees them."""

_ENDED = re.compile(r"\bprocess \d{1,6} terminated with (?:exit code (\d{1,3})|signal (SIG\w+))$")
"""Of ProcessExitedException alone: a child that did not raise."""

_TAKEN_DOWN = re.compile(r"\bprocess \d{1,6} terminated with signal SIG(?:TERM|ABRT)$")
"""Signals by which a child ends because another one failed, not by itself."""

NOTE_PREFIX, NOTE_SUFFIX = "pytorch-errorfile-", ".pickle"
"""``torch.multiprocessing.spawn`` has each child write its exception into such a file, which stays, and is of one
child alone, which may be a victim of another."""

TORCHRUN_ERROR = "ChildFailedError"

TEMPORARY_FOLDERS = ("TMPDIR", "TEMP", "TMP")
MAX_LISTED = 100_000
NAMELESS = "(in a spawned process)"
"""Said of a child's exception: which of the ranks it was is not known."""

_REFUSED = re.compile(r"^torchrun: error: (.{1,200})", re.MULTILINE)
"""argparse's, of options that torchrun does not take."""

UNWATCHED = "perhaps after another rank failed, which is not known without the hook: "
"""Before an error that reads like a consequence: a rank that raised before, and was ended by the stop, noted nothing."""

VANISHED = "its process ended without an exception, how is not known"

_SPAWNER = re.compile(r"^torch\.multiprocessing\.spawn\.Process\w{1,20}Exception: ", re.MULTILINE)


def find_failure(
    spec: RunSpec, rank: RankProcess, errors_dir: str, stopped_ns: int | None, kills: Kills
) -> Failure | None:
    """Return how ``rank`` failed, or None when it ended well or was only taken down.

    Args:
        errors_dir: Where the hook notes exceptions.
        stopped_ns: When this node began to stop the run, in steady time, or None. A rank
            that ended after that has failed only if it had raised an exception before it.
        kills: How often the kernel had killed for memory when the ranks started.
    """
    ended = rank.ended
    assert ended is not None
    if ended.exit_code == 0:
        return None
    raised, number = _find_exception(spec, rank, errors_dir), -1
    of_rank = raised is not None and rank.is_of(raised.pid, raised.rank)
    own = of_rank if spec.engine_ranks else raised is not None and raised.rank < 0
    if raised is not None and own and spec.rings is not None:
        number = find_child_rank(f"{raised.error}\n{raised.traceback}", rank.inner, spec.rings)
    numbered = raised and (raised.rank >= 0 or raised.error.startswith(TORCHRUN_ERROR))
    if raised is not None and number >= 0:
        # A process that blames a child of its own is no rank, even if the plan has it as one.
        raised, spec = raised._replace(rank=number), spec._replace(engine_ranks=False)
    elif spec.numbers_itself and not own and (raised is None or numbered):
        spec = spec._replace(engine_ranks=False)  # a torchrun in the script numbers its ranks
    if stopped_ns is not None:
        # Only an engine that restarts ranks itself has dealt with their exceptions.
        retried = raised is not None and raised.retried and not spec.max_restarts
        if raised is None or retried or raised.t_ns >= stopped_ns:
            return None
    seen = raised
    if of_rank:  # of ranks that a script spawns the one that its exception names
        notes = failures.read_raised(errors_dir)
        seen = next((each for each in notes if each.rank == number >= 0), None)
    if raised is None or seen is None or spec.rings is None or rank.script:
        return _make_failure(spec, rank, ended, raised, stopped_ns, kills)
    earlier = _find_earlier_ends(seen, errors_dir, spec.rings)
    silent = _find_silent_end(rank, earlier)
    if silent is not None:
        return _blame_silent(spec, rank, raised.t_ns, kills, *silent)
    failure = _make_failure(spec, rank, ended, raised, stopped_ns, kills)
    lines = [
        f"rank {header.rank}{ENDED_BEFORE}{_describe_status(status, for_memory=False)})"
        for header, status in earlier[:8]  # the traceback has to stay
    ]
    return failure._replace(traceback="\n".join(filter(None, (failure.traceback, *lines))))


def _find_earlier_ends(
    raised: failures.Raised, errors_dir: str, rings: str
) -> list[tuple[Header, int]]:
    """Return ranks that had ended without an exception before ``raised``, and their wait status (-1 if unknown).

    Empty unless that exception reads like a consequence.
    """
    if not raised.ended or not _reads_like_consequence(raised):
        return []
    noted = {each.pid for each in failures.read_raised(errors_dir)}
    return [
        (header, raised.ended[header.pid])
        for _, header in sorted(_last_headers(rings).items())
        if header.pid in raised.ended and header.pid not in noted
    ]


def _find_silent_end(
    rank: RankProcess, earlier: list[tuple[Header, int]]
) -> tuple[int, int] | None:
    """Return rank and wait status of the one that did not end well; None if there are several: the script may have killed one."""
    ends = [end for end in earlier if end[1] > 0 or (end[1] < 0 and not end[0].finished)]
    if len(ends) != 1:
        return None
    ((header, status),) = ends
    if status < 0:  # a bash script prints the signal that ended a child
        text = end_of(rank.command.stderr_path, failures.TAIL_BYTES, rank.stderr_from)
        said = re.search(rf": line \d+: +{header.pid} (\w+(?: \w+)*)", text)
        numbers = {signal.strsignal(number): number for number in signal.valid_signals()}
        status = numbers.get(said[1], -1) if said else -1
    # A child by fork ends without exit handlers, so that it may have ended well.
    return None if status < 0 and header.is_child else (header.rank, status)


def _last_headers(rings: str) -> dict[int, Header]:
    """Return by rank the header of the last process that was this rank."""
    # Late, as in ``find_child_rank``.
    from distconsole_agent.journal.rings import read_headers

    headers = [header for _, header in read_headers(rings) if header.rank >= 0]
    return {each.rank: each for each in sorted(headers, key=lambda each: each.started_time_ns)}


def find_hidden(spec: RunSpec, rank: RankProcess, errors_dir: str) -> tuple[int, str] | None:
    """Return the rank that failed first below a script that ended with 0 all the same, and its error."""
    assert rank.ended is not None
    starts_ranks = spec.launcher in OWN_WORLDS and not rank.script
    if rank.ended.exit_code or spec.rings is None or not starts_ranks:
        return None
    last = _last_headers(spec.rings)
    for raised in failures.read_raised(errors_dir):
        header = last.get(raised.rank)
        if header is None or not header.pid == raised.pid != rank.inner:
            continue  # of no rank, or that rank was started again
        silent = _find_silent_end(rank, _find_earlier_ends(raised, errors_dir, spec.rings))
        if silent is None:
            return raised.rank, raised.error
        return silent[0], _describe_status(silent[1], for_memory=False)
    return None


def _describe_status(status: int, *, for_memory: bool | None) -> str:
    """Return an end in words by its wait status, -1 if that is unknown."""
    if status < 0:
        return VANISHED
    end = exit_of(status, 0)
    return failures.describe_exit(end.exit_code, end.signal, for_memory)


def _blame_silent(
    spec: RunSpec, rank: RankProcess, t_ns: int, kills: Kills, culprit: int, status: int
) -> Failure:
    assert rank.ended is not None
    end = exit_of(status, t_ns) if status > 0 else rank.ended._replace(signal=None)
    is_kill = end.signal == signal.SIGKILL
    known = examine_kill(kills, rank.peak_bytes) if is_kill else KillEvidence(False, ())
    error, lines = _describe_status(status, for_memory=known.for_memory), "\n".join(known.lines)
    node = spec.node_index
    return Failure(node, culprit, rank.pid, t_ns, end.exit_code, end.signal, error, lines)


def find_swallowed(rank: RankProcess, errors_dir: str) -> tuple[int, str, bool] | None:
    """Return the rank that failed by the last words of a torchrun whose process ended with 0, its error, and if all is known.

    All is known if the hook noted an exception: it would have noted those of other attempts, too.
    """
    assert rank.ended is not None
    if rank.ended.exit_code != 0:
        return None
    path, since = rank.command.stderr_path, rank.stderr_from
    for first in failures.read_engine_summary(path, since)[:1]:
        raised = failures.read_raised(errors_dir)
        words = failures.describe_exit(first.exit_code, first.signal, None)
        own = next((each.error for each in raised if each.rank == first.rank), words)
        return first.rank, own, bool(raised)
    refused = _REFUSED.search(end_of(path, failures.TAIL_BYTES, since))
    return None if refused is None else (rank.spec.rank, refused[1], False)


def _make_failure(
    spec: RunSpec,
    rank: RankProcess,
    ended: Exit,
    raised: failures.Raised | None,
    stopped_ns: int | None,
    kills: Kills,
) -> Failure:
    """Return the failure of a rank that ended as ``ended``, perhaps for an exception that it, or a child, ``raised``."""
    of_it = raised is not None and rank.is_of(raised.pid, raised.rank)
    child = None if raised is None or spec.engine_ranks else read_spawned_end(raised)
    said = child or (None if spec.engine_ranks else _engine_said(rank, raised))
    if said and raised and not of_it and -1 < raised.rank != said.rank:
        raised = None
    exit_code, number = (said or ended).exit_code, (said or ended).signal
    known = KillEvidence(False, ())
    if number == signal.SIGKILL:
        known = examine_kill(kills, rank.peak_bytes)
    words = failures.describe_exit(exit_code, number, known.for_memory)
    if child is not None and raised is not None:
        error, traceback, t_ns = words, raised.traceback, raised.t_ns
    elif said and raised and (of_it or raised.error.startswith(TORCHRUN_ERROR)):
        # The engine's own exception only repeats it; the rank's words are in its log.
        error, traceback, _ = _explain(rank, said, None, words, number)
        t_ns = raised.t_ns
    elif stopped_ns is not None and raised is not None:
        # We caused its present death, so its own reason is unknown.
        known = KillEvidence(False, ())
        exit_code, number = RAISED_EXIT_CODE, None
        error, traceback, t_ns = raised.error, raised.traceback, raised.t_ns
    else:
        error, traceback, t_ns = _explain(rank, said, raised, words, number)
        if said is None and raised is None and number and spec.launcher == TORCHRUN:
            error = f"torchrun {error}"
        alone = sum(len(node.ranks) for node in spec.nodes) == 1
        if not (spec.watch or alone) and number in (None, signal.SIGABRT):
            error = f"{UNWATCHED}{error}" if is_consequence(error, traceback) else error
    if known.lines:
        traceback = "\n".join(filter(None, (traceback, *known.lines)))
    culprit = _global_rank(spec, rank, raised, said)
    node = spec.node_index
    return Failure(node, culprit, rank.pid, t_ns, exit_code, number, error, traceback)


def _engine_said(rank: RankProcess, raised: failures.Raised | None) -> failures.EngineSaid | None:
    """Return the engine's report on the rank that raised, else on the one that failed first.

    An exception that reads like a consequence does not go before the silent death that torchrun saw first.
    """
    said = failures.read_engine_summary(rank.command.stderr_path, rank.stderr_from)
    if raised is not None and not rank.is_of(raised.pid, raised.rank) and raised.rank >= 0:
        silent = said and said[0].exit_code not in (RAISED_EXIT_CODE, 128 + signal.SIGTERM)
        if silent and _reads_like_consequence(raised):
            return said[0]
        return next((each for each in said if each.rank == raised.rank), None)
    return said[0] if said else None


def _explain(
    rank: RankProcess,
    said: failures.EngineSaid | None,
    raised: failures.Raised | None,
    words: str,
    number: int | None,
) -> tuple[str, str, int]:
    assert rank.ended is not None
    if rank.spawn_failure is not None:
        return rank.spawn_failure.error, "", rank.ended.t_ns
    if raised is not None:
        return _join_causes(raised.error, words, number), raised.traceback, raised.t_ns
    path, since = rank.command.stderr_path, rank.stderr_from
    if said is not None:
        name = f"rank-{said.rank}.err"
        own = os.path.join(os.path.dirname(path), name)
        if not os.path.exists(own):  # the other log ends with torchrun's own words
            return words, failures.read_last_lines(path, since).traceback, rank.ended.t_ns
        path, since = own, rank.logged.get(name, 0)
    # An abort prints its reason: C++ by what(), an interpreter by the exception that ended it.
    # Nothing else that a signal ends has a last word: a traceback there is of an exception that it survived.
    if number is not None and number != signal.SIGABRT:
        return words, failures.read_last_lines(path, since).traceback, rank.ended.t_ns
    told = failures.read_tail(path, since)
    return _join_causes(told.error, words, number), told.traceback, rank.ended.t_ns


def _join_causes(error: str, words: str, number: int | None) -> str:
    if not error or number is None:
        return error or words
    return f"{error}, then {words}"


def _find_exception(spec: RunSpec, rank: RankProcess, errors_dir: str) -> failures.Raised | None:
    """Return the earliest exception of the rank or of a process below it that explains its end.

    That of a spawner, which names the child that it saw end first, goes before those of its children,
    unless it reads like a consequence of another child's. Where no hook was in it, torch's own words count.
    """
    assert rank.ended is not None
    oldest_ns = rank.ended.t_ns - int(CHILD_SECONDS * 1e9)
    noted = [
        each._replace(t_ns=steady.of_wall(each.t_ns)) for each in failures.read_raised(errors_dir)
    ]
    if not (
        spec.engine_ranks
        or spec.launcher == TORCHRUN
        or any(rank.is_of(each.pid, each.rank) for each in noted)
    ):
        log, env = rank.command.stderr_path, rank.command.env
        noted += _read_unwatched(log, rank.stderr_from, rank.inner, rank.ended.t_ns, env)
    explaining: list[failures.Raised] = []
    for raised in sorted(noted, key=lambda raised: raised.t_ns):
        if not rank.started_ns <= raised.t_ns <= rank.ended.t_ns:
            continue
        if rank.is_of(raised.pid, raised.rank):
            explaining.append(raised)
            if _TERMINATED.search(raised.error) is None:
                break
            follows = _TAKEN_DOWN.search(raised.error) or _reads_like_consequence(raised)
            if not follows:
                return raised
            return next((each for each in explaining if not _reads_like_consequence(each)), raised)
        inherited = len(spec.ranks) == 1 or raised.rank == rank.spec.rank
        if inherited and raised.t_ns >= oldest_ns:
            explaining.append(raised)
    return next(iter(explaining), None)


def _reads_like_consequence(raised: failures.Raised) -> bool:
    return is_consequence(raised.error, raised.traceback)


def _global_rank(
    spec: RunSpec,
    rank: RankProcess,
    raised: failures.Raised | None,
    said: failures.EngineSaid | None,
) -> int:
    """Return the rank of a failure; ranks that a script spawns may have any number."""
    if spec.engine_ranks:
        return rank.spec.rank
    ours = spec.nodes[spec.node_index].ranks
    if raised is not None and raised.rank >= 0:
        return raised.rank
    # Each round of a job that may lose nodes numbers its ranks from 0.
    if said is not None and (said.rank in ours or spec.may_lose_nodes or spec.numbers_itself):
        return said.rank
    return ours[0] if ours else rank.spec.rank


def read_spawned_end(raised: failures.Raised) -> failures.EngineSaid | None:
    """Return the end of the child in a spawner's exception, if it did not raise."""
    told = _ENDED.search(raised.error)
    if told is None:
        return None
    if told[1] is not None:
        return failures.EngineSaid(raised.rank, int(told[1]), None)
    number = getattr(signal, told[2], None)
    return None if number is None else failures.EngineSaid(raised.rank, 128 + number, int(number))


def find_child_rank(error: str, parent_pid: int, rings: str) -> int:
    """Return the rank of the child of ``parent_pid`` that ``error`` names; -1 if unknown."""
    named = _TERMINATED.search(error)
    if named is None:
        return -1
    # Late: a shim needs to know nothing of rings otherwise.
    from distconsole_agent.journal.rings import read_headers

    headers = [header for _, header in read_headers(rings) if header.parent_pid == parent_pid]
    ranks = {header.pid: header.rank for header in headers}
    in_order = [ranks[pid] for pid in sorted(ranks)]
    index = int(named[1])
    return in_order[index] if index < len(in_order) else -1


def _read_unwatched(
    log: str, since: int, pid: int, ended_ns: int, env: Mapping[str, str]
) -> list[failures.Raised]:
    """Return the exceptions of the children of the spawner ``pid``, the earliest first, and its own last one.

    Empty if it is no spawner. Times are steady; the ranks are unknown.

    Args:
        ended_ns: Its end, in steady time.
        log: Its standard error; its own bytes begin at ``since``.
        env: Its environment, which names the folder of its files.
    """
    text = end_of(log, failures.TAIL_BYTES, since)
    found = list(_SPAWNER.finditer(text))
    if not found:
        return []
    start = found[-1].start()
    inner = text.rfind(failures.TRACEBACK_HEAD, start)
    end = text.find("\n" if inner < 0 else "\n\n", max(inner, start))
    error = text[start : end if end >= 0 else len(text)]
    traceback = text[max(0, text.rfind(failures.TRACEBACK_HEAD, 0, start)) : start] + error
    said = failures.headline(error, traceback)[:MAX_ERROR_CHARS]
    own = failures.Raised(pid, -1, ended_ns, said, traceback[-MAX_TRACEBACK_CHARS:])
    folder = next(
        (env[name] for name in TEMPORARY_FOLDERS if env.get(name)), tempfile.gettempdir()
    )
    return [*sorted(_read_children(folder, _scripts(traceback)), key=lambda each: each.t_ns), own]


def _read_children(folder: str, scripts: set[str]) -> Iterator[failures.Raised]:
    """Yield notes of exceptions in ``folder`` of ``scripts``: other jobs note theirs there, too."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        named = (
            entry
            for entry in islice(entries, MAX_LISTED)
            if entry.name.startswith(NOTE_PREFIX) and entry.name.endswith(NOTE_SUFFIX)
        )
        for entry in islice(named, failures.MAX_ERROR_FILES):
            with contextlib.suppress(OSError, ValueError):
                t_ns, text = _read_note(entry.path)
                if scripts & _scripts(text):
                    error, traceback = failures.told_in(text)
                    yield failures.Raised(0, -1, t_ns, f"{error} {NAMELESS}", traceback)


def _read_note(path: str) -> tuple[int, str]:
    """Return when a file was written, in steady time, and the text that it holds. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid():
            raise ValueError(path)
        data = os.read(fd, failures.MAX_ERROR_FILE_BYTES)
    finally:
        os.close(fd)
    # It is only looked at: to load a pickle is to run it.
    words = (arg for _, arg, _ in pickletools.genops(data) if isinstance(arg, str))
    return steady.of_wall(about.st_mtime_ns), next(words, "")


def _scripts(text: str) -> set[str]:
    return {file for file, _line in failures.own_frames(text)}
