"""What keeps a run as text: the sentence, what to do, equal stacks, and by which ways they were got."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from distconsole.expression.fields import Value
from distconsole.model.diagnosis.calls import GpuUse, Place
from distconsole.model.diagnosis.diagnosis import Diagnosis, Hang, StackGroup, Sure
from distconsole.model.events import Diagnosed, FoundJob
from distconsole.model.names import count_text, join_some, ranks_text
from distconsole.model.time_text import date_text, span_text
from distconsole.runs.diagnosis.stacks import is_library, place_text
from distconsole.runs.figures import GPU
from distconsole.text.output import Output, Paint, tell

MAX_FRAMES = 12
MAX_GROUPS = 8
INSTALLED = re.compile(
    r".*/(?:site|dist)-packages/|.*/lib(?:64)?/(?=python\d)|.*/hook-[0-9a-f]+/|.*/runs/[^/]+/code/"
)
"""Where packages lie, and on a node our own code and the project's copy."""
FUNCTION_CHARS = 24


def show_diagnosis(output: Output, made: Diagnosed) -> None:
    """Print who keeps the run, and where every rank is."""
    found, paint = made.diagnosis, output.paint_out
    word, colour = head_word(made)
    for job in made.jobs:
        tell(output, _job_text(job, made, paint))
    when = when_text(made, time.time())
    if when:
        tell(output, paint(when, "dim"))
    tell(output, f"{paint(word, colour, 'bold')}  {found.summary}", indent=2)
    if found.sure is Sure.LIKELY and found.hang:
        tell(output, "  likely: the evidence fits, and some of it is missing", indent=2)
    for line in found.evidence:
        tell(output, f"  also: {line}", indent=8)
    if found.hint:
        tell(output, f"  {paint('hint:', 'cyan')} {found.hint}", indent=8)
    if found.hang or found.kind is not Hang.HEALTHY:
        for group in found.groups[:MAX_GROUPS]:
            _show_group(output, group, made)
        more = len(found.groups) - MAX_GROUPS
        if more > 0:
            output.data("")
            output.data(f"{count_text(more, 'more stack')}: --json has them all")
        _show_ways(output, found)


def _job_text(job: FoundJob, made: Diagnosed, paint: Paint) -> str:
    """Return a job that was found as a line: what started it, how many ranks where, and for how long."""
    count = sum(map(len, job.ranks.values()))
    ranks = count_text(count, "rank") if count == job.world else f"{count} of {job.world:,} ranks"
    where = f", {job.where}" if job.where else ""
    name = f"{job.launcher} {job.script}".strip()
    text = f"{name}: {ranks} on {join_some(job.ranks)}, for {span_text(job.age_s)}{where}"
    if job.run:
        text += f"; distconsole why {job.run} knows its steps"
    if len(made.jobs) == 1:
        return paint(text, "bold")
    if job.number == made.job:
        return paint(f"job {job.number}: {text}", "bold")
    return f"job {job.number}: {text} (--job {job.number} asks about it)"


def head_word(made: Diagnosed) -> tuple[str, str]:
    found = made.diagnosis
    if found.kind is Hang.HEALTHY:
        return "FINE", "green"
    if found.kind is Hang.MISMATCH and found.hang:
        return "DEADLOCK", "red"
    if made.ended is not None and not made.calls:
        return "ENDED", "yellow"
    if not found.hang:
        return "NO HANG YET", "yellow"
    return ("UNDECIDED", "yellow") if found.sure is Sure.UNKNOWN else ("HANGS", "red")


def when_text(made: Diagnosed, now: float) -> str:
    if made.live or not made.calls:
        return ""
    text = f"{made.run} as it was at {date_text(made.t, '%Y-%m-%d %H:%M:%S')}"
    if made.ended is None:
        return f"{text}, {span_text(now - made.t)} ago: its hosts tell nothing newer"
    before = made.ended - made.t
    return f"{text}, {span_text(before)} before its end" if before >= 1 else f"{text}, at its end"


def _show_group(output: Output, group: StackGroup, made: Diagnosed) -> None:
    paint = output.paint_out
    blamed = set(group.ranks) & set(made.diagnosis.ranks)
    rank = "rank" if len(group.ranks) == 1 else "ranks"
    where = "" if group.place is None else f"  {place_text(group.place)}"
    output.data("")
    members = set(group.ranks)
    on = [host for host, calls in made.calls.items() if members & {call.rank for call in calls}]
    hosts = on[0] if len(on) == 1 else count_text(len(on), "host")
    who = f"{rank} {ranks_text(group.ranks)} ({hosts})"
    tell(output, f"{paint(who, 'bold', *(['red'] if blamed else []))}{where}", indent=4)
    calls = [call for each in made.calls.values() for call in each if call.rank in members]
    if gpus := gpu_text([call.gpu for call in calls if call.gpu is not None]):
        output.data(f"    {gpus}")
    for frame in group.frames[:MAX_FRAMES]:
        line = f"    {frame.function:<{FUNCTION_CHARS}} {path_text(frame)}"
        output.data(paint(line, "dim") if is_library(frame.file) else line)
    if len(group.frames) > MAX_FRAMES:
        output.data(paint(f"    {len(group.frames) - MAX_FRAMES} more frames", "dim"))


def gpu_text(gpus: Sequence[GpuUse]) -> str:
    """Return the use of the ranks' GPUs: ``GPU use 0-100 %, 70-95 W, 310 W in steps``; empty if unknown."""
    use = _range_text([gpu.util for gpu in gpus], "%")
    power = _range_text(list(map(GPU["power"].value, gpus)), "W")
    usual = _range_text([gpu.power_usual_w for gpu in gpus], "W")
    parts = [use, power, f"{usual} in steps" if usual else ""]
    return f"GPU use {', '.join(filter(None, parts))}" if use or power else ""


def _range_text(values: Sequence[Value], unit: str) -> str:
    known = [round(value) for value in values if isinstance(value, int | float)]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low} {unit}" if low == high else f"{low}-{high} {unit}"


def path_text(frame: Place) -> str:
    """Return a frame's file and line, without where packages are installed."""
    file = INSTALLED.sub("", frame.file)
    return f"{file}:{frame.line}" if frame.line else file


def _show_ways(output: Output, found: Diagnosis) -> None:
    if not (found.ways or found.lacks):
        return
    output.data("")
    if found.ways:
        ways = ", ".join(found.ways).replace("server:", "torch's worker server:")
        tell(output, f"stacks read by {ways}", indent=2)
    for line in found.lacks:
        tell(output, f"  {line}", indent=4)
