"""What is known of one host: who works on it, and what was said of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import UNSET
from rich.text import Text

from distconsole.model.findings import Severity
from distconsole.model.time_text import clock_text
from distconsole.text.tables import Column
from distconsole.tui.view_models.check import SEVERITY_MARKS
from distconsole.tui.view_models.hints import console_hint
from distconsole.tui.view_models.hosts import LoadModel
from distconsole.tui.views.cluster.rows import HostRow

if TYPE_CHECKING:
    from distconsole.tui.tasks import RequestTask

SAID_LINES = 8
"""Of what the ranks on a host printed last so many lines are shown."""


@dataclass(frozen=True, slots=True)
class Process:
    """A rank of a run that this console knows, or somebody else's process on a GPU."""

    pid: str
    whose: str
    gpu: str
    what: str
    style: str = ""


PROCESS_COLUMNS: list[Column[Process]] = [
    Column("pid", 8, lambda row: row.pid, right=True),
    Column("whose", 20, lambda row: Text(row.whose, style=row.style), middle=True),
    Column("gpu", 3, lambda row: row.gpu, right=True),
    Column("what", 20, lambda row: Text(row.what, style=row.style)),
]


def processes_on(row: HostRow, runs: Iterable[RequestTask]) -> list[Process]:
    """Return the ranks of ``runs`` on the host of ``row``, then the processes of others on its GPUs."""
    found: list[Process] = []
    for task in runs:
        with task.lock:
            name = task.run.name or task.run.run
            for rank, view in sorted(task.run.ranks.items()):
                if view.host == row.name and (view.alive or not task.done):
                    step = "" if view.step is None else f", step {view.step:,}"
                    what = f"{view.state.value}{step}"
                    found.append(
                        Process(_text(view.pid), f"{name} rank {rank}", _text(view.gpu), what)
                    )
    for gpu in row.gpus:
        for process in gpu.strangers:
            pid, _, rest = process.partition(" ")
            user, _, command = rest.partition(" ")
            found.append(Process(pid, user, f"{gpu.gpu}", command, "bad"))
    return found


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def words_on(
    name: str, load: LoadModel, runs: Sequence[RequestTask], check: RequestTask | None
) -> Text:
    """Return why it is lost and what helps, what checks and runs found about it, and what its ranks printed last."""
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
