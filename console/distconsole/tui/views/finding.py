"""Everything about one finding, or about one pair of hosts, on a page of its own."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message

from distconsole.model.findings import Cure, Finding, Severity
from distconsole.model.reports import CheckReport
from distconsole.text.check import changes_text, proof_text
from distconsole.tui.view_models.check import SEVERITY_MARKS
from distconsole.tui.view_models.pairs import LOOKS, Pair, Pairs
from distconsole.tui.widgets.lines import Words


class FindingPage(VerticalScroll, can_focus=True):
    """One page; Escape, Enter or a click on its first line leaves it."""

    DEFAULT_CSS = """
    FindingPage { padding: 0 1; height: 1fr; scrollbar-size-vertical: 1; }
    FindingPage > #page-back { height: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,backspace,q", "leave", "Back", show=False)
    ]

    class Left(Message):
        """The page was read."""

    def compose(self) -> ComposeResult:
        yield Words("◂ back: Escape, Enter, or click here", id="page-back")
        yield Words(id="page-words")

    def show(self, words: Text) -> None:
        """Show ``words`` from their beginning."""
        self.query_one("#page-words", Words).show(words)
        self.scroll_home(animate=False)

    def refill(self, words: Text) -> None:
        self.query_one("#page-words", Words).show(words)

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def on_click(self, event: events.Click) -> None:
        if event.widget is self.query_one("#page-back"):
            self.action_leave()


def finding_words(finding: Finding, report: CheckReport | None) -> Text:
    text = Text()
    mark, style = SEVERITY_MARKS[finding.severity]
    text.append(f"{mark}  ", style=style).append(f"{finding.check}\n", style="faint")
    text.append(f"{finding.summary}\n\n", style="strong")
    labelled(text, "hosts", ", ".join(finding.hosts) or "all of them", apart=True)
    labelled(text, "seen", finding.seen, apart=True)
    labelled(text, "expected", finding.expected, apart=True)
    labelled(text, "hint", finding.hint, apart=True)
    if finding.cure is not None:
        labelled(text, "cure", _cure_words(finding.cure), apart=True)
    for label, words in proof_text(finding):
        labelled(text, label, words, apart=True)
    if report is not None and finding.severity is Severity.FAIL:
        text.append("\n".join(changes_text(report, finding.hosts or None)))
    text.rstrip()
    return text


def _cure_words(cure: Cure) -> str:
    """Return a cure line by line, as a person would set it."""
    lines = [f"export {name}={value}" for name, value in cure.env.items()]
    lines += [f"unset {name}" for name in cure.unset]
    lines += [f"mpirun --mca {name} {value}" for name, value in cure.mca.items()]
    lines += [f"port {cure.port}"] if cure.port is not None else []
    for host, change in cure.hosts.items():
        words = [f"{name}={value}" for name, value in change.env.items()]
        words += [f"unset {name}" for name in change.unset]
        named = (("nic", change.nic), ("address", change.address), ("setup", change.setup))
        words += [f"{name} {value}" for name, value in named if value]
        lines.append(f"on {host}: {'; '.join(words)}")
    if cure.by_run:
        lines.append(f"`distconsole run`: {cure.by_run}")
    return "\n".join(lines)


def pair_words(pair: Pair, pairs: Pairs, report: CheckReport | None) -> Text:
    text = Text()
    for source, target in (pair, pair[::-1]):
        glyph, style = LOOKS[pairs.state(source, target)]
        text.append(f"{glyph} ", style=style).append(f"{pairs.told(source, target)}\n")
    text.append("\n")
    for finding in report.findings if report is not None else ():
        if set(finding.hosts) & set(pair) and finding.severity.order >= Severity.WARN.order:
            text.append(finding_words(finding, None)).append("\n\n")
    text.rstrip()
    return text


def labelled(text: Text, label: str, words: str, *, apart: bool = False) -> None:
    """Add words under a label; nothing where there are none.

    Args:
        apart: Whether several lines stand below the label and an empty line after them.
    """
    if not words:
        return
    text.append(f"{label}: ", style="note" if label == "hint" else "strong")
    if apart and "\n" in words:
        words = "\n  " + words.replace("\n", "\n  ")
    text.append(f"{words}\n" + ("\n" if apart else ""))
