"""A check from beginning to end: reach, ask, connect, compute; judge as soon as the facts are there."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from distconsole.checks.engine.baseline import Baselines, add_changes
from distconsole.checks.engine.catalogue import (
    CATALOGUE,
    at_level,
    drop_expectations,
    needs_of,
    select_rules,
)
from distconsole.checks.engine.report import make_report, write_files
from distconsole.checks.engine.rule import Rule, Verdicts, judge
from distconsole.checks.engine.targeting import Targeting
from distconsole.checks.facts.evidence import CANCELLED, UNREACHED, HostEvidence, Missing, Outcome
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.jobs import MpiSshFacts, MungeFacts, StepFacts
from distconsole.checks.facts.network import BandwidthFacts, NameFacts, ReachFacts
from distconsole.checks.facts.node import Facts, LifeFacts, SshFacts
from distconsole.checks.facts.script import SpeedFacts
from distconsole.checks.fixes import proofs
from distconsole.checks.gather import engine_jobs, pair_bandwidth, reachability
from distconsole.checks.gather.collective import Sweep
from distconsole.checks.gather.context import CheckContext, expected_of
from distconsole.checks.gather.engine_jobs import StartJob
from distconsole.checks.gather.folder_speed import measure_folders
from distconsole.checks.gather.local_facts import (
    ask_names,
    end_imports,
    exchange_credentials,
    local_facts,
    step_limits,
)
from distconsole.checks.gather.reaching import connect, leave_out, note_life
from distconsole.checks.gather.short_run import short_run
from distconsole.checks.rules.network.ssh import REACHING
from distconsole.model.events import (
    CheckEnded,
    CheckJudged,
    CheckProgress,
    Event,
    FindingMade,
    PairProgress,
)
from distconsole.model.reports import CheckReport
from distconsole.model.requests import Check, Level
from distconsole.rpc.fanout import run_at_once
from distconsole.session import Session
from distconsole.ssh.asking import PERSON

NO_SCRIPT = "no script was given"


class Stage(NamedTuple):
    """A look at all hosts together: its name, its facts, and its function."""

    name: str
    kinds: tuple[type[Facts], ...]
    work: Callable[
        [CheckContext], Iterator[HostEvidence] | Iterator[str] | Iterator[reachability.Told]
    ]


REACH = Stage("net.reach_tcp", (ReachFacts,), reachability.reach)
BANDWIDTH = Stage("net.bw_pair", (BandwidthFacts,), pair_bandwidth.measure)
STAGES = (
    Stage("local facts", (), local_facts),
    Stage("slurm.munge", (MungeFacts,), exchange_credentials),
    Stage("slurm.limits", (StepFacts,), lambda each: step_limits(each, os.environ)),
    Stage("os.peer_names", (NameFacts,), ask_names),
    Stage("fs.speed", (SpeedFacts,), measure_folders),
    REACH,
)
"""One after the other; then come the jobs, and the bandwidth between pairs."""
JOB_KINDS = (MpiSshFacts, *(engine.kind for engine in engine_jobs.ENGINES))


def run_check(
    request: Check,
    session: Session,
    clock: Callable[[], float] = PERSON.working_seconds,
    baselines: Baselines | None = None,
    start: StartJob = short_run,
    sweep: Sweep | None = None,
    plan: Targeting | None = None,
    began: float | None = None,
) -> Iterator[Event]:
    """Judge the hosts of ``session``, and compare them with their ``baselines``.

    Args:
        clock: Monotonic seconds; by default without the time in which a login waits for a person.
        baselines: Baselines of the hosts; None compares with nothing.
        start: How a short job is started.
        sweep: Cases of collective jobs in place of those of the level.
        plan: Plans the launch to check; None without one.
        began: Start of the operator's wait, by ``clock``; None takes this moment.

    Yields:
        ``CheckProgress`` for each stage and host, ``CheckJudged`` for each check, ``FindingMade`` as soon as something is found and once
        more when its cure was tried, and ``CheckEnded``. A KeyboardInterrupt makes this the end.

    Raises:
        UsageError: for a word of ``--only`` or ``--skip`` that means nothing.
        ConfigError: if a file that was asked for cannot be written.
    """
    chosen = drop_expectations(select_rules(request.only, request.skip), expected_of(session))
    rules = tuple(rule for rule in chosen if at_level(rule, request.level))
    context = CheckContext(request, session, needs_of(rules), clock)
    waited_since = context.began if began is None else began
    checking = _Checking(context, chosen, rules, waited_since, start, sweep, plan)
    try:
        yield from checking.stages()
        report = yield from checking.conclude(None)
    except KeyboardInterrupt as interrupt:
        yield from checking.conclude_early()
        report = yield from checking.conclude(interrupt)
    finally:
        end_imports(context)
    yield CheckEnded(report=report if baselines is None else add_changes(report, baselines))


class _Job(NamedTuple):
    """A short job: its stage, its facts, and its start as the first of several."""

    stage: str
    kind: type[Facts]
    begin: Callable[[int], Iterator[str]]


@dataclass(slots=True)
class _Checking:
    context: CheckContext
    chosen: Sequence[Rule]
    """Checks that were asked for, also those that the level leaves out."""
    rules: Sequence[Rule]
    """Those of ``wanted`` that are not left out."""
    waited_since: float
    start: StartJob
    sweep: Sweep | None = None
    plan: Targeting | None = None
    verdicts: Verdicts = field(default_factory=Verdicts)
    judged: set[str] = field(default_factory=set)
    going: dict[str, tuple[float, tuple[type[Facts], ...]]] = field(default_factory=dict)
    """Running stages: start, by the context's clock, and the facts that they find."""
    answered: dict[str, set[str]] = field(default_factory=dict)
    """By stage the hosts that have answered it."""
    wanted: Sequence[Rule] = field(init=False)
    """The checks that were asked for and belong to the level."""
    stage_seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wanted = tuple(self.rules)

    @property
    def ways(self) -> list[Rule]:
        """Checks of connections that were neither asked for nor excluded."""
        every = select_rules(skip=self.context.request.skip)
        return [rule for rule in every if rule.id in reachability.WAYS and rule not in self.chosen]

    def stages(self) -> Iterator[Event]:
        yield from self._stage("ssh.connect", (), connect(self.context))
        yield from self._tell_of_reach()
        yield from self._plan_launch()
        needed = self.context.needed
        if not self.context.links:
            self.context.mark_missing(tuple(needed), Outcome.COULD_NOT_RUN, UNREACHED)
            yield from self._judge(frozenset(), at_end=True)
            return
        wanted = [each for each in STAGES if not each.kinds or needed & {*each.kinds}]
        yield from self._judge(needed - {SshFacts})
        for place, stage in enumerate(wanted):
            yield from self._stage(stage.name, stage.kinds, stage.work(self.context))
            coming = {kind for each in wanted[place + 1 :] for kind in each.kinds}
            yield from self._judge(needed & {*coming, *JOB_KINDS, BandwidthFacts})
        yield from self._jobs(needed)
        if BandwidthFacts in needed:
            yield from self._stage(BANDWIDTH.name, BANDWIDTH.kinds, BANDWIDTH.work(self.context))
        note_life(self.context)
        yield from self._judge(frozenset(), at_end=True)
        yield from self._tell_of_reach()
        if self.context.request.proves:
            yield from self._prove()

    def conclude(self, by: KeyboardInterrupt | None) -> Generator[Event, None, CheckReport]:
        """Return the report, and write the files; ``by`` is what ended the check early."""
        context, level = self.context, self.context.request.level
        for name in list(self.going):
            self._end(name)  # it was given up
        for rule in self.chosen:
            if not at_level(rule, level):
                yield self.skip(rule, f"from --level {rule.level.value} on")
        report = make_report(
            context,
            self.verdicts,
            self.wanted,
            context.clock() - self.waited_since,
            by=by,
            sweeping=self.sweep is not None,
            stage_seconds=self.stage_seconds,
        )
        for finding in report.findings[len(self.verdicts.findings) :]:
            yield FindingMade(finding=finding)
        write_files(context.request, report, context.session.cluster)
        return report

    def conclude_early(self) -> Iterator[Event]:
        """Judge the known facts without waiting for the rest."""
        context = self.context
        context.given_up.set()
        for kind in [kind for _, kinds in self.going.values() for kind in kinds]:
            # Ranks that were ended because the result is no longer awaited are no fault of their hosts.
            leave_out(context, kind, context.hosts, CANCELLED)
        context.mark_missing((*context.needed, LifeFacts), Outcome.COULD_NOT_RUN, CANCELLED)
        note_life(context)
        if context.launch is None:
            yield from self._leave_out_script(NO_SCRIPT if self.plan is None else CANCELLED)
        yield from self._judge(frozenset(), at_end=True)
        yield from self._tell_of_reach()

    def _prove(self) -> Iterator[Event]:
        found = self.verdicts.findings
        for check, tried in proofs.prove(self.context, tuple(found), self.start):
            for place, finding in (tried or {}).items():
                found[place] = finding
                yield FindingMade(finding=finding)
            stage = f"proof of {check}"
            yield self._begin(stage) if tried is None else self._end(stage)

    def _plan_launch(self) -> Iterator[Event]:
        """Plan the launch on the reached hosts; without a plan leave out its checks."""
        if self.plan is None:
            yield from self._leave_out_script(NO_SCRIPT)
        elif self.context.links:
            yield self._begin("script.launch")
            launch = self.plan(self.context.session, self.context.reached())
            self.context.launch = launch
            yield self._end("script.launch")
            yield from self._leave_out(lambda rule: launch.irrelevant(rule.id, rule.group))

    def _leave_out(self, why_not: Callable[[Rule], str]) -> Iterator[Event]:
        for rule in self.rules:
            why = why_not(rule)
            if why:
                yield self.skip(rule, why)
                self.judged.add(rule.id)
        self.rules = [rule for rule in self.rules if rule.id not in self.judged]
        self.context.needed = needs_of(self.rules)

    def _leave_out_script(self, why: str) -> Iterator[Event]:
        return self._leave_out(lambda rule: why if rule.group == "script" else "")

    def _jobs(self, needed: frozenset[type[Facts]]) -> Iterator[Event]:
        left = [job for job in self._wanted_jobs() if job.kind in needed]
        if left:
            # Jobs leave hosts out for them, even if the checks of connections were not asked for.
            yield from self._tell_of(self.ways)
        gpus = self.context.view().of(GpuFacts).values()
        measured = self.sweep is not None or self.context.request.level is Level.FULL
        # Where bandwidth is measured, or GPUs are shared, jobs may not go on at once.
        if not measured and not any(found.count for found in gpus):
            yield from self._run_at_once(left)
            yield from self._second_look([job.kind for job in left])
            return
        while left:
            job = left.pop(0)
            yield from self._stage(job.stage, (job.kind,), job.begin(len(left) + 1))
            yield from self._second_look([job.kind])
            waiting = {each.kind for each in left}
            yield from self._judge(needed & ({BandwidthFacts} | waiting))

    def _tell_of_reach(self) -> Iterator[Event]:
        """Report the hosts that cannot be asked, each check of it once, even if these checks were not asked for."""
        told = {found.check for found in self.verdicts.findings}
        told |= {rule.id for rule in self.wanted}
        ids = REACHING - told
        yield from self._tell_of([rule for rule in CATALOGUE if rule.id in ids])

    def _tell_of(self, rules: Iterable[Rule]) -> Iterator[Event]:
        """Judge by ``rules`` that were not asked for; only their findings are reported."""
        for finding in reachability.judge_ways(self.context, rules, self.verdicts):
            yield FindingMade(finding=finding)

    def _second_look(self, kinds: Sequence[type[Facts]]) -> Iterator[Event]:
        """Try all connections once more after a job failed: one may have broken since."""
        stuck = reachability.stuck_jobs(self.context, kinds)
        if not stuck:
            return
        yield from self._stage(REACH.name, (*REACH.kinds, *kinds), REACH.work(self.context))
        if reachability.any_broken(self.context):
            reachability.excuse(self.context, stuck)
            asked = [rule for rule in self.rules if rule.id in reachability.WAYS]
            yield from self._tell_of([*asked, *self.ways])

    def _wanted_jobs(self) -> Iterator[_Job]:
        context, sweep, start = self.context, self.sweep, self.start
        for engine in engine_jobs.ENGINES:
            run = partial(engine_jobs.run_engine, context, engine, start, sweep)
            yield _Job(engine.stage, engine.kind, run)
        yield _Job("mpi.ssh", MpiSshFacts, partial(engine_jobs.mpirun, context))

    def _run_at_once(self, jobs: Sequence[_Job]) -> Iterator[Event]:
        for job in jobs:
            yield self._begin(job.stage, (job.kind,))
        works = [(job.stage, job.begin(1)) for job in jobs]
        for name, host in run_at_once(works, self.context.given_up.set):
            if not host:
                yield self._end(name)
                continue
            yield self._tell(name, "running", host)

    def skip(self, rule: Rule, why: str) -> CheckJudged:
        skipped = Missing(Outcome.SKIPPED, why)
        for name in self.context.hosts:
            self.verdicts.add_cell(name, rule.id, skipped)
        return self._tell_outcomes(rule)

    def _tell_outcomes(self, rule: Rule) -> CheckJudged:
        cells = self.verdicts.cells.items()
        outcomes = {name: str(each[rule.id].outcome) for name, each in cells}
        return CheckJudged(check=rule.id, outcomes=outcomes)

    def _stage(
        self,
        name: str,
        kinds: tuple[type[Facts], ...],
        work: Iterator[HostEvidence] | Iterator[str] | Iterator[reachability.Told],
    ) -> Iterator[Event]:
        yield self._begin(name, kinds)
        # Where the stage is a check, too, only its rule knows how it came out.
        outcome = "running" if any(rule.id == name for rule in self.rules) else "pass"
        for done in work:
            if isinstance(done, PairProgress):
                yield done
                continue
            host = done if isinstance(done, str) else done.name
            yield self._tell(name, outcome, host)
        yield self._end(name)

    def _begin(self, stage: str, kinds: tuple[type[Facts], ...] = ()) -> CheckProgress:
        self.going[stage] = (self.context.clock(), kinds)
        self.answered[stage] = set()
        return self._tell(stage, "running")

    def _end(self, stage: str) -> CheckProgress:
        seconds = self.context.clock() - self.going.pop(stage)[0]
        self.stage_seconds[stage] = self.stage_seconds.get(stage, 0.0) + seconds
        return self._tell(stage, "pass")

    def _tell(self, stage: str, outcome: str, host: str = "") -> CheckProgress:
        hosts = len(self.context.hosts)
        if host:
            self.answered[stage].add(host)
        return CheckProgress(
            check=stage,
            host=host,
            outcome=outcome,
            judged=hosts * len(self.judged),
            total=hosts * len(self.wanted),
            seconds=self.context.clock() - self.waited_since,
            going=tuple(self.going),
            answered=tuple(len(self.answered[each]) for each in self.going),
            hosts=hosts if "ssh.connect" in self.going else len(self.context.links),
        )

    def _judge(self, unknown: frozenset[type[Facts]], *, at_end: bool = False) -> Iterator[Event]:
        """Judge the rest that needs none of ``unknown``; before the end without the remaining hosts."""
        unknown = unknown if at_end else unknown | {LifeFacts}
        for evidence in self.context.hosts.values():
            evidence.mark_unknown()
        view = self.context.view()
        for rule in self.rules:
            if rule.id in self.judged or unknown & {*rule.needs, *rule.after}:
                continue
            found = judge(rule, self.context.hosts.values(), view, self.verdicts)
            self.judged.add(rule.id)
            for finding in found:
                yield FindingMade(finding=finding)
            yield self._tell_outcomes(rule)
