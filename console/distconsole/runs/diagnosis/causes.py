"""Causes that make one rank delay the others: small rules, the surest first."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from distconsole.model.diagnosis.calls import Call, Child, Place, ProcessEnding
from distconsole.model.diagnosis.diagnosis import Hang, Sure
from distconsole.model.names import count_text
from distconsole.runs.diagnosis import stacks
from distconsole.runs.diagnosis.roll import Roll
from distconsole.runs.diagnosis.waiting import family_of, first_pending, group_text, is_pending

BUSY_SHARE = 0.8
"""Of a processor: a worker that uses more computes."""
RUNS_SHARE = 0.1
"""A rank that runs and uses more computes: on a host with more ranks than processors none has one alone."""
SWAPPED_BYTES, FAULTS_A_SECOND = 256 << 20, 50.0
"""A process with this share of its memory swapped out, read back at this rate, waits for the disk."""
WORKER = "pt_data_worker"
OTHER_GONE = re.compile(
    r"(reset|closed) by peer|broken pipe|remote process exited|Horovod has been shut down", re.I
)
"""Errors of a rank that has lost another one."""


class Cause(NamedTuple):
    """A rank's activity: ``does`` follows "it", ``details`` follow its duration; ``place`` is its place, if known.

    ``victim``: the cause is that another rank is gone.
    """

    kind: Hang
    does: str
    hint: str
    details: tuple[str, ...] = ()
    place: Place | None = None
    sure: Sure = Sure.CERTAIN
    victim: bool = False


CauseRule = Callable[[Call, Roll], Cause | None]


def cause_of(rank: int, roll: Roll) -> Cause:
    known: Cause | None = roll.causes.get(rank)
    if known is None:
        call = roll.calls.get(rank)
        if call is None:
            known = _without_call(rank, roll)
        else:
            known = next(cause for rule in RULES if (cause := rule(call, roll)) is not None)
        roll.causes[rank] = known
    return known


def _without_call(rank: int, roll: Roll) -> Cause:
    host = roll.host(rank)
    if host in roll.away:
        why = roll.away[host].removeprefix(f"{host}: ")
        return Cause(
            Hang.HOST_SILENT,
            f"is on a host that does not answer ({why})" if why else "is on a host without answer",
            f"look whether {host} is up: ping {host}, ssh {host} uptime",
            sure=Sure.LIKELY if roll.calls else Sure.UNKNOWN,  # it may be this machine's network
        )
    if not host:
        hint = "add the host that runs it to --hosts; if one of these did, its process has ended"
        return Cause(Hang.NOT_STARTED, "was not found on these hosts", hint, sure=Sure.LIKELY)
    if rank in roll.usual_ms:
        does = "has made steps, but its host does not say where it is now"
        hint = f"distconsole logs {roll.run} --host {host} shows what is printed there"
        return Cause(Hang.ELSEWHERE, does, hint, sure=Sure.UNKNOWN)
    return Cause(
        Hang.NOT_STARTED,
        "has not started: its host knows no process of it",
        f"distconsole logs {roll.run} --host {host} says how far its start came",
        sure=Sure.LIKELY,
    )


def _not_started(call: Call, roll: Roll) -> Cause | None:
    if call.stage != "not_started" and (call.alive or call.ended is not None or call.pid):
        return None
    logs = f"distconsole logs {roll.run} --host {roll.host(call.rank)}"
    return Cause(Hang.NOT_STARTED, "has not started", f"{logs} says how far its start came")


def _ended(call: Call, roll: Roll) -> Cause | None:
    if call.alive:
        return None
    ended, logs = call.ended or ProcessEnding(), f"distconsole logs {roll.run} --rank {call.rank}"
    why = ended.why.lower()
    if "oom" in why or "out of memory" in why:
        return Cause(
            Hang.OUT_OF_MEMORY,
            "was killed by the kernel, whose memory had run out (OOM killer)",
            "use less memory there: a smaller batch, fewer DataLoader workers; "
            f"dmesg on {roll.host(call.rank)} says what each process had",
        )
    if ended.signal:
        return Cause(
            Hang.KILLED,
            f"was killed by {signal_text(ended.signal)}",
            f"{logs} shows its last lines",
            victim=ended.signal == signal.SIGTERM,  # the signal by which a run is ended
        )
    if ended.exit_code == 0:
        return Cause(Hang.LEFT, "has ended with exit code 0, while others train on", _LEFT_HINT)
    code = "" if ended.exit_code is None else f" with exit code {ended.exit_code}"
    raised = f": {call.raised}" if call.raised else ""
    return _of_raised(Cause(Hang.FAILED, f"has ended{code}{raised}", f"{logs} --errors"), call)


def _of_raised(cause: Cause, call: Call) -> Cause:
    return cause._replace(victim=OTHER_GONE.search(call.raised) is not None)


_LEFT_HINT = (
    "give every rank equally many batches: DistributedSampler(drop_last=True) and "
    "DataLoader(drop_last=True), or torch.distributed.algorithms.join.Join"
)


def _stopped(call: Call, roll: Roll) -> Cause | None:
    if call.state != "T":
        return None
    return _at(
        call,
        Hang.STOPPED,
        "is stopped by a signal (SIGSTOP)",
        f"kill -CONT {call.pid} on {roll.host(call.rank)} lets it go on",
        "state T",
    )


def _debugger(call: Call, roll: Roll) -> Cause | None:
    if call.state != "t" and stacks.what_it_does(call) is not stacks.Does.DEBUGS:
        return None
    by = f"process {call.tracer} holds it" if call.tracer else ""
    return _at(
        call,
        Hang.DEBUGGER,
        "is in a debugger",
        "remove the breakpoint, or set PYTHONBREAKPOINT=0; nobody can type there",
        by,
    )


def _input(call: Call, roll: Roll) -> Cause | None:
    waits, syscall = call.waits_for, call.syscall
    reads = syscall is not None and syscall.name in ("read", "readv") and syscall.fd == 0
    if not reads and (waits is None or waits.kind != "terminal"):
        return None
    hint = "input() and sys.stdin wait for ever in a rank: take the answer from an argument"
    return _at(call, Hang.INPUT, "waits for input on stdin", hint)


def _swap(call: Call, roll: Roll) -> Cause | None:
    if call.swap_bytes < SWAPPED_BYTES or call.major_faults_s < FAULTS_A_SECOND:
        return None
    return _at(
        call,
        Hang.SWAP,
        "waits for memory that its host has moved to the disk",
        f"use less memory on {roll.host(call.rank)}, or run fewer ranks there; "
        "what else takes it: distconsole top",
        f"{call.swap_bytes / (1 << 30):.1f} GiB in swap",
        f"{call.major_faults_s:,.0f} major faults a second",
    )


def _disk(call: Call, roll: Roll) -> Cause | None:
    waits = call.waits_for
    if call.state != "D" and (waits is None or waits.kind != "disk"):
        return None
    file = f"file {waits.what}" if waits is not None and waits.what else ""
    host = roll.host(call.rank)
    return _at(
        call,
        Hang.DISK,
        "waits for a disk",
        f"the file system does not answer {host}: look at its mounts (df, dmesg on {host})",
        "state D (disk)",
        file,
    )


def _worker(call: Call, roll: Roll) -> Cause | None:
    if stacks.what_it_does(call) is not stacks.Does.LOADS:
        return None
    workers = [child for child in call.children if WORKER in child.name] or list(call.children)
    over = call.over_s or 1.0
    for fits, words in _TROUBLES:
        bad = next((child for child in workers if fits(child, over)), None)
        if bad is not None:
            died = _died(bad.ended) if words.endswith("died") else ""
            text = f"its worker pid {bad.pid} {words}{died}"
            return _at(call, Hang.DATA_WORKER, _LOADS, _WORKER_HINT, text)
    if not workers:
        text = "waits for its DataLoader, which has no worker left"
        return _at(call, Hang.DATA_WORKER, text, _WORKER_HINT, sure=Sure.LIKELY)
    where = next((place for child in workers if (place := stacks.own_place(child.frames))), None)
    if where is not None:
        child = next(child for child in workers if stacks.own_place(child.frames) == where)
        text = f"its worker pid {child.pid} is {stacks.place_text(where)}"
        return _at(call, Hang.DATA_WORKER, _LOADS, _WORKER_HINT, text)
    idle = count_text(len(workers), "worker does", "workers do")
    hint = (
        f"{_WORKER_HINT}; py-spy dump --pid {workers[0].pid} on {roll.host(call.rank)} says where"
    )
    return _at(call, Hang.DATA, _LOADS, hint, f"its {idle} nothing", sure=Sure.LIKELY)


_LOADS = "waits for its DataLoader"
_WORKER_HINT = "DataLoader(timeout=60) turns this into an error; num_workers=0 shows where"
_TROUBLES: tuple[tuple[Callable[[Child, float], bool], str], ...] = (
    (lambda child, _: child.ended is not None or child.state in ("Z", "X"), "died"),
    (lambda child, _: child.state in ("T", "t"), "is stopped (state T)"),
    (lambda child, _: child.state == "D", "waits for a disk (state D)"),
    (lambda child, over: child.cpu_s >= BUSY_SHARE * over, "computes all the time"),
)


def _died(ended: ProcessEnding | None) -> str:
    if ended is None:
        return ""
    if ended.signal:
        return f" ({signal_text(ended.signal)})"
    return "" if ended.exit_code is None else f" (exit code {ended.exit_code})"


def _exception(call: Call, roll: Roll) -> Cause | None:
    if not call.raised:
        return None
    leaves = stacks.what_it_does(call) is stacks.Does.LEAVES
    then = " and hangs in its teardown" if leaves else ""
    hint = f"distconsole logs {roll.run} --rank {call.rank} --errors shows its traceback"
    return _of_raised(_at(call, Hang.EXCEPTION, f"has raised {call.raised}{then}", hint), call)


def _saves(call: Call, roll: Roll) -> Cause | None:
    if stacks.what_it_does(call) is not stacks.Does.SAVES:
        return None
    waits = call.waits_for
    file = f"file {waits.what}" if waits and waits.kind in ("file", "disk") and waits.what else ""
    hint = "no step is made until it is written: save less often, or to a faster disk"
    return _at(call, Hang.SAVING, "saves", hint, file)


def _leaves(call: Call, roll: Roll) -> Cause | None:
    if stacks.is_over(call):
        does, place = "has come to the end of the script", stacks.own_place(call.frames)
        keeper, cure = _kept_alive_by(call)
        hint = cure if roll.script_is_over else _LEFT_HINT
        kind = Hang.TEARDOWN if roll.script_is_over else Hang.LEFT
        return Cause(kind, does, hint, (f"kept alive by {keeper}",), place, Sure.CERTAIN)
    if stacks.what_it_does(call) is stacks.Does.LEAVES or call.stage == "ended":
        return _at(call, Hang.LEFT, "has left the loop and ends", _LEFT_HINT, sure=Sure.LIKELY)
    return None


def _kept_alive_by(call: Call) -> tuple[str, str]:
    place, functions = stacks.own_place(call.frames), {frame.function for frame in call.frames}
    if place is not None and not functions & {*stacks.AFTER_THE_SCRIPT}:
        words = f"what atexit calls: it is {stacks.place_text(place)}"
        return words, "a function of atexit has to end by itself: give what it waits for a timeout"
    executor = any(_EXECUTOR.search(frame.file) for frame in call.frames)
    children = [
        child for child in call.children if child.ended is None and child.state not in ("Z", "X")
    ]
    if children and (executor or "_exit_function" in functions):
        busy = [child for child in children if stacks.own_place(child.frames)] or children
        text = f"its child process pid {busy[0].pid}" + _in_own(busy[0].frames)
        cure = "shut an executor or a pool down, and join processes, before the script ends; daemon=True ends a Process with it"
        return text, cure
    others = [each for each in call.threads if not each.main]
    own = [each for each in others if stacks.own_place(each.frames)] or others
    named = [f"thread {each.name or each.tid}{_in_own(each.frames)}" for each in own[:3]]
    if executor:
        cure = "shut the executor down before the script ends, and have its work end: shutdown(cancel_futures=True)"
        return " or ".join(named) or "a thread of an executor", cure
    cure = "join the thread or tell it to end; threading.Thread(daemon=True) ends with the script"
    return " or ".join(named) or "a thread that is no daemon", cure


_EXECUTOR = re.compile(r"/concurrent/futures/(thread|process)\.py$")


def _in_own(frames: Sequence[Place]) -> str:
    place = stacks.own_place(frames)
    return "" if place is None else f", which is {stacks.place_text(place)}"


def _starts(call: Call, roll: Roll) -> Cause | None:
    does = stacks.what_it_does(call)
    if does is stacks.Does.COMPILES:
        hint = "the first step compiles; this may take minutes"
        return _at(call, Hang.FIRST_STEP, "compiles the model", hint)
    if does is stacks.Does.MEETS:
        return _at(call, Hang.RENDEZVOUS, "waits in the rendezvous", "")
    if call.stage == "starting" and not call.frames:
        # It may be anywhere before its first step.
        hint = "its stack says where: what that needs is told by each way that was refused"
        return _at(call, Hang.STARTING, "has made no step yet", hint, sure=Sure.LIKELY)
    if does is stacks.Does.IMPORTS:
        hint = "imports from a slow disk take long: look at where Python and its packages lie"
        return _at(call, Hang.STARTING, "is still starting Python or importing", hint)
    return None


def _lock(call: Call, roll: Roll) -> Cause | None:
    waits = call.waits_for
    told = waits is not None and waits.kind == "lock"
    if not told and not stacks.waits_for_lock(call.frames):
        return None
    holder = _holder(call, waits.what if waits is not None and told else "")
    hint = "two threads that take two locks in different order wait for ever; look at both stacks"
    does = "waits for a lock"
    inner = [frame for frame in call.frames[:3] if stacks.is_library(frame.file)]
    if any(frame.file.endswith("/queue.py") for frame in inner):
        does, hint = "waits for a queue", "look at who is to fill or empty it: another thread?"
    elif any(frame.function == "join" for frame in inner):  # as of a replica of DataParallel
        does, hint = "waits for a thread to end", "look at what that thread waits for"
    sure = Sure.CERTAIN if told else Sure.LIKELY
    return _at(call, Hang.LOCK, does, hint, holder, sure=sure)


def _holder(call: Call, what: str) -> str:
    """Name the holder of a lock, such as ``thread 77``, and its place; else the places of the script's other threads."""
    if not what:
        others = (stacks.own_place(each.frames) for each in call.threads if not each.main)
        places = [stacks.place_text(place) for place in others if place is not None][:3]
        number = "another thread is" if len(places) == 1 else "other threads are"
        return f"{number} {', '.join(places)}" if places else ""
    number = what.rpartition(" ")[2]
    thread = next((each for each in call.threads if str(each.tid) == number), None)
    place = None if thread is None else stacks.own_place(thread.frames)
    return f"held by {what}" + ("" if place is None else f", which is {stacks.place_text(place)}")


def _other_collective(call: Call, roll: Roll) -> Cause | None:
    if stacks.what_it_does(call) is not stacks.Does.WAITS:
        return None
    op = stacks.operation_of(call.frames)
    hint = OPERATION_HINTS.get(
        family_of(op), "every rank of a group must enter the same collectives in the same order"
    )
    pending = [each for each in call.collectives if not each.p2p and is_pending(each)]
    if len(pending) == 1 and family_of(op) in ("", family_of(pending[0].op)):
        op = f"{op} #{first_pending(pending[0])} of {group_text(pending[0].group or pending[0].name)}"
    return _at(call, Hang.OTHER_COLLECTIVE, f"waits in {op}", hint, sure=Sure.LIKELY)


BETWEEN_HINT = (
    "what remains is the network or the backend between them: distconsole check --only net,coll"
)
OPERATION_HINTS = {
    "newgroup": "new_group() has to be called by all ranks of the job, in the same order, also by those that are not in the group",
    **dict.fromkeys(
        ("isend", "irecv", "send", "recv"),
        "a send needs a receive by the rank that it names, and a receive a send, in the same order",
    ),
}


def _evaluates(call: Call, roll: Roll) -> Cause | None:
    if not stacks.evaluates(call):
        return None
    hint = "the others wait until it is over: evaluate on all ranks, or raise the timeout"
    return _at(call, Hang.EVALUATING, "evaluates", hint)


def _busy(call: Call, roll: Roll) -> Cause | None:
    used = call.main_cpu_s if call.main_cpu_s is not None else call.cpu_s
    if call.state != "R" or not used or used < RUNS_SHARE * (call.over_s or 1.0):
        return None
    share = f"{100 * used / (call.over_s or 1.0):.0f} % of a processor"
    hint = f"py-spy dump --native --pid {call.pid} on {roll.host(call.rank)} says what it computes"
    return _at(call, Hang.BUSY, "computes", hint, share)


def _anywhere(call: Call, roll: Roll) -> Cause:
    waits = call.waits_for
    details = [f"waits for {waits.kind} {waits.what}".rstrip()] if waits is not None else []
    if waits is None and call.syscall is not None:
        sleeps = "nanosleep" in call.syscall.name
        details.append("asleep" if sleeps else f"in the system call {call.syscall.name}")
    place = stacks.own_place(call.frames)
    does = "is somewhere that is not known" if place is None else ""
    pid = f"py-spy dump --pid {call.pid} on {roll.host(call.rank)} says where" if call.pid else ""
    hint = pid if place is None else _LOOK
    sure = Sure.LIKELY if place is None else Sure.CERTAIN
    return _at(call, Hang.ELSEWHERE, does, hint, *details, sure=sure)


_LOOK = "look at what that line waits for, on this rank alone"

RULES: Sequence[CauseRule] = (
    *(_not_started, _ended, _stopped, _debugger, _input, _swap, _worker, _disk, _exception),
    *(_saves, _leaves, _starts, _other_collective, _lock, _evaluates, _busy, _anywhere),
)


def _at(
    call: Call, kind: Hang, does: str, hint: str, *details: str, sure: Sure = Sure.CERTAIN
) -> Cause:
    place = stacks.own_place(call.frames)
    where = "" if place is None else stacks.place_text(place)
    words = f"{does} {where}".strip() if does else f"is {where}"
    return Cause(kind, words, hint, tuple(each for each in details if each), place, sure)


def signal_text(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
