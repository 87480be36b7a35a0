"""Measures folders and GPUs under load: on all hosts at once, and then on suspects again.

Folders are those of a launch, its working folder, its paths and TMPDIR; without one, at level full, the
home and TMPDIR. What is written has no name, or loses it at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from distconsole.checks.facts.evidence import HostEvidence, Outcome
from distconsole.checks.facts.gpu import AMD, GpuFacts, GpuLoadFacts, LoadedGpu
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.facts.script import Folder, FolderFacts, SpeedFacts
from distconsole.checks.gather.context import NOTHING_WRITTEN, CheckContext, believe
from distconsole.checks.rules.gpu.gpu_load import suspects
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

START_SECONDS = 8.0
"""For CUDA to start: it looks at every GPU of the host."""

GPU_SECONDS = 2.0
LEAST_SECONDS = 3.0
STOP_SECONDS = 3.0


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
    level = context.request.level
    reads = READ_BYTES[level]
    each = {"seconds": PART_SECONDS[level]}
    writes = {**each, "write_bytes": WRITE_BYTES[level]}
    places = _writable_folders(context, host)
    found = [{"path": path, **writes} for path in places]
    launch = context.launch
    inputs = [one.path for one in launch.paths if not one.output] if launch is not None else []
    found += [{"path": path, **each, "read_bytes": reads} for path in inputs if path not in places]
    return found


def _writable_folders(context: CheckContext, host: Host) -> list[str]:
    launch = context.launch
    system = context.hosts[host.name].find(OsFacts)
    own = [system.temporary, system.home] if system else []
    if launch is None:
        return own if context.request.level is Level.FULL else []
    return list(dict.fromkeys([*launch.written_folders, *own[:1]]))


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


def load_gpus(context: CheckContext) -> Iterator[str]:
    """Have the hosts copy to idle GPUs; yields each host once it has answered."""
    questions = _gpu_questions(context)
    hosts = [host for host in context.reached() if host.name in questions]
    most = max((len(_uuids(context, host)) for host in hosts), default=0)
    wanted = START_SECONDS + GPU_SECONDS * most
    seconds = context.time_for(GpuLoadFacts, wanted, LEAST_SECONDS)
    if not seconds:
        return
    yield from _ask_gpus(context, hosts, questions, seconds)
    view = context.view()
    again = suspects(view.of(GpuFacts), view.of(GpuLoadFacts))
    doubtful = [host for host in hosts if host.name in again]
    if doubtful and context.left(seconds) >= seconds:
        for _ in _ask_gpus(context, doubtful, again, seconds):
            pass


def _uuids(context: CheckContext, host: Host) -> tuple[str | None, ...]:
    found = context.hosts[host.name].find(GpuFacts)
    return tuple(gpu.uuid for gpu in found.gpus) if found else ()


def _gpu_questions(context: CheckContext) -> dict[str, list[str]]:
    """Return by host the GPUs to ask for, none for all; note why the others are not asked."""
    owner: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for host in context.reached():
        uuids = _uuids(context, host)
        evidence = context.hosts[host.name]
        facts = evidence.find(GpuFacts)
        if facts is None or not uuids or facts.vendor == AMD:
            why = "GPUs of AMD's are not loaded" if uuids else "no GPU"
            evidence.mark_missing(GpuLoadFacts, Outcome.SKIPPED, why)
            continue
        for uuid in filter(None, uuids):
            owner.setdefault(uuid, host.name)
        own = [uuid for uuid in uuids if uuid and owner[uuid] == host.name]
        if own or None in uuids:
            found[host.name] = [] if len(own) == len(uuids) else own
        else:
            first = next(owner[uuid] for uuid in uuids if uuid)
            evidence.mark_missing(GpuLoadFacts, Outcome.SKIPPED, f"they are the GPUs of {first}")
    return found


def _ask_gpus(
    context: CheckContext,
    hosts: list[Host],
    questions: Mapping[str, Sequence[str]],
    seconds: float,
) -> Iterator[str]:
    token = secrets.token_hex(8)

    def gpus(host: Host) -> dict[str, Any]:
        return {"uuids": list(questions[host.name]), "token": token}

    waiting = {str(host.name): host for host in hosts}
    try:
        for name in context.ask_facts(hosts, GpuLoadFacts, "gpu.load", seconds, gpus, _learn_gpus):
            waiting.pop(name)
            yield name
    except BaseException:
        # Ctrl-C, or a consumer that went away: the GPUs are wanted for something else.
        context.stop(waiting.values(), "gpu.load.stop", token, STOP_SECONDS)
        raise


def _learn_gpus(evidence: HostEvidence, answer: dict[str, Any]) -> None:
    said = believe(evidence, GpuLoadFacts, answer)
    if said is None:
        return
    known = evidence.find(GpuLoadFacts)
    before = {gpu.index: gpu for gpu in known.gpus} if known else {}
    now = {gpu.index: gpu for gpu in said.gpus}
    both = {**before, **{at: _best_gpu(before.get(at), gpu) for at, gpu in now.items()}}
    facts = GpuLoadFacts(gpus=tuple(both[at] for at in sorted(both)))
    evidence.add_facts(facts, msgspec.to_builtins(facts))


def _best_gpu(before: LoadedGpu | None, again: LoadedGpu) -> LoadedGpu:
    """Return the better of each reading; one that could not be repeated stays as it was."""
    if before is None or not again.measured:
        return again if before is None else before
    replays = [each for each in (before.replays, again.replays) if each is not None]
    return msgspec.structs.replace(
        before,
        width=max(before.width or 0, again.width or 0) or None,
        generation=max(before.generation or 0, again.generation or 0) or None,
        to_device=max(before.to_device or 0, again.to_device or 0),
        from_device=max(before.from_device or 0, again.from_device or 0),
        counted=max(before.counted or 0, again.counted or 0) or None,
        clock_reasons=before.clock_reasons & again.clock_reasons,
        replays=min(replays, default=None),
    )
