"""Facts that each node can find by itself, asked all at once, and then the names and credentials of the others there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from distconsole.checks.engine.target import Launch
from distconsole.checks.facts import node
from distconsole.checks.facts.evidence import ALONE, ELSEWHERE, HostEvidence, Outcome
from distconsole.checks.facts.gpu import FabricFacts, GpuFacts
from distconsole.checks.facts.jobs import (
    CollFacts,
    HorovodCollFacts,
    MungeFacts,
    SlurmFacts,
    StepFacts,
)
from distconsole.checks.facts.network import BetweenFacts, EnvFacts, NameFacts, NetFacts, PortFacts
from distconsole.checks.facts.script import FolderFacts, ScriptFacts
from distconsole.checks.gather.addresses import ALL_PAIRS_HOSTS, partners
from distconsole.checks.gather.context import (
    BUDGET_OVER,
    MASTER_PORT,
    NOTHING_WRITTEN,
    CheckContext,
    add_answer,
    interpreter,
    ports_of,
)
from distconsole.config.ranges import RangeError, expand, split_list
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.model.requests import Level
from distconsole.rpc.link import OFFSET_PINGS, NodeLink

NODE_FOLDERS = "/tmp"  # noqa: S108 - the name of a fact
"""Where node folders are that are not asked for elsewhere."""

SPARE_PORTS = tuple(range(MASTER_PORT + 1, MASTER_PORT + 9))
"""Ports that a job may take in place of a held one."""

LOCAL_SECONDS = {Level.QUICK: 8.0, Level.STANDARD: 20.0, Level.FULL: 40.0}
"""How long a host may take over all its local facts."""

SERVED_SECONDS, END_SECONDS = 120.0, 2.0
"""A process with torch that no console ends is there no longer than that."""

FOLDER_SECONDS = {Level.QUICK: 1.5, Level.STANDARD: 4.0, Level.FULL: 8.0}
"""How long a filesystem may sleep over a question that a healthy one answers in milliseconds."""

MANY_HOSTS, FEW_PINGS = 32, 3
"""With more hosts than that, each one's clock is compared with fewer exchanges."""

PYTHON_KINDS: tuple[type[node.Facts], ...] = (
    node.PythonFacts,
    node.TorchFacts,
    node.HorovodFacts,
    EnvFacts,
)
KINDS: tuple[type[node.Facts], ...] = (
    *(node.OsFacts, node.ContainerFacts, node.MpiFacts, GpuFacts),
    *(PortFacts, node.ProcFacts, node.ImportFacts, node.KernelFacts),
    *(FabricFacts, node.ShmFacts, SlurmFacts, NetFacts, ScriptFacts, FolderFacts, BetweenFacts),
)
"""Groups of one probe, ``python_env``; other groups have a probe of their name."""

NOT_ALWAYS = {
    "port": ELSEWHERE,
    "folders": NOTHING_WRITTEN,
    "container": "no container is named: --container",
}
"""Groups of which not every host is asked, and why not."""

ALL_PAIRS = 8
"""With more hosts each tries the next one only."""

MOST_TRIED = 64

RESOLVE_SECONDS = 6.0
"""A resolver asks its first dead server for 5 s (resolv.conf(5))."""

SLURM_SECONDS = 8.0

DECODED_PAIRS = 16
"""With more hosts each decodes the credential of the next one only."""

NO_SLURM = "it has no Slurm facts"
NO_JOB = "no Slurm allocation at hand (salloc, then distconsole check inside it)"


def local_facts(context: CheckContext) -> Iterator[HostEvidence]:
    seconds = context.left(LOCAL_SECONDS[context.request.level])
    hosts = context.reached()
    if seconds > 0.1 and hosts:
        peers = _peers_of_each(context)
        first = next(iter(context.hosts))
        work = partial(_ask_all, context, peers=peers, first=first, seconds=seconds)
        for outcome in context.on_each(hosts, work, seconds):
            evidence = context.hosts[outcome.host]
            if isinstance(outcome, fan.Failed):
                code = getattr(outcome.error, "code", "")
                _note_error(evidence, context.needed, code, outcome.error.message)
            else:
                _learn_all(evidence, outcome.value, context.needed)
            yield evidence
    context.mark_missing((*KINDS, *PYTHON_KINDS, node.ClockFacts), Outcome.TIMED_OUT, BUDGET_OVER)


def _peers_of_each(context: CheckContext) -> dict[HostName, list[str]]:
    known: dict[HostName, list[str]] = {}
    for host in context.reached():
        entries = context.links[host.name].hello.addresses
        usable = [entry.address for entry in entries if not entry.loopback]
        known[host.name] = [each for each in usable if not each.startswith("fe80:")][:4]
    names = list(known)
    if len(names) <= ALL_PAIRS_HOSTS:
        return dict.fromkeys(names, _flat(known.values()))
    return {
        name: _flat(known[each] for each in partners(names, place))
        for place, name in enumerate(names)
    }


def _flat(addresses: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(address for some in addresses for address in some))


def _ask_all(
    context: CheckContext,
    host: Host,
    *,
    peers: Mapping[HostName, list[str]],
    first: str,
    seconds: float,
) -> dict[str, Any]:
    link = context.links[host.name]
    offset = link.clock_offset(OFFSET_PINGS if len(context.hosts) <= MANY_HOSTS else FEW_PINGS)
    probes = [
        {"name": group, "group": group, "args": args, "seconds": seconds}
        for group, args in _questions(context, host, peers[host.name], first)
    ]
    answers = context.ask(host, "many", seconds, {"probes": probes}).get("answers", {})
    return {
        "clock": {"offset_seconds": offset.seconds, "rtt_seconds": offset.rtt_seconds},
        "answers": answers if isinstance(answers, dict) else {},
    }


def _questions(
    context: CheckContext, host: Host, peers: list[str], first: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    needed = context.needed
    if context.launch is not None:
        first = next(iter(context.launch.hosts), first)
    deep = context.request.level is Level.FULL
    quick = context.request.level is Level.QUICK
    shell, paths = interpreter(context, host), [host.node_dir or NODE_FOLDERS]
    if context.launch is not None and not context.launch.brought:
        paths.append(context.launch.workdir)
    if needed & set(PYTHON_KINDS):
        yield "python_env", {**shell, "load": not quick and node.HorovodFacts in needed}
    arguments: dict[str, dict[str, Any]] = {
        "os": {"paths": paths, "patience_seconds": FOLDER_SECONDS[context.request.level]},
        "mpi": {"setup": host.setup, "container": host.container},
        "container": shell,
        "net": {"peers": peers},
        "slurm": {"names": [str(host.name)]},
        "between": {
            # In the order of the hosts, not in that of their connections.
            "targets": targets(
                {each.name: context.links[each.name] for each in context.reached()}, host
            )
            if BetweenFacts in needed
            else []
        },
        "import": {**shell, **serving(context)},
        "gpu": {"health": not quick},
        "port": {"ports": [*ports_of(context)[:1], *SPARE_PORTS]},
        "proc": {"ports": ports_of(context), "patience_seconds": 1.0 if quick else 3.0},
        "script": script_question(context.launch, shell) if context.launch else {},
        "folders": touch_question(context.launch),
    }
    without = {"port"} if host.name != first or not ports_of(context) else set()
    without |= set() if host.container else {"container"}
    if context.launch is None and not deep:
        without.add("folders")
    for kind in KINDS:
        if kind in needed and kind.group not in without:
            yield kind.group, arguments.get(kind.group, {})


def serving(context: CheckContext) -> dict[str, Any]:
    """Return the arguments by which a process with torch stays, to fork the ranks of jobs that measure nothing."""
    jobs = context.needed & {CollFacts, HorovodCollFacts}
    if context.request.level is Level.FULL or not jobs or node.ImportFacts not in context.needed:
        return {}
    return {"token": context.torch_token, "serve_seconds": max(0.0, context.left(SERVED_SECONDS))}


def end_imports(context: CheckContext) -> None:
    """End the processes with torch that stayed."""
    if serving(context):
        context.stop(context.reached(), "import.end", context.torch_token, END_SECONDS)


def touch_question(launch: Launch | None) -> dict[str, Any]:
    """Return the arguments of the probe ``folders``: where a file is created and removed."""
    if launch is None:
        return {"folders": [], "usual": ["temporary", "home"]}
    return {
        "folders": [{"path": path, "touch": True} for path in launch.written_folders],
        "usual": ["temporary"],
    }


def script_question(launch: Launch, shell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the probe ``script``; ``shell`` says how the ranks' interpreter is started."""
    return {
        **shell,
        "path": launch.path,
        "module": launch.module,
        "root": launch.root,
        "workdir": launch.workdir,
        "paths": [each.path for each in launch.paths],
        "address": launch.address,
        "sources": None if launch.sources is None else dict(launch.sources),
    }


def targets(links: Mapping[HostName, NodeLink], host: Host) -> list[dict[str, Any]]:
    """Return the targets for the probe ``between`` on ``host``, one of ``links``; the first tries everybody."""
    names = list(links)
    most = len(names) if host.name == names[0] else ALL_PAIRS
    found = []
    for name in _others(names, host.name, most)[:MOST_TRIED]:
        hello = links[name].hello
        addresses = [each.address for each in hello.addresses if not each.loopback][:1]
        known = dict.fromkeys((str(name), hello.hostname, *addresses))
        found.append({"name": str(name), "as": list(known)})
    return found


def _others(names: list[HostName], name: HostName, most: int) -> list[HostName]:
    """Return all names but ``name``; of more than ``most`` only the one that follows it."""
    place = names.index(name)
    if len(names) > most:
        return [names[(place + 1) % len(names)]]
    return [*names[:place], *names[place + 1 :]]


def _learn_all(
    evidence: HostEvidence, said: Mapping[str, Any], needed: frozenset[type[node.Facts]]
) -> None:
    add_answer(evidence, node.ClockFacts, said["clock"])
    answers = said["answers"]
    inspected = _facts_or_reason(evidence, answers.get("python_env"), PYTHON_KINDS)
    for kind in PYTHON_KINDS:
        if inspected is not None:
            add_answer(evidence, kind, inspected.get(kind.group))
    for kind in KINDS:
        if kind.group in NOT_ALWAYS and kind.group not in answers:
            evidence.mark_missing(kind, Outcome.SKIPPED, NOT_ALWAYS[kind.group])
        elif kind in needed:
            found = _facts_or_reason(evidence, answers.get(kind.group), (kind,))
            if found is not None:
                add_answer(evidence, kind, found)


def _facts_or_reason(
    evidence: HostEvidence, answer: object, kinds: tuple[type[node.Facts], ...]
) -> dict[str, Any] | None:
    """Return the facts of a probe; else note the reason."""
    if not isinstance(answer, dict):
        return None
    facts, error = answer.get("facts"), answer.get("error")
    if isinstance(facts, dict):
        return facts
    code = error.get("code") if isinstance(error, dict) else ""
    why = error.get("message", "") if isinstance(error, dict) else "the answer is not as agreed"
    _note_error(evidence, kinds, code, str(why)[:300])
    return None


def _note_error(
    evidence: HostEvidence, kinds: Iterable[type[node.Facts]], code: object, why: str
) -> None:
    outcome = Outcome.TIMED_OUT if code == "timed_out" else Outcome.COULD_NOT_RUN
    for kind in kinds:
        evidence.mark_missing(kind, outcome, why)


def ask_names(context: CheckContext) -> Iterator[str]:
    """Have every reached host resolve all names; yields each host when it has answered."""
    known = context.view((node.OsFacts,)).of(node.OsFacts)
    names = sorted({name for f in known.values() for name in (f.hostname, f.fqdn) if name})
    hosts = context.reached()
    seconds = context.left(RESOLVE_SECONDS)
    if len(context.hosts) < 2:
        context.mark_missing((NameFacts,), Outcome.SKIPPED, "one host")
    elif len(hosts) < 2:
        context.mark_missing((NameFacts,), Outcome.COULD_NOT_RUN, ALONE)
    elif seconds > 0.1:
        yield from context.ask_facts(
            hosts, NameFacts, "names", seconds, lambda _: {"names": names}
        )
    context.mark_missing((NameFacts,), Outcome.TIMED_OUT, BUDGET_OVER)


def exchange_credentials(context: CheckContext) -> Iterator[str]:
    """Have every Slurm host decode the credentials of the others; yields each when done."""
    known = context.view((SlurmFacts,)).of(SlurmFacts)
    slurm = _on_slurm(context, MungeFacts)
    hosts = [host for host in slurm if known[host.name].by_munge]
    hosts = hosts if len(hosts) > 1 else []
    for host in slurm:
        if host not in hosts:
            context.hosts[host.name].add_facts(MungeFacts())
    if not hosts:
        return
    seconds = context.left(SLURM_SECONDS)
    credentials = {
        str(outcome.host): str(outcome.value["credential"])
        for outcome in context.ask_all(hosts, "slurm.encode", seconds, lambda _: {})
        if not isinstance(outcome, fan.Failed) and outcome.value.get("credential")
    }

    def others(host: Host) -> dict[str, Any]:
        sources = _others([each.name for each in hosts], host.name, DECODED_PAIRS)
        known = [name for name in sources if name in credentials]
        return {"credentials": [{"source": n, "credential": credentials[n]} for n in known]}

    yield from context.ask_facts(hosts, MungeFacts, "slurm.decode", seconds, others)
    context.mark_missing((MungeFacts,), Outcome.COULD_NOT_RUN, NO_SLURM)


def step_limits(context: CheckContext, environ: Mapping[str, str]) -> Iterator[str]:
    """Ask for the limits inside a step on every host of the allocation that we stand in."""
    job = environ.get("SLURM_JOB_ID", "")
    nodes = set[str]()
    with suppress(RangeError):
        parts = split_list(environ.get("SLURM_JOB_NODELIST", ""))
        nodes = {name for part in parts for name in expand(part)}
    names: dict[str, str] = {}
    for host in _on_slurm(context, StepFacts):
        slurm = context.hosts[host.name].find(SlurmFacts)
        name = ((slurm and slurm.node) or {}).get("NodeName", "")
        if name in nodes and job.isdigit():
            names[host.name] = name
        else:
            why = "it is no node of the allocation" if nodes else NO_JOB
            context.hosts[host.name].mark_missing(StepFacts, Outcome.SKIPPED, why)
    seconds = context.left(SLURM_SECONDS)
    hosts = [host for host in context.reached() if host.name in names]
    yield from context.ask_facts(
        hosts,
        StepFacts,
        "slurm.limits",
        seconds,
        lambda host: {"job": job, "node": names[host.name]},
        lambda evidence, answer: add_answer(evidence, StepFacts, {"job": job, **answer}),
    )
    context.mark_missing((StepFacts,), Outcome.COULD_NOT_RUN, NO_SLURM)


def _on_slurm(context: CheckContext, kind: type[node.Facts]) -> list[Host]:
    found = []
    for host in context.reached():
        evidence = context.hosts[host.name]
        slurm = evidence.find(SlurmFacts)
        if slurm is not None and slurm.present:
            found.append(host)
        elif slurm is not None:
            evidence.mark_missing(kind, Outcome.SKIPPED, slurm.why)
    return found
