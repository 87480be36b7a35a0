"""A check as lines, tiles and pages for its view."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from distconsole.model.check_outcome import UNKNOWN
from distconsole.model.findings import Finding, Severity
from distconsole.model.names import count_text, join_some
from distconsole.model.reports import CheckOutcome, CheckReport, ChoiceReport
from distconsole.model.time_text import span_text
from distconsole.text.check import OUTCOME_WORDS as WORDS
from distconsole.text.check import (
    changes_text,
    cure_lines,
    going_texts,
    progress_text,
    proof_text,
    stages_text,
    target_text,
)
from distconsole.text.choices import REASON, RED, panel_lines
from distconsole.tui.prompt.completion_index import checks_by_id
from distconsole.tui.view_models.check import OUTCOME_MARKS, SEVERITY_MARKS, CheckModel
from distconsole.tui.view_models.hints import console_hint
from distconsole.tui.view_models.pairs import LOOKS, Pair, Pairs
from distconsole.tui.views.check_rows import BAR_CELLS, MADE, GridRow
from distconsole.tui.widgets.bars import level_bar
from distconsole.tui.widgets.lines import Words
from distconsole.tui.widgets.tiles import TileData

OUTCOME_TONES = {
    CheckOutcome.HEALTHY: ("good", "✓"),
    CheckOutcome.FAILED: ("bad", "✗"),
    CheckOutcome.INCOMPLETE: ("warn", "?"),
}


def check_verdict(
    model: CheckModel, *, done: bool, cancelled: bool, seconds: float = 0.0
) -> tuple[str, str, str]:
    """Return tone, mark and sentence: the result, or ``seconds`` of a running check, findings, numbers of checks."""
    report, cells = model.report, _count_cells(model)
    made = sum(cells[each] for each in MADE)
    running = going_texts(model.stage) if model.stage is not None and not done else []
    far = [progress_text(model.stage)] if model.stage is not None else []
    now = ", ".join([*far, span_text(seconds)]) + (
        f": {', '.join(running[:3])}" if running else ""
    )
    if report is None:
        words = "the check ended without a report" if done else f"CHECKING  {now}"
        if cancelled:
            words = "INCOMPLETE  cancelled" if done else "cancelling, once the hosts have answered"
        return ("warn", "■", words) if done or cancelled else ("note", "…", words)
    parts = ["cancelled"] if report.cancelled else []
    unreached = sum(not host.reachable for host in report.hosts.values())
    if unreached and not report.cancelled:
        parts.append(f"{count_text(unreached, 'host')} not reached")
    counts = Counter(finding.severity for finding in report.findings)
    for severity, noun in ((Severity.FAIL, "failure"), (Severity.WARN, "warning")):
        parts += [count_text(counts[severity], noun)] if counts[severity] else []
    again = f"{_again(model, now, done=done, cancelled=cancelled)}  " if model.again else ""
    word, found = WORDS[report.outcome][0].upper(), ", ".join(parts) or "nothing wrong"
    left = cells.total() - made
    of = f"{made:,} of {count_text(cells.total(), 'check')}, {left:,} not done"
    if not left:
        of = f"all {count_text(made, 'check')}"
    return *OUTCOME_TONES[report.outcome], f"{again}{word}  {found} in {of}"


def check_about(report: CheckReport | None, level: str) -> str:
    if report is None:
        return level
    script = f"for {report.target.script.rpartition('/')[2]}" if report.target else ""
    parts = (level, count_text(len(report.hosts), "host"), f"{report.seconds:.1f} s", script)
    return "  ".join(filter(None, parts))


def _count_cells(model: CheckModel) -> Counter[str]:
    return Counter(outcome for cells in model.cells.values() for outcome in cells.values())


def _again(model: CheckModel, now: str, *, done: bool, cancelled: bool) -> str:
    check = model.again
    if cancelled and not model.repeated:
        return f"{check}: {'cancelled' if done else 'cancelling'}"
    if not done:
        return f"{check} again: {now}"
    if not model.repeated:
        return f"{check}: could not be made again"
    if UNKNOWN.intersection(model.cells.get(check, {}).values()):
        return f"{check}: could not be made again on every host"
    left = any(
        found.check == check and found.severity.order >= Severity.WARN.order
        for found in model.findings
    )
    return f"{check}: {'still there' if left else 'gone'}"


def check_tiles(model: CheckModel) -> list[TileData]:
    """Return tiles of passes, findings, and reasons for checks not made."""
    cells = _count_cells(model)
    if not cells:
        return []
    found = Counter(finding.severity for finding in model.findings)
    whole = cells.total() - cells["running"]
    share = level_bar(100 * cells["pass"] / max(1, whole), BAR_CELLS).plain
    tiles = [TileData("pass", f"{cells['pass']:,}", "good", more=[(share, "good")])]
    for severity in (Severity.FAIL, Severity.WARN, Severity.INFO):
        style = SEVERITY_MARKS[severity][1] if found[severity] else "faint"
        tiles.append(TileData(severity.value, f"{found[severity]:,}", style))
    left = whole - sum(cells[each] for each in MADE)
    more = [(f"{cells['running']:,} running", "note")] if cells["running"] else []
    more += [(f"{why} {count:,}", "faint") for why, count in _count_reasons(model).most_common()]
    return [*tiles, TileData("not done", f"{left:,}", "strong" if left else "faint", more=more)]


def _count_reasons(model: CheckModel) -> Counter[str]:
    report = model.report
    return Counter(
        said
        for host, of in (report.why.items() if report is not None else ())
        for check, said in of.items()
        if model.cells.get(check, {}).get(host) not in MADE
    )


def pairs_line(pairs: Pairs, pair: Pair | None, rounds: tuple[str, int, int]) -> Text:
    if not pairs.hosts or pair is None:
        return Text("pairs of hosts: none tried", style="faint")
    glyph, style, _ = LOOKS[pairs.state(*pair)]
    stage, number, of = rounds
    text = Text(f"{stage} round {number} of {of}  " if of else "", style="note")
    return text.append(f"{glyph} ", style=style).append(pairs.told(*pair), style="strong")


def pairs_count(pairs: Pairs) -> str:
    count = len(pairs.hosts)
    trouble = sum(number for state, number in pairs.counts.items() if state.trouble)
    parts = [f"{trouble:,} in trouble"] if trouble else []
    parts += [f"{len(pairs.known):,} of {count * (count - 1):,} pairs known"] if count else []
    return ", ".join(parts)


def row_words(row: GridRow, report: CheckReport | None, width: int) -> Text:
    text = Text()
    add_fact(text, "means", checks_by_id().get(row.check, ""), width)
    seconds = report.stage_seconds.get(row.check) if report is not None else None
    add_fact(text, "took", f"{seconds:.1f} s" if seconds is not None else "", width)
    text.append("\n" if text else "")
    if report is None:
        return text.append("it goes on", style="faint")
    for host, cells in report.cells.items():
        outcome = cells.get(row.check, "")
        mark, style = OUTCOME_MARKS.get(outcome, (" ", ""))
        why = report.why.get(host, {}).get(row.check, "")
        text.append(f"{mark} ", style=style).append(f"{host}: {outcome.replace('_', ' ')}")
        text.append(f": {why}\n" if why else "\n")
    text.rstrip()
    return text


LABEL_CELLS = 10


def add_fact(text: Text, label: str, words: str, width: int) -> None:
    room = max(LABEL_CELLS, width - LABEL_CELLS)
    lines = [part for line in words.splitlines() for part in textwrap.wrap(line, room) or [""]]
    for place, line in enumerate(lines):
        style = "" if place else "note" if label == "do" else "strong"
        text.append(("" if place else label).ljust(LABEL_CELLS), style=style).append(f"{line}\n")


def finding_words(finding: Finding, report: CheckReport | None, width: int) -> Text:
    """Return a finding in ``width`` cells: evidence, meaning, cure, and the proof of the cure."""
    text = Text()
    mark, style = SEVERITY_MARKS[finding.severity]
    words = textwrap.wrap(f"{mark}  {finding.summary}", max(1, width))
    text.append("\n".join([*words, ""]), style="strong").stylize(style, 0, len(mark))
    cure = finding.cure
    by_run = f"`distconsole run`: {cure.by_run}" if cure is not None and cure.by_run else ""
    facts = (
        ("hosts", ", ".join(finding.hosts) if len(finding.hosts) > 1 else ""),
        ("seen", finding.seen),
        ("expected", finding.expected),
        ("do", console_hint(finding.hint)),
        ("means", checks_by_id().get(finding.check, "")),
        ("cure", "\n".join([*(cure_lines(cure) if cure is not None else ()), by_run])),
        ("proof", "\n".join(f"{when}: {what}" for when, what in proof_text(finding))),
    )
    for label, said in facts:
        add_fact(text, label, said.strip(), width)
    if report is not None and finding.severity is Severity.FAIL:
        add_fact(text, "", "\n".join(changes_text(report, finding.hosts or None)), width)
    text.rstrip()
    return text


def pair_words(pair: Pair, pairs: Pairs, report: CheckReport | None, width: int) -> Text:
    text = Text()
    for source, target in (pair, pair[::-1]):
        glyph, style, _ = LOOKS[pairs.state(source, target)]
        text.append(f"{glyph} ", style=style).append(f"{pairs.told(source, target)}\n")
    text.append("\n")
    for finding in report.findings if report is not None else ():
        if set(finding.hosts) & set(pair) and finding.severity.order >= Severity.WARN.order:
            text.append_text(finding_words(finding, None, width)).append("\n\n")
    text.rstrip()
    return text


def report_words(report: CheckReport | None, width: int) -> Text:
    text = Text()
    if report is not None:
        text.append("\n".join([*target_text(report.target), ""]) if report.target else "")
        add_fact(text, "not seen", "\n".join(report.uncovered), width)
        add_fact(text, "time", stages_text(report), width)
    text.rstrip()
    return text


def choices_words(choices: Sequence[ChoiceReport], width: int, *, done: bool) -> Text:
    """Return the interface of each engine on each host; ``done``: no more will come."""
    if not choices:
        end = "no engine that takes an interface was looked at"
        return Text(end if done else "the interfaces that each engine takes: not known yet")
    lines = panel_lines(choices, len(choices), width)[1:]
    text = Text(
        "\n".join(
            "\n".join(textwrap.wrap(line, width, subsequent_indent=" " * 4))
            if line.startswith(REASON)
            else line
            for line in lines
        )
    )
    text.highlight_regex(rf"{RED}\S*", "bad")
    return text


def title_of(finding: Finding) -> str:
    return f"{finding.check} · {join_some(finding.hosts, 4) or 'all hosts'}"


def line_count(words: Words) -> int:
    text = str(words.content)
    return text.count("\n") + 1 if text else 0
