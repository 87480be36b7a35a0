"""Has the hosts copy to GPUs that nobody uses, all hosts at once, and suspects once more."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from distconsole.checks.facts.evidence import HostEvidence, Outcome
from distconsole.checks.facts.gpu import GpuFacts, GpuLoadFacts, LoadedGpu
from distconsole.checks.gather.context import CheckContext, believe
from distconsole.checks.rules.gpu.gpu_load import suspects
from distconsole.model.cluster import Host

START_SECONDS = 8.0
"""For CUDA to start: it looks at every GPU of the host."""

GPU_SECONDS = 2.0
LEAST_SECONDS = 3.0
STOP_SECONDS = 3.0


def measure(context: CheckContext) -> Iterator[str]:
    """Measure; yields each host once it has answered."""
    questions = _questions(context)
    hosts = [host for host in context.reached() if host.name in questions]
    most = max((len(_uuids(context, host)) for host in hosts), default=0)
    wanted = START_SECONDS + GPU_SECONDS * most
    seconds = context.time_for(GpuLoadFacts, wanted, LEAST_SECONDS)
    if not seconds:
        return
    yield from _ask(context, hosts, questions, seconds)
    view = context.view()
    again = suspects(view.of(GpuFacts), view.of(GpuLoadFacts))
    doubtful = [host for host in hosts if host.name in again]
    if doubtful and context.left(seconds) >= seconds:
        for _ in _ask(context, doubtful, again, seconds):
            pass


def _uuids(context: CheckContext, host: Host) -> tuple[str | None, ...]:
    found = context.hosts[host.name].known.get(GpuFacts)
    return tuple(gpu.uuid for gpu in found.gpus) if isinstance(found, GpuFacts) else ()


def _questions(context: CheckContext) -> dict[str, list[str]]:
    """Return by host which GPUs are asked for, none for all; who is not asked is told why."""
    owner: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for host in context.reached():
        uuids = _uuids(context, host)
        evidence = context.hosts[host.name]
        if not uuids:
            evidence.mark_missing(GpuLoadFacts, Outcome.SKIPPED, "no GPU")
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


def _ask(
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
        for name in context.ask_facts(hosts, GpuLoadFacts, "gpu.load", seconds, gpus, _learn):
            waiting.pop(name)
            yield name
    except BaseException:
        # Ctrl-C, or a consumer that went away: the GPUs are wanted for something else.
        context.stop(waiting.values(), "gpu.load.stop", token, STOP_SECONDS)
        raise


def _learn(evidence: HostEvidence, answer: dict[str, Any]) -> None:
    said = believe(evidence, GpuLoadFacts, answer)
    if said is None:
        return
    known = evidence.known.get(GpuLoadFacts)
    before = {gpu.index: gpu for gpu in known.gpus} if isinstance(known, GpuLoadFacts) else {}
    now = {gpu.index: gpu for gpu in said.gpus}
    both = {**before, **{at: _best(before.get(at), gpu) for at, gpu in now.items()}}
    facts = GpuLoadFacts(gpus=tuple(both[at] for at in sorted(both)))
    evidence.add_facts(facts, msgspec.to_builtins(facts))


def _best(before: LoadedGpu | None, again: LoadedGpu) -> LoadedGpu:
    """Return the better of each reading; one that could not be repeated stays as it was."""
    if before is None or not again.measured:
        return again if before is None else before
    return msgspec.structs.replace(
        before,
        width=max(before.width or 0, again.width or 0) or None,
        generation=max(before.generation or 0, again.generation or 0) or None,
        to_device=max(before.to_device or 0, again.to_device or 0),
        from_device=max(before.from_device or 0, again.from_device or 0),
        counted=max(before.counted or 0, again.counted or 0) or None,
        clock_reasons=before.clock_reasons & again.clock_reasons,
        replays=_least(before.replays, again.replays),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
