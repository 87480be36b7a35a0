"""Jobs that were not started by distconsole: reports of all hosts on them put together, and judged like a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from distconsole.model.diagnosis.calls import Call
from distconsole.model.diagnosis.diagnosis import Diagnosis, Hang, Sure
from distconsole.model.events import FoundJob
from distconsole.model.names import count_text, ranks_text
from distconsole.model.time_text import span_text
from distconsole.rpc.frames import JobPart, Survey
from distconsole.rpc.roll_calls import read_calls
from distconsole.runs.diagnosis.blaming import HARD, cause_is
from distconsole.runs.diagnosis.judge import judge
from distconsole.runs.diagnosis.roll import Roll

STILL_SECONDS = 5.0
"""A job of which no main thread rests for longer may well go on."""
MAX_WORLD = 65536


@dataclass
class Found:
    """A job of which at least one rank was found.

    Attributes:
        key: Identifies the job among those of these hosts.
        calls: By host; of those that were started there and are gone, too.
        ras: Faults that NCCL's RAS reports, a line each.
    """

    key: str
    part: JobPart
    world: int = 0
    age_s: float = 0.0
    calls: dict[str, list[Call]] = field(default_factory=dict)
    ras: tuple[str, ...] = ()

    @property
    def hosts(self) -> dict[int, str]:
        return {call.rank: host for host, calls in self.calls.items() for call in calls}

    @property
    def living(self) -> list[Call]:
        return [call for calls in self.calls.values() for call in calls if call.alive]

    @property
    def missing(self) -> tuple[int, ...]:
        hosts = self.hosts
        return tuple(rank for rank in range(min(self.world, MAX_WORLD)) if rank not in hosts)

    @property
    def name(self) -> str:
        return f"{self.part.launcher} {self.part.script}".strip()

    def told(self, number: int) -> FoundJob:
        ranks = {
            host: {call.rank: call.pid or 0 for call in calls if call.alive}
            for host, calls in self.calls.items()
        }
        gone = [call.rank for calls in self.calls.values() for call in calls if not call.alive]
        return FoundJob(
            number=number,
            launcher=self.part.launcher,
            script=self.part.script,
            where=self.part.endpoint or self.part.ident,
            run=self.part.run,
            world=self.world,
            age_s=self.age_s,
            ranks={host: each for host, each in ranks.items() if each},
            missing=tuple(sorted({*self.missing, *gone})),
        )


def join_surveys(surveys: Mapping[str, Survey]) -> list[Found]:
    """Return the jobs of all hosts, the one with the most ranks first, of equal ones the newest; our own are last."""
    jobs: dict[str, Found] = {}
    parts = [(host, part) for host, survey in surveys.items() for part in survey.jobs]
    # Ranks numbered from 0 on each host follow those of the host at which they meet.
    for host, part in sorted(parts, key=lambda each: not each[1].leads):
        key = f"{host}|{part.key}" if part.here else part.key
        found = jobs.setdefault(key, Found(key, part))
        first = len(found.hosts) if part.spawned else 0
        gone = ({"rank": rank, "alive": False, "ended": {}} for rank in part.gone)
        calls = read_calls({"ranks": [*part.ranks, *gone]})
        calls = [structs.replace(call, rank=first + call.rank) for call in calls]
        known = found.hosts
        found.calls[host] = [call for call in calls if call.rank not in known]
        found.world = max(found.world, part.size, 1 + max(found.hosts, default=-1))
        found.age_s = max(found.age_s, part.age_s)
        found.ras = tuple(dict.fromkeys((*found.ras, *surveys[host].ras)))
    living = [found for found in jobs.values() if found.living]
    return sorted(living, key=lambda one: (bool(one.part.run), -len(one.living), one.age_s))


def judge_found(found: Found, away: Mapping[str, str]) -> Diagnosis:
    """Return the cause of a job's hang, or that there is no evidence of one.

    Its steps are not counted: it has stood still for as long as a main thread has not run. If a kernel
    does not show that, it is not called a hang.
    """
    living = found.living
    rests = [call.silent_s for call in living if call.silent_s is not None]
    still = max(rests, default=0.0)
    calls = {
        call.rank: structs.replace(call, silent_s=still, stage=None)
        for each in found.calls.values()
        for call in each
    }
    elsewhere = next(iter(away), "")
    hosts = found.hosts | dict.fromkeys(found.missing, elsewhere)
    roll = Roll(found.name, calls, hosts, away)
    hard = [rank for rank in roll.world if cause_is(rank, roll, HARD)]
    whole = not hard and not found.missing and len(living) == len(calls)
    # A stack has changed between two looks, or no stack could be read.
    moves = any(call.stage == "stepping" for call in living) or not any(c.threads for c in living)
    if whole and still < STILL_SECONDS and moves:
        return _no_hang(found, still, living)
    made = judge(roll)
    hint = made.hint
    if found.part.run:
        hint = hint.replace(found.name, found.part.run)
    elif "distconsole logs" in hint:  # the output is on the host that started the job
        hint = "what it printed is where the job was started; distconsole watch --hosts HOST1,HOST2 shows what lies in files"
    return structs.replace(
        made,
        hint=hint,
        evidence=(*made.evidence, *_missing_text(made, found, away), *_ras_text(found)),
    )


def _no_hang(found: Found, still: float, living: Sequence[Call]) -> Diagnosis:
    moved = sum(call.stage == "stepping" for call in living)
    text = f"no rank has rested for longer than {span_text(max(1.0, still))}"
    text += f"; {count_text(moved, 'rank')} of {len(living)} moved on meanwhile" if moved else ""
    hint = "ranks that spin look as those that work: py-spy on the hosts tells them apart"
    refused = {f"{each.way}: {each.why}" for call in living for each in call.refused}
    return Diagnosis(
        kind=Hang.HEALTHY,
        sure=Sure.CERTAIN if moved else Sure.LIKELY,
        hang=False,
        summary=f"{text}: nothing says that it hangs",
        hint="" if moved else hint,
        evidence=_ras_text(found),
        lacks=() if moved else tuple(sorted(refused)),
    )


def _missing_text(made: Diagnosis, found: Found, away: Mapping[str, str]) -> tuple[str, ...]:
    missing = found.missing
    if not missing or set(missing) <= set(made.ranks):
        return ()
    one = len(missing) == 1
    text = f"{'rank' if one else 'ranks'} {ranks_text(missing)} of {found.world:,} {'was' if one else 'were'} not found"
    if away:
        return (f"{text} on the hosts that answer",)
    return (f"{text} on these hosts: add the host that runs {'it' if one else 'them'}",)


def _ras_text(found: Found) -> tuple[str, ...]:
    return tuple(f"NCCL RAS: {line}" for line in found.ras[:8])
