"""Measures folders: on all hosts at once, and then on suspects again.

Folders are those of a launch, its working folder, its paths and TMPDIR; without one, at level full, the
home and TMPDIR. What is written has no name, or loses it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from distconsole.checks.facts.evidence import HostEvidence, Outcome
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.facts.script import Folder, FolderFacts, SpeedFacts
from distconsole.checks.gather.context import NOTHING_WRITTEN, CheckContext, believe
from distconsole.checks.rules.system.folders import slow_folders
from distconsole.model.cluster import Host
from distconsole.model.requests import Level

WRITE_BYTES = {Level.STANDARD: 4 << 20, Level.FULL: 64 << 20}
READ_BYTES = {Level.STANDARD: 8 << 20, Level.FULL: 64 << 20}
PART_SECONDS = {Level.STANDARD: 0.3, Level.FULL: 2.0}
"""For each thing that is measured of a folder."""

PARTS = 4
AGAIN = 2
"""How often a suspect is measured once more, alone, before it is accused."""


def measure_folders(context: CheckContext) -> Iterator[str]:
    """Measure how fast folders are; yields each host once it has answered."""
    level = context.request.level
    if context.launch is None and level is not Level.FULL:
        context.mark_missing((SpeedFacts,), Outcome.SKIPPED, NOTHING_WRITTEN)
        return
    reached = context.reached()
    questions = {str(host.name): _speed_questions(context, host) for host in reached}
    most = max((len(asked) for asked in questions.values()), default=0)
    wanted = most * (PARTS * PART_SECONDS[level] + 0.5) + 1.0
    seconds = context.time_for(SpeedFacts, wanted, 1.0)
    if not seconds:
        return

    def ask(hosts: list[Host], asked: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
        args = {name: {"folders": folders} for name, folders in asked.items()}
        return context.ask_facts(
            hosts, SpeedFacts, "folders", seconds, lambda host: args[host.name], _learn_folders
        )

    yield from ask(reached, questions)
    for _ in range(AGAIN):
        facts = context.view((SpeedFacts,)).of(SpeedFacts)
        again = {(slow.host, slow.path) for slow in slow_folders(facts)}
        hosts = [host for host in reached if any(host.name == name for name, _ in again)]
        if not hosts or context.left(seconds) < seconds:
            return
        for host in hosts:
            asked = [q for q in questions[host.name] if (host.name, q["path"]) in again]
            list(ask([host], {host.name: asked}))


def _speed_questions(context: CheckContext, host: Host) -> list[dict[str, Any]]:
    level, launch = context.request.level, context.launch
    each = {"seconds": PART_SECONDS[level]}
    writes = {**each, "write_bytes": WRITE_BYTES[level]}
    reads = {**each, "read_bytes": READ_BYTES[level]}
    system = context.hosts[host.name].find(OsFacts)
    own = [system.temporary, system.home] if system else []
    places, inputs = own if level is Level.FULL else [], list[str]()
    if launch is not None:
        places = list(dict.fromkeys([*launch.written_folders, *own[:1]]))
        inputs = [one.path for one in launch.paths if not one.output and one.path not in places]
    return [{"path": path, **writes} for path in places] + [
        {"path": path, **reads} for path in inputs
    ]


def _learn_folders(evidence: HostEvidence, answer: dict[str, Any]) -> None:
    said = believe(evidence, FolderFacts, answer, SpeedFacts)
    if said is None:
        return
    known = evidence.find(SpeedFacts)
    before = known.folders if known else {}
    better = {path: _best_folder(before.get(path), found) for path, found in said.folders.items()}
    evidence.add_facts(SpeedFacts(folders={**before, **better}))


def _best_folder(one: Folder | None, other: Folder) -> Folder:
    if one is None or other.late:
        return other if one is None else one
    return Folder(
        write=max((one.write, other.write), key=lambda each: (each and each.rate) or 0.0),
        read=max((one.read, other.read), key=lambda each: (each and each.rate) or 0.0),
        small=min((one.small, other.small), key=lambda each: (each and each.latency) or 1e9),
        look=min((one.look, other.look), key=lambda each: (each and each.latency) or 1e9),
    )
