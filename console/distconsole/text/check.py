"""A check as text: findings worst first, then how much was looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from distconsole.formats.figures import number_text
from distconsole.model.check_outcome import LOST
from distconsole.model.events import CheckProgress, PairProgress
from distconsole.model.findings import Cure, Finding, Proof, Severity
from distconsole.model.names import UNITS, count_text, join_some
from distconsole.model.reports import (
    CheckOutcome,
    CheckReport,
    CollectiveReport,
    ProfileReport,
    TargetReport,
)
from distconsole.model.time_text import date_text
from distconsole.text.choices import FEW_REASONS, MAX_REASONS, REASON, panel_lines
from distconsole.text.output import Output, Paint, tell
from distconsole.text.tables import show_table

SWEEP_HEADER = ("size", "time, us", "algbw, GB/s", "busbw, GB/s", "result")
LEAST_GBS = 0.001
MAX_HOSTS_TOLD = 4
MAX_ROWS = 12
MAX_CHANGES_TOLD = 4
MAX_HOSTS_NAMED = 6
MAX_STAGES = 6
LEAST_SECONDS = 0.1
"""Shorter stages are left out."""
HANGING = 7
OUTCOME_WORDS = {
    CheckOutcome.HEALTHY: ("healthy", "green"),
    CheckOutcome.FAILED: ("not healthy", "red"),
    CheckOutcome.INCOMPLETE: ("incomplete", "yellow"),
}
OTHERWISE = {
    "fail": "failed",
    "warn": "warned",
    "could_not_run": "could not run",
    "timed_out": "timed out",
    "skipped": "skipped",
}
HOW_TO_SEE_MORE = (
    "what was seen, whole hints and the interfaces taken: --details; what a check is: --explain ID"
)


def show_progress(output: Output, progress: CheckProgress) -> None:
    """Show the current stage, on the status line of a terminal."""
    if progress.going:
        line = f"checking {', '.join(going_texts(progress))}: {progress_text(progress)}"
        output.status(line, seconds=progress.seconds)


def going_texts(progress: CheckProgress) -> list[str]:
    """Return the stages that go on, each with how many hosts have answered once one has."""
    hosts = progress.hosts
    answered = progress.answered or [0] * len(progress.going)
    return [
        f"{stage} {count:,} of {count_text(hosts, 'host')}" if count and hosts > 1 else stage
        for stage, count in zip(progress.going, answered, strict=True)
    ]


def progress_text(progress: CheckProgress) -> str:
    """Return how many checks have been judged, on all hosts together."""
    return f"{progress.judged:,} of {count_text(progress.total, 'check')}"


def stages_text(report: CheckReport, most: int = MAX_STAGES) -> str:
    """Return the longest parts of the check's time; empty if none took long."""
    longest = sorted(report.stage_seconds.items(), key=lambda each: -each[1])
    told = [f"{name} {seconds:.1f} s" for name, seconds in longest if seconds >= LEAST_SECONDS]
    return ", ".join(told[:most])


def show_rounds(output: Output, progress: PairProgress) -> None:
    """Show how far a stage that goes through rounds of pairs is, on the status line of a terminal."""
    if progress.rounds:
        output.status(f"{progress.stage} of pairs: round {progress.round} of {progress.rounds}")


def show_report(output: Output, report: CheckReport, *, details: bool = False) -> None:
    """Print the report to stdout; with ``details`` also evidence, whole hints, and the panel of interfaces."""
    output.status("")
    if report.target is not None:
        for line in target_text(report.target):
            output.data(line)
    for line in changes_text(report):
        tell(output, line, 2)
    worst_first = sorted(report.findings, key=lambda finding: -finding.severity.order)
    for finding in worst_first:
        if finding.severity is not Severity.OK:
            show_finding(output, finding, details=details)
    if report.choices and (details or any(choice.meets is False for choice in report.choices)):
        output.data("")
        for line in panel_lines(report.choices, MAX_REASONS if details else FEW_REASONS):
            if line.startswith(REASON):
                tell(output, line, 6)
            else:  # the table itself
                output.data(line)
    if report.collectives:
        _show_collectives(output, report)
    _show_summary(output, report, details=details)


def target_text(target: TargetReport) -> list[str]:
    """Return what would be launched, in a line or two, and a line for each note."""
    ranks, hosts = count_text(target.world_size, "rank"), count_text(len(target.hosts), "host")
    script = f"-m {target.script}" if target.module else target.script
    if not target.world_size:
        return [f"launch: {script}: run would refuse it", *_notes(target)]
    lines = [f"launch: {script}: {ranks} on {hosts} by {target.launcher}: {target.why}"]
    nics = list(dict.fromkeys(host.interface or "?" for host in target.hosts))
    port = (
        f"port {target.port} ({target.fixed_by})" if target.port else "a port found free at start"
    )
    first = target.address or next((host.address for host in target.hosts if host.ranks), "")
    lines.append(f"        meeting at {first} over {', '.join(nics[:4])}, {port}")
    return [*lines, *_notes(target)]


def _notes(target: TargetReport) -> list[str]:
    brought = [f"--sync would bring {target.brought}"] if target.brought else []
    return [f"        note: {note}" for note in (*brought, *target.notes)]


def changes_text(report: CheckReport, hosts: Iterable[str] | None = None) -> list[str]:
    """Return what has changed since ``hosts``, or all, last passed: a line, and one a host; none if healthy."""
    if report.ok or report.last_passed is None:
        return []
    when = date_text(report.last_passed)
    wanted = None if hosts is None else set(hosts)
    of_host: dict[str, list[str]] = {}
    for change in report.changes:
        if wanted is None or change.host in wanted:
            told = f"{change.what} {change.was or 'nothing'} -> {change.now or 'nothing'}"
            of_host.setdefault(change.host, []).append(told)
    if not of_host:
        same = f"nothing that was looked at has changed since the last green check, {when}"
        reached = all(host.reachable for host in report.hosts.values())
        return [same] if reached and any(report.cells.values()) else []
    lines = [f"changed since the last green check, {when}:"]
    for host, marks in list(of_host.items())[:MAX_HOSTS_TOLD]:
        more = f", and {len(marks) - MAX_CHANGES_TOLD} more" if marks[MAX_CHANGES_TOLD:] else ""
        lines.append(f"  {host}: {', '.join(marks[:MAX_CHANGES_TOLD])}{more}")
    if len(of_host) > MAX_HOSTS_TOLD:
        lines.append(
            f"  and {count_text(len(of_host) - MAX_HOSTS_TOLD, 'more host')}: --json has them all"
        )
    return lines


def show_finding(output: Output, finding: Finding, *, details: bool = True) -> None:
    """Print a finding: what, where, what came of its cure, and what to do; without ``details`` what to type first."""
    paint = output.paint_out
    names = ",".join(finding.hosts)
    if len(finding.hosts) > MAX_HOSTS_NAMED:
        names = join_some(finding.hosts, MAX_HOSTS_NAMED - 1, ",")
    hosts = f" {paint(names, 'bold')}:" if finding.hosts else ""
    said = finding.summary.removeprefix(f"{', '.join(finding.hosts)}: ")
    mark, check = paint.severity(finding.severity), paint(f"[{finding.check}]", "dim")
    tell(output, f"{mark}{hosts} {said} {check}", HANGING)
    serious = finding.severity in (Severity.WARN, Severity.FAIL)
    if details:
        facts = [("seen", finding.seen), ("expected", finding.expected)] if serious else []
        for label, text in facts:
            for number, line in enumerate(text.splitlines()):
                lead = "  " if number else f"{label}: "
                tell(output, f"       {lead}{line}", HANGING + 4)
        for label, words in proof_text(finding):
            tell(output, f"       {paint(f'{label}:', 'cyan')} {words}", HANGING + 4)
    elif finding.proof is not None and finding.proof.after:
        _show_trial(output, finding, finding.proof)
    hint = finding.hint if details or serious else ""
    first, *rest = hint.splitlines() or [""]
    if first:
        more = f"  (and {len(rest)} more)" if rest and not details else ""
        output.data(f"       {paint('hint:', 'cyan')} {first}{paint(more, 'dim')}")
    for line in rest if details else ():
        output.data(f"         {line}")


def _show_trial(output: Output, finding: Finding, proof: Proof) -> None:
    paint = output.paint_out
    end = paint("cured", "green") if proof.cured else paint("not cured", "yellow")
    by = (
        f" by `{next(iter(cure_lines(finding.cure)), '')}`" if proof.cured and finding.cure else ""
    )
    tell(output, f"       {end}{by}: {proof.before} -> {proof.after}", HANGING + 4)


def cure_lines(cure: Cure) -> list[str]:
    from distconsole.checks.fixes.cures import lines_to_type  # noqa: PLC0415 - other verbs need no checks

    return lines_to_type(cure)


def proof_text(finding: Finding) -> list[tuple[str, str]]:
    """Return what came of trying a finding's cure: without it and with it; none if it was not tried."""
    proof = finding.proof
    if proof is None:
        return []
    told = [("before", f"{proof.before} ({proof.ran})")]
    if proof.after:
        end = "cured" if proof.cured else "not cured"
        told.append(("after", f"{proof.after}: {end}"))
    return told


def _show_collectives(output: Output, report: CheckReport) -> None:
    if len(report.collectives) > MAX_ROWS:
        show_tables(output, report.collectives)
        return
    rows = [
        (
            f"{entry.launcher}/{entry.backend}",
            entry.op,
            str(entry.bytes),
            f"{entry.time_us:.0f}",
            bandwidth_text(entry.algbw_gbs),
            bandwidth_text(entry.busbw_gbs),
            "exact" if entry.correct else "WRONG",
            str(entry.size),
        )
        for entry in report.collectives
    ]
    header = ("engine", "collective", "bytes", "us", "algbw GB/s", "busbw GB/s", "result", "ranks")
    output.data("")
    show_table(output, header, rows, right=(2, 3, 4, 5, 7))


def _show_ways(output: Output, report: CheckReport) -> None:
    """Show the engines' transports; pairs of hosts that are alike share a line."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for way in report.ways:
        names = " -> ".join(dict.fromkeys(filter(None, (way.source, way.target))))
        key = (way.engine, ", ".join(way.via), str(way.channels or ""), ", ".join(way.devices))
        alike.setdefault(key, []).append(names)
    rows = [(key[0], join_some(pairs, MAX_HOSTS_TOLD), *key[1:]) for key, pairs in alike.items()]
    if rows:
        output.data("")
        show_table(output, ("engine", "between", "took", "channels", "devices"), rows[:MAX_ROWS])


def summary_text(paint: Paint, report: CheckReport) -> str:
    """Return how a check came out, and how many checks were made of how many, in one line."""
    lost = {host for found in report.findings if found.check == LOST for host in found.hosts}
    reachable = sum(host.reachable and name not in lost for name, host in report.hosts.items())
    parts = ["cancelled"] if report.cancelled else []
    parts.append(f"{reachable} of {count_text(len(report.hosts), 'host')} reachable")
    parts += [made_text(report), f"{report.seconds:.1f} s"]
    return f"{paint(*OUTCOME_WORDS[report.outcome], 'bold')}: {', '.join(parts)}"


def _show_summary(output: Output, report: CheckReport, *, details: bool) -> None:
    if details:
        _show_ways(output, report)
    output.data("")
    tell(output, summary_text(output.paint_out, report), 2)
    stages = stages_text(report) if details else ""
    if stages:
        tell(output, f"time: {stages}", 2)
    if report.uncovered:
        tell(output, f"not covered: {'; '.join(report.uncovered)}", 2)
    if report.profile is not None:
        for line in profile_text(report.profile):
            output.data(line)


def made_text(report: CheckReport) -> str:
    """Return how many checks passed of how many there are, and what became of the others, worst first."""
    counts = Counter(outcome for cells in report.cells.values() for outcome in cells.values())
    told = [f"{counts['pass']:,} of {count_text(counts.total(), 'check')} passed"]
    for outcome, words in OTHERWISE.items():
        told += [f"{counts[outcome]:,} {words}"] if counts[outcome] else []
    return ", ".join(told)


def profile_text(profile: ProfileReport) -> list[str]:
    """Return the lines written into the configuration, each with its proof, and the omitted ones."""
    lines = [f"{profile.file}: nothing was written"]
    if profile.written:
        lines = [f"written to {profile.file}:"]
    for entry in profile.written:
        table = ".".join(entry.table)
        value = entry.value.replace("\n", "; ")
        lines += [f"  [{table}] {entry.key} = {value}"]
        lines += [f"    {entry.check}: {entry.before} -> {entry.after}"]
    if profile.there:
        lines.append(f"  there already: {', '.join(profile.there)}")
    return lines + [f"  not for {check}: `run` {does}" for check, does in profile.left.items()]


def show_tables(output: Output, collectives: Sequence[CollectiveReport]) -> None:
    ops: dict[str, list[CollectiveReport]] = {}
    for entry in collectives:
        title = f"{entry.op} {entry.dtype}, {entry.launcher}/{entry.backend}, {count_text(entry.size, 'rank')}"
        ops.setdefault(title, []).append(entry)
    for title, entries in ops.items():
        output.data("")
        output.data(output.paint_out(title, "bold"))
        show_table(
            output,
            SWEEP_HEADER,
            [
                (
                    (
                        exact_size_text(entry.bytes),
                        number_text(entry.time_us),
                        bandwidth_text(entry.algbw_gbs) if entry.bytes else "",
                        bandwidth_text(entry.busbw_gbs) if entry.bytes else "",
                        "" if not entry.bytes else "exact" if entry.correct else "WRONG",
                    )
                )
                for entry in entries
            ],
            right=(0, 1, 2, 3),
        )


def bandwidth_text(gbs: float) -> str:
    """Return 1e9 bytes a second to a thousandth; none where nothing crosses a link, as with one rank."""
    return f"{gbs:.3f}" if gbs >= LEAST_GBS or not gbs else f"< {LEAST_GBS}"


def exact_size_text(count: int) -> str:
    """Return bytes as they were asked for, such as ``4 B``, ``64 KiB`` or ``1 MiB``."""
    for unit, name in UNITS:
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"
