"""How the ranks of a short collective job are judged, whatever engine started them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from distconsole.checks.engine.results import NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.facts.evidence import NO_GROUP, Outcome, View, by_key
from distconsole.checks.facts.jobs import CollFacts, RankReport
from distconsole.checks.fixes.cures import libraries_first, prefix_of
from distconsole.checks.rules.wording import MAX_LISTED, name_hosts
from distconsole.model.findings import Cure, Finding, HostCure
from distconsole.model.names import is_whole

JOINED = "joined the group"
DONE = "done"
NOT_STARTED = "not started"
STAGES = (NOT_STARTED, "started", "imported torch", "imported Horovod", "loaded MPI")
MEETING_FROM = {"torch": "imported torch", "horovod": "imported Horovod", "mpi": "loaded MPI"}
"""Where a rank waits for the others. One that got no further than before kept them waiting; it is
not they who did not come."""

HINTS = {
    "No module named 'torch'": "--python PATH names the interpreter that has torch",
    "No module named 'horovod'": "--python PATH names the interpreter that has Horovod",
    "no libmpi can be loaded": "put the MPI's lib folder on LD_LIBRARY_PATH with --setup (or: module "
    "load openmpi)",
    "Data unpack would read past end of buffer": "the MPIs of the hosts differ: look at mpi.version, "
    "and put one first on PATH by --setup",
    "couldn't open the help file": "this Open MPI lies at another place than it was built for: export "
    "OPAL_PREFIX=FOLDER (that has its bin and lib) in --setup",
    "not found": "add the folder of mpirun and its daemon to PATH with --setup",
    "Unable to find address for": "the host's own name must mean an address of its own: look at "
    "os.hostname_bindable",
}
"""Pattern of an engine's error, and its remedy."""

OTHER_LIBRARY = (
    "the MPI library is not that of mpirun: put one MPI first by --setup, e.g.\n"
    "--setup 'export PATH=/opt/openmpi/bin:$PATH LD_LIBRARY_PATH=/opt/openmpi/lib'"
)


def last_stage(rank: RankReport) -> str:
    stages = [str(said["stage"]) for said in rank.said if "stage" in said]
    return stages[-1] if stages else NOT_STARTED


def is_member(rank: RankReport) -> bool:
    return any(said.get("stage") == JOINED for said in rank.said)


Entries = Sequence[tuple[str, RankReport]]
"""Ranks with their hosts."""

Group = dict[str, Any]
"""A rank's report of its group: its rank in it, the world size, its library."""


class CheckedJob:
    """A job as its hosts report it, without those on which ``run`` would refuse it."""

    def __init__(self, kind: type[CollFacts], view: View, mend: str) -> None:
        every = view.of(kind)
        self.mend = mend
        """Remedy if its ranks have wrong numbers."""
        self.refused = {name: found for name, found in every.items() if found.refused}
        self.hosts = {name: found for name, found in every.items() if not found.refused}
        self.ranks = [(name, rank) for name, found in self.hosts.items() for rank in found.ranks]
        self.groups: list[tuple[str, Group]] = [
            (name, said["group"])
            for name, rank in self.ranks
            for said in rank.said
            if isinstance(said.get("group"), dict)
            and isinstance(said["group"].get("rank"), int)
            and isinstance(said["group"].get("world_size"), int)
        ]

    @property
    def first(self) -> CollFacts:
        return next(iter(self.hosts.values()))

    @property
    def alone(self) -> bool:
        sizes = {group["world_size"] for _, group in self.groups}
        return sizes == {1} and any(found.world_size > 1 for found in self.hosts.values())


def judge_meeting(job: CheckedJob) -> RuleResults:
    """Every rank joins the group; else who did not, and why."""
    for found in list(job.refused.values())[:1]:
        yield info(
            f"`run --launcher {found.launcher}` would be refused here: {found.refused}",
            job.refused,
            hint=found.refused_hint,
        )
        yield NotApplicable(f"`run` would refuse it: {found.refused}", tuple(job.refused))
    absent = [entry for entry in job.ranks if not is_member(entry[1])]
    if not absent:
        return
    some = job.first
    early = [entry for entry in absent if _is_early(entry[1], some)]
    _, first = first_cause(absent, early)
    missed = [entry for entry in early if entry[1].exit_code is not None] or early or absent
    summary = f"none of the {some.world_size} ranks could join the group"
    if len(missed) < some.world_size:
        summary = f"{_ranks(missed)} did not join the group of {some.world_size}"
    said = engine_said(some)
    complaints = [f"{some.launcher}: {line[:300]}" for line in said]
    yield fail(
        f"{summary}: {reason(first, said)}",
        dict.fromkeys(name for name, _ in missed),
        seen="\n".join((*_list_ranks(absent), *complaints)),
        expected=f"{some.world_size} ranks that meet within {some.timeout_seconds:.0f} s",
        hint=_hint(first, some),
    )


def _list_ranks(entries: Entries) -> list[str]:
    return [
        f"rank {rank.rank} ({name}): {last_stage(rank)}, {_format_end(rank)}"
        for name, rank in entries[:MAX_LISTED]
    ]


def engine_said(facts: CollFacts) -> list[str]:
    lines = [line.strip() for line in facts.engine_said]
    return [line for line in lines if line.strip("-*= ")][:MAX_LISTED]


def _is_early(rank: RankReport, job: CollFacts) -> bool:
    reached = last_stage(rank)
    meeting = STAGES.index(MEETING_FROM.get(job.launcher, "started"))
    return reached in STAGES and STAGES.index(reached) < meeting


def first_cause(absent: Entries, early: Entries) -> tuple[str, RankReport]:
    """Prefer the rank that ended by itself before it could meet anybody: the others waited for it."""
    ended = [entry for entry in absent if entry[1].exit_code not in (None, 0)]
    before = [entry for entry in ended if entry in early]
    return min(before or early or ended or absent, key=lambda entry: entry[1].seconds)


def reason(rank: RankReport, engine: Sequence[str] = ()) -> str:
    """Return why a rank did not get to the end, in a line."""
    lines = [line for line in rank.error if line.strip() and not line.startswith("  ")]
    if lines:
        return lines[-1].strip()[:300]
    if engine and last_stage(rank) == NOT_STARTED:
        return engine[0][:300]
    if rank.exit_code is None:
        return f"it was {last_stage(rank)} when the time was up"
    return _format_end(rank)


def _format_end(rank: RankReport) -> str:
    if rank.exit_code is None:
        return f"still there after {rank.seconds:.0f} s, then killed"
    if rank.exit_code < 0:
        return f"killed by signal {-rank.exit_code} after {rank.seconds:.1f} s"
    return f"exit code {rank.exit_code} after {rank.seconds:.1f} s"


def _hint(rank: RankReport, job: CollFacts) -> str:
    text = "\n".join((*rank.error, *job.engine_said))
    for words, hint in HINTS.items():
        if words in text:
            return hint
    if last_stage(rank) == NOT_STARTED and job.launcher != "torch":
        return f"see the commands: distconsole run --launcher {job.launcher} --dry-run SCRIPT"
    if _is_early(rank, job) and job.launcher != "mpi":
        module = "horovod.torch" if last_stage(rank) == "imported torch" else "torch"
        return (
            f"importing it failed or took too long: try `python -c 'import {module}'` on the host"
        )
    if "onnect" in text or "imed out" in text or "timeout" in text.lower():
        return "look at the findings of net.* and os.hostname_bindable: ranks did not reach each other"
    return "the last lines of the rank are above; --level full tries every size"


def _ranks(entries: Entries) -> str:
    by_host = by_key((name, rank.rank) for name, rank in entries)
    parts = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:8]))} ({name})"
        for name, ranks in by_host.items()
    ]
    return name_hosts(parts)


def judge_places(job: CheckedJob) -> RuleResults:
    groups = job.groups
    if not groups:
        yield from _nobody(job)
        return
    if job.alone:
        yield _all_alone(job)
        return
    yield from _find_linked(job.groups)
    ranks = [int(group["rank"]) for _, group in groups]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        yield fail(f"ranks {twice} exist more than once", job.hosts, hint=job.mend)
    places = plan_places({name: found.planned for name, found in job.hosts.items()})
    for name, group in groups:
        own, planned = job.hosts[name], places.get(int(group["rank"]))
        if planned is None or group["rank"] not in own.planned:
            yield fail(
                f"a rank on {name} is {group['rank']} of {group['world_size']}, planned was one of "
                f"{list(own.planned)} of {own.world_size}",
                (name,),
                hint=job.mend,
            )
            continue
        if planned["world_size"] != own.world_size:
            # A host of the job has not reported, so the local ranks are unknown.
            planned = {key: planned[key] for key in ("local_rank", "local_size")}
        wrong = {k: group[k] for k, right in planned.items() if group.get(k, right) != right}
        if wrong:
            yield fail(
                f"rank {group['rank']} on {name} is not placed as planned",
                (name,),
                seen=", ".join(f"{key} {value}" for key, value in wrong.items()),
                expected=", ".join(f"{key} {planned[key]}" for key in wrong),
                hint=job.mend,
            )


def plan_places(planned: Mapping[str, tuple[int, ...]]) -> dict[int, dict[str, int]]:
    """Return the expected numbers of each rank, from the ranks of each host in order."""
    world = sum(map(len, planned.values()))
    places = {}
    for name, ranks in planned.items():
        for local, rank in enumerate(ranks):
            sharing = [host for host, its in planned.items() if len(its) > local]
            places[rank] = {
                "world_size": world,
                "local_rank": local,
                "local_size": len(ranks),
                "cross_rank": sharing.index(name),
                "cross_size": len(sharing),
            }
    return places


def _all_alone(job: CheckedJob) -> Finding:
    world = job.first.world_size
    libraries = {
        name: f"{group.get('library')} ({str(group.get('version', ''))[:40]}), "
        f"mpirun: {group.get('mpirun') or 'unknown'}"
        for name, group in job.groups
        if group.get("library")
    }
    is_foreign = any(each.get("library") and not each.get("own") for _, each in job.groups)
    hosts = {}
    for name, group in job.groups:
        prefix = prefix_of(str(group.get("mpirun") or ""))
        if prefix not in ("", "/usr") and not str(group.get("library")).startswith(f"{prefix}/"):
            hosts[name] = HostCure(setup=libraries_first(f"{prefix}/lib"))
    return fail(
        f"every rank says size 1: {world} were started, and each is alone",
        job.hosts,
        seen="\n".join(f"{name}: {library}" for name, library in libraries.items()),
        expected=f"size {world} at every rank",
        hint=OTHER_LIBRARY if is_foreign else job.mend,
        cure=Cure(hosts=hosts) if hosts else None,
    )


def _find_linked(groups: Sequence[tuple[str, Group]]) -> RuleResults:
    linked = {name: group for name, group in groups if group.get("linked")}
    if not linked:
        return
    folders = {name: str(group["library"]).rpartition("/")[0] for name, group in linked.items()}
    hosts = {name: HostCure(setup=libraries_first(each)) for name, each in folders.items()}
    # Releases of Open MPI may not go together, libraries by MPICH's ABI do. The system's folder first would
    # change other libraries, too.
    serious = all(
        _release(str(group["linked"])) != _release(str(group.get("version")))
        and not folders[name].startswith(("/usr/lib", "/lib"))
        for name, group in linked.items()
    )
    name, line = next((name, cure.setup) for name, cure in hosts.items())
    yield (warn if serious else info)(
        f"programs that are linked with MPI load another MPI's library than mpirun's on "
        f"{name_hosts(tuple(linked))}",
        linked,
        seen="\n".join(
            f"{name}: {group['linked']}; mpirun: {group.get('mpirun')}, its own: {group['library']}"
            for name, group in linked.items()
        ),
        expected="mpirun's own library, with which the ranks of this check met",
        hint=f"on {name}: {line}" if serious else "look at LD_LIBRARY_PATH, in --setup",
        cure=Cure(hosts=hosts) if serious else None,
    )


def _release(version: str) -> str:
    """Return the part of Open MPI's version that says what goes together; empty for other MPIs."""
    found = re.search(r"Open MPI v(\d+\.\d+)", version)
    return found[1] if found else ""


def _nobody(job: CheckedJob) -> RuleResults:
    for name, found in job.refused.items():
        yield NotApplicable(f"`run` would refuse it: {found.refused}", (name,))
    yield NotApplicable(NO_GROUP, tuple(job.hosts), Outcome.COULD_NOT_RUN)


def judge_values(job: CheckedJob) -> RuleResults:
    """Every value of every case bit for bit, and every case to its end."""
    if not job.groups or job.alone:
        yield from _nobody(job)
        return
    wrong = by_key(
        (
            f"{said['case']} of {int(said.get('elements', 0))} {said.get('dtype')}",
            (name, rank.rank),
        )
        for name, rank in job.ranks
        for said in rank.said
        if "case" in said and said.get("wrong")
    )
    for case, places in wrong.items():
        hosts = by_key(places)
        yield fail(
            f"{case} gave wrong values at {len(places)} of {job.first.world_size} ranks",
            hosts,
            seen=", ".join(f"{name}: ranks {bad}" for name, bad in hosts.items()),
            expected="the exact sum, bit for bit",
            hint="take the host out and test its memory and GPU: dcgmi diag -r 3",
        )
    stuck = [entry for entry in job.ranks if is_member(entry[1]) and last_stage(entry[1]) != DONE]
    if stuck:
        yield _stuck(stuck)


def _stuck(stuck: Entries) -> Finding:
    _, first = min(stuck, key=lambda entry: (entry[1].exit_code in (None, 0), entry[1].seconds))
    stage = last_stage(first)
    elements = stage.rsplit(" ", 1)[-1] if stage.startswith("case") else ""
    hint = "the last lines of the rank are above"
    if is_whole(elements) and int(elements) > 10_000:
        hint = (
            "small messages pass and large ones hang: an MTU larger than the path's; on the hosts: "
            "ip -br link; ping -M do -s 8972 PEER; a way around: sudo sysctl net.ipv4.tcp_mtu_probing=1"
        )
    return fail(
        f"the job came to a halt in {stage.removeprefix('case ')}: {reason(first)}",
        dict.fromkeys(name for name, _ in stuck),
        seen="\n".join(_list_ranks(stuck)),
        expected="every collective comes to its end",
        hint=hint,
    )


def judge_end(job: CheckedJob) -> RuleResults:
    bad = [each for each in job.ranks if last_stage(each[1]) == DONE and each[1].exit_code != 0]
    if bad:
        yield warn(
            f"{_ranks(bad)} did everything and then did not end well",
            dict.fromkeys(name for name, _ in bad),
            seen="\n".join(_list_ranks(bad)),
        )
    elif not job.groups:
        yield from _nobody(job)
