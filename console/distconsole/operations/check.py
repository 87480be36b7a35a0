"""``check``: hosts are judged, and proven cures become keys of the configuration that ``run`` reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from distconsole.checks.engine.baseline import Baselines
from distconsole.checks.engine.catalogue import explain_check
from distconsole.checks.engine.run import run_check
from distconsole.checks.engine.targeting import make_planner
from distconsole.checks.fixes.cures import exports, mca_env
from distconsole.config.load import needs_no_trust, project_file, trust_as_it_is
from distconsole.config.paths import PROJECT_FILE, expand_home
from distconsole.config.schema import Config
from distconsole.config.writing import TomlEntry, add_entries
from distconsole.errors import ConfigError, UsageError
from distconsole.model.cluster import Cluster
from distconsole.model.events import CheckEnded, Event
from distconsole.model.findings import Cure, Finding, HostCure
from distconsole.model.reports import ProfileLine, ProfileReport
from distconsole.model.requests import Check, Explain
from distconsole.operations.control import interrupt
from distconsole.operations.sessions import SessionSource, narrate, say_alone
from distconsole.session import Session
from distconsole.ssh.asking import PERSON

ENV = ("run", "env")


def check(request: Check, sessions: SessionSource, began: float | None = None) -> Iterator[Event]:
    """Judge the hosts; ``began`` is as ``Control`` has it, and None takes this moment."""
    began = PERSON.working_seconds(began)
    plan = make_planner(request, request.target) if request.target is not None else None
    with sessions(request.where) as session:
        yield from narrate(say_alone("checks", sessions, request.where, session.cluster))
        baselines = Baselines.of(session.cluster)
        events = run_check(request, session, baselines=baselines, plan=plan, began=began)
        if request.write_profile is None:
            yield from events
        else:
            yield from _write_at_end(request.write_profile, events, session)


def explain(request: Explain) -> Iterator[Event]:
    yield from explain_check(request)


def _write_at_end(file: str, events: Iterator[Event], session: Session) -> Iterator[Event]:
    """Write proven cures at the end, not after Ctrl-C; the report comes even if that fails."""
    path = profile_path(file)
    for event in events:
        if not isinstance(event, CheckEnded) or event.report.cancelled:
            try:
                yield event
            except KeyboardInterrupt as by:
                yield from interrupt(events, by)
                return
            continue
        report = event.report
        try:
            profile = write_profile(path, report.findings, session.config, session.cluster)
        except ConfigError:
            yield event
            raise
        yield CheckEnded(report=msgspec.structs.replace(report, profile=profile))


def profile_path(wanted: str) -> Path:
    """Return the file to write: as asked for, else the project's own, which may not be there yet.

    Raises UsageError if it is no TOML file by its name: it may be the script that was meant;
    ConfigError if it cannot be understood.
    """
    path = expand_home(wanted) if wanted else None
    if path is not None and path.suffix != ".toml":
        raise UsageError(
            f"--write-profile {wanted}: not a .toml file",
            "for the project's distconsole.toml put another option behind it, or --",
        )
    path = path or project_file(Path.cwd()) or Path.cwd() / PROJECT_FILE
    add_entries(path, ())
    return path


def write_profile(
    path: Path, findings: Iterable[Finding], config: Config, cluster: Cluster
) -> ProfileReport:
    """Write the proven cures that ``run`` does not apply by itself to ``path``, and report them.

    ``config`` is the present configuration. Raises ConfigError as ``add_entries``.
    """
    proven = [found for found in findings if found.cure and found.proof and found.proof.cured]
    left = [found for found in proven if found.cure and found.cure.by_run]
    entries = _entries([found for found in proven if found not in left], config, cluster)
    place = path.parent.resolve() / path.name
    taken = needs_no_trust(place)
    new = add_entries(path, entries)
    if new and taken:  # what is new in it is our own
        trust_as_it_is(place)
    proof_of = {found.check: found.proof for found in proven}
    return ProfileReport(
        file=str(path),
        written=tuple(
            ProfileLine(
                table=list(entry.table),
                key=entry.key,
                value=entry.value,
                check=entry.comment.partition(" ")[0],
                before=proof.before if proof else "",
                after=proof.after if proof else "",
            )
            for entry in new
            for proof in (proof_of.get(entry.comment.partition(" ")[0]),)
        ),
        there=tuple(entry.place for entry in entries if entry not in new),
        left={found.check: found.cure.by_run for found in left if found.cure},
    )


def _entries(findings: Iterable[Finding], config: Config, cluster: Cluster) -> list[TomlEntry]:
    found = list(findings)
    by_place = {(entry.table, entry.key): entry for each in found for entry in _plain(each)}
    setups: dict[str, list[tuple[str, str]]] = {}
    for finding in found:
        cure = finding.cure or Cure()
        for name in (str(host.name) for host in cluster.hosts):
            for line in _shell(cure, cure.hosts.get(name, HostCure())):
                setups.setdefault(name, []).append((line, finding.check))
    named = config.clusters.get(cluster.name) if cluster.name else None
    for name, lines in setups.items():
        there = (config.settings(name, named).setup or "").splitlines()
        missing = [line for line, _ in lines if line not in there]
        if missing:
            value = "\n".join([*there, *dict.fromkeys(missing)])
            checks = " ".join(dict.fromkeys(check for _, check in lines))
            by_place[("hosts", name), "setup"] = TomlEntry(("hosts", name), "setup", value, checks)
    return list(by_place.values())


def _plain(finding: Finding) -> Iterator[TomlEntry]:
    cure = finding.cure or Cure()
    for name, value in {**cure.env, **mca_env(cure)}.items():
        yield TomlEntry(ENV, name, value, finding.check)
    for host, change in cure.hosts.items():
        for key, value in (("nic", change.nic), ("address", change.address)):
            if value:
                yield TomlEntry(("hosts", host), key, value, finding.check)


def _shell(cure: Cure, change: HostCure) -> Iterator[str]:
    if change.env:
        yield exports(change.env)
    if cure.unset or change.unset:
        yield f"unset {' '.join((*cure.unset, *change.unset))}"
    if change.setup:
        yield change.setup
