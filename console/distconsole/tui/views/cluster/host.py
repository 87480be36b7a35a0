"""The page of one host: its processes, and messages about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import UNSET
from rich.cells import cell_len
from rich.text import Text

from distconsole.formats.figures import bytes_text
from distconsole.model.findings import Severity
from distconsole.model.names import ranks_text
from distconsole.model.time_text import clock_text, span_text
from distconsole.text.tables import Column
from distconsole.tui.view_models.check import SEVERITY_MARKS
from distconsole.tui.view_models.hints import console_hint
from distconsole.tui.view_models.hosts import LoadModel
from distconsole.tui.views.cluster.rows import HostRow

if TYPE_CHECKING:
    from distconsole.tui.tasks import RequestTask

BUSY_SECONDS = 30.0
"""Age from which processes' usage is left out; an agent silent about them for this long sends none."""
SAID_LINES = 8
"""Number of the newest output lines of the host's ranks."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a host: a rank of a run that this console knows, or another one.

    ``cpu`` is percent of one processor, ``memory`` bytes; both None without a recent measurement.
    """

    pid: str
    whose: str
    gpu: str
    what: str
    style: str = ""
    cpu: float | None = None
    memory: int | None = None


def _command(row: Process, cells: int = 0) -> Text:
    """Return a process's command; if it exceeds ``cells``, paths lose their folders, the first path first."""
    words = row.what.split(" ")
    for place, word in enumerate(words):
        folder, _, name = word.rpartition("/")
        if name and len(folder) > 1 and word[0] in "/.~" and 0 < cells < cell_len(" ".join(words)):
            words[place] = f"…/{name}"
    return Text(" ".join(words), style=row.style)


PROCESS_COLUMNS: list[Column[Process]] = [
    Column("pid", 7, lambda row: row.pid, right=True),
    Column("user or rank", 12, lambda row: Text(row.whose, style=row.style), middle=True, wide=20),
    Column("cpu %", 5, lambda row: "" if row.cpu is None else f"{row.cpu:.0f}", right=True),
    Column("memory", 6, lambda row: bytes_text(row.memory), 2, right=True),
    Column("gpu", 3, lambda row: row.gpu, 3, right=True, wide=5),
    Column("command/state", 13, _command, fill=_command),
]


def processes_on(
    row: HostRow, runs: Iterable[RequestTask], load: LoadModel, now: float
) -> list[Process]:
    """Return the busiest processes of the host of ``row``, then the other ranks of ``runs`` and strangers on its GPUs."""
    known: dict[str, Process] = {}
    on_gpus: dict[str, set[int]] = {}
    for sample in row.gpus:
        for stranger in sample.strangers:
            pid, _, rest = stranger.partition(" ")
            user, _, command = rest.partition(" ")
            on_gpus.setdefault(pid, set()).add(sample.gpu)
            known[pid] = Process(pid, user, ranks_text([*on_gpus[pid]]), command, "bad")
    for task in runs:
        with task.lock:
            name = task.run.name or task.run.run
            for rank, view in sorted(task.run.ranks.items()):
                if view.host == row.name and (view.alive or not task.done):
                    step = "" if view.step is None else f", step {view.step:,}"
                    gpu = "" if view.gpu is None else f"{view.gpu}"
                    whose, what = f"{name} rank {rank}", f"{view.state.value}{step}"
                    pid = "" if view.pid is None else f"{view.pid}"
                    known[pid or whose] = Process(pid, whose, gpu, what)
    found = []
    for each in () if unread_because(row, load, now) else load.busy[row.name][1]:
        process = known.pop(f"{each.pid}", Process(f"{each.pid}", each.user, "", each.command))
        found.append(replace(process, cpu=each.cpu, memory=each.memory))
    return [*found, *known.values()]


def unread_because(row: HostRow, load: LoadModel, now: float) -> str:
    """Return the reason why the processes on the host of ``row`` are unknown now; empty if they are known."""
    if row.lost is not None:
        return "no connection"
    if row.stale:
        return f"silent for {span_text(row.age_seconds or 0.0)}"
    if row.name in load.busy:
        age = now - load.busy[row.name][0]
        return f"read {span_text(age)} ago, too long" if age > BUSY_SECONDS else ""
    waited = now - load.since.get(row.name, now)
    return "its agent sends no list" if waited > BUSY_SECONDS else "not read yet"


def words_on(
    name: str, load: LoadModel, runs: Sequence[RequestTask], check: RequestTask | None
) -> Text:
    """Return the host's error and its cure, findings of checks and runs about it, and its ranks' last output."""
    text = Text()
    status = load.status.get(name)
    if (why := load.lost_because(name)) is not None:
        _add(text, "✗ no connection", "bad", why, status.hint if status is not None else "")
    for task in (check, *runs):
        if task is None:
            continue
        with task.lock:
            findings = [*(task.check.findings if task is check else ()), *task.run.findings]
            for finding in findings:
                if name in finding.hosts and finding.severity in (Severity.WARN, Severity.FAIL):
                    mark, style = SEVERITY_MARKS[finding.severity]
                    _add(text, f"{mark} {finding.check}", style, finding.summary, finding.hint)
            said = [line for line in task.run.logs if line.host == name][-SAID_LINES:]
        for line in said:
            who = "" if line.rank is UNSET else f" rank {line.rank}"
            text.append(f"{clock_text(line.t)}{who}  ", style="faint")
            text.append(f"{line.line}\n")
    text.rstrip()
    return text or Text("no finding, no log line", style="faint")


def _add(text: Text, mark: str, style: str, words: str, hint: str) -> None:
    text.append(f"{mark}  ", style=style).append(f"{words}\n")
    if hint:
        text.append("  do: ", style="note").append(f"{console_hint(hint)}\n")
