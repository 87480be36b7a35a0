"""A check's result for other programs: a hostfile of the hosts that passed, and JUnit's XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from distconsole.errors import ConfigError
from distconsole.model.check_outcome import passed_hosts
from distconsole.model.cluster import Cluster
from distconsole.model.findings import Severity
from distconsole.model.reports import CheckOutcome, CheckReport
from distconsole.model.requests import Check


def write_files(request: Check, report: CheckReport, cluster: Cluster) -> None:
    """Write the files that ``request`` asks for.

    Raises:
        ConfigError: if one cannot be written.
    """
    texts = {
        request.emit_hostfile: hostfile(
            cluster, passed_hosts(report, strict=request.strict), request.nproc
        ),
        request.junit: junit(report),
    }
    for name, text in texts.items():
        if name is None:
            continue
        try:
            Path(name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{name} cannot be written: {error.strerror}") from None


def hostfile(cluster: Cluster, passed: Collection[str], ranks_per_host: int | None) -> str:
    """Return an Open MPI and Horovod hostfile of the hosts that passed, in their order."""
    return "".join(
        f"{host.name} slots={ranks_per_host or host.slots or 1}\n"
        for host in cluster.hosts
        if host.name in passed
    )


def junit(report: CheckReport) -> str:
    """Return one test case for each host and check, and one for the outcome (what CI systems read).

    A check that could not be made is skipped there; that the whole is incomplete is an error.
    """
    outcomes = Counter(cell for cells in report.cells.values() for cell in cells.values())
    skipped = sum(outcomes[name] for name in ("skipped", "could_not_run", "timed_out"))
    failed, incomplete = (
        report.outcome is each for each in (CheckOutcome.FAILED, CheckOutcome.INCOMPLETE)
    )
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="distconsole check" tests="{outcomes.total() + 1}" '
        f'failures="{outcomes["fail"] + failed}" errors="{int(incomplete)}" '
        f'skipped="{skipped}" time="{report.seconds}">',
    ]
    for host, cells in report.cells.items():
        for check, outcome in cells.items():
            why = report.why.get(host, {}).get(check, "")
            lines.append(f"  <testcase classname={quoteattr(host)} name={quoteattr(check)}>")
            if outcome == "fail":
                lines.append(f"    <failure message={quoteattr(why)}/>")
            elif outcome == "warn":
                lines.append(f"    <system-out>{escape(why)}</system-out>")
            elif outcome != "pass":
                lines.append(f"    <skipped message={quoteattr(f'{outcome}: {why}')}/>")
            lines.append("  </testcase>")
    return "\n".join([*lines, *_outcome_case(report), "</testsuite>", ""])


def _outcome_case(report: CheckReport) -> Iterator[str]:
    """Yield the test case of the whole: also what is wrong and no host's check stands in it."""
    yield '  <testcase classname="distconsole check" name="outcome">'
    if report.outcome is not CheckOutcome.HEALTHY:
        tag = "failure" if report.outcome is CheckOutcome.FAILED else "error"
        bad = (Severity.WARN, Severity.FAIL)
        told = [found.summary for found in report.findings if found.severity in bad]
        why = "; ".join([report.outcome.value, *["cancelled"][: report.cancelled], *told])
        yield f"    <{tag} message={quoteattr(why)}/>"
    yield "  </testcase>"
