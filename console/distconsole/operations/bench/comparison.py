"""``bench strategies``: one model under every strategy that can run on the hosts, in turns.

Each is an ordinary run, so whatever holds for ``run`` holds here.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from distconsole.errors import ConsoleError, PlanError
from distconsole.launch.choose import Choice
from distconsole.launch.engines import MPI, refuse_horovod
from distconsole.launch.script import ScriptTraits
from distconsole.model.events import (
    BenchEnded,
    BenchProgress,
    BenchRun,
    BenchSkipped,
    Event,
    Narration,
)
from distconsole.model.findings import Severity
from distconsole.model.names import HostName
from distconsole.model.requests import Bench, LauncherName, Run, StrategyName, Where
from distconsole.model.run_events import EndState, LinkChanged, PlanMade
from distconsole.operations.bench.figures import RunFigures, result_of
from distconsole.operations.bench.strategies import (
    PLAIN,
    RECIPE,
    THREADS,
    Sizes,
    Strategy,
    devices_of,
    obstacle,
    run_for,
    sizes_for,
    wanted,
)
from distconsole.operations.control import Control, Wish
from distconsole.operations.launch import launching
from distconsole.operations.launch.planner import (
    LaunchHosts,
    PreparedLaunch,
    ask_engines,
    collect_facts,
)
from distconsole.operations.sessions import SessionSource, connect_all
from distconsole.runs.store.store import RunStore
from distconsole.session import Session

HOROVOD_BY_MPI = PreparedLaunch(
    Run(RECIPE, module=True), {}, ScriptTraits(horovod=True), Choice(LauncherName.MPI, "")
)
"""Whose engines a host must have for Horovod below mpirun."""


def bench(
    request: Bench, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Measure what was asked for; the last event is ``BenchEnded``.

    Raises ConsoleError if no strategy can run, or a host cannot be reached.
    """
    with sessions(request.where) as session:
        connect_all(session)
        yield from Contest(request, session, control, store).hold()


@dataclass(frozen=True, slots=True)
class Contestant:
    """A strategy that can run here: as which run, on how much, without which hosts."""

    strategy: Strategy
    run: Run
    launcher: str
    ranks: int
    devices: int
    exclude: tuple[str, ...]


@dataclass(slots=True)
class Contest:
    """All the runs of one ``bench strategies``."""

    request: Bench
    session: Session
    control: Control
    store: RunStore
    skipped: list[BenchSkipped] = field(default_factory=list)
    runs: list[BenchRun] = field(default_factory=list)
    stopped: BenchRun | None = None
    left: bool = False

    def hold(self) -> Iterator[Event]:
        """Find out what can run, run it in turns, and yield the result."""
        began = time.monotonic()
        hosts = collect_facts(HOROVOD_BY_MPI, self.session, self.session.cluster)
        sizes = sizes_for(self.request, list(hosts.facts.values()))
        contestants = yield from self._contestants(hosts, sizes)
        if not contestants:
            reasons = "; ".join(f"{each.strategy}: {each.reason}" for each in self.skipped)
            raise PlanError("none of the strategies can run here", reasons)
        yield from self._rounds(contestants)
        if not self.left:  # else what goes on is a run like any other
            yield self._result(contestants, sizes, tuple(hosts.facts), time.monotonic() - began)

    def _contestants(
        self, hosts: LaunchHosts, sizes: Sizes
    ) -> Generator[Event, None, list[Contestant]]:
        """Plan every strategy as ``run --dry-run`` does; what is refused is left out, with the reason."""
        plain, notes = self._plan(run_for(PLAIN, self.request, sizes, 1), ())
        yield from notes
        facts = hosts.facts
        first, *others = facts
        found = []
        for strategy in wanted(self.request):
            devices = devices_of(strategy, plain.world_size, facts[first])
            threads = plain.hosts[0].env.get(THREADS)
            run = run_for(strategy, self.request, sizes, devices, threads)
            exclude = tuple(others) if strategy.alone else ()
            try:
                reason = obstacle(strategy, plain.world_size, facts)
                if not reason:
                    plan, _ = self._plan(run, exclude)
                    self._refuse(strategy, plan, hosts)
                    found.append(
                        Contestant(strategy, run, plan.launcher, plan.world_size, devices, exclude)
                    )
            except PlanError as error:
                reason = error.message
            if reason:
                self.skipped.append(BenchSkipped(strategy=strategy.name, reason=reason))
                yield Narration(text=f"{strategy.name} cannot run here: {reason}")
        return found

    def _plan(self, run: Run, exclude: tuple[str, ...]) -> tuple[PlanMade, list[Narration]]:
        dry = replace(run, dry_run=True)
        events = list(launching.run(dry, self._lend, self.control, self.store, exclude))
        plan = next(event for event in events if isinstance(event, PlanMade))
        return plan, [event for event in events if isinstance(event, Narration)]

    def _refuse(self, strategy: Strategy, plan: PlanMade, hosts: LaunchHosts) -> None:
        """Refuse what a plan cannot know of a script that it has not read."""
        if plan.launcher != LauncherName.MPI:
            return
        if strategy.name is not StrategyName.HOROVOD_MPI:
            raise PlanError(f"Horovod was built without Gloo, so it would be {_BY_MPI}")
        refuse_horovod(ask_engines(HOROVOD_BY_MPI, hosts, self.session).engines, MPI)

    def _rounds(self, contestants: list[Contestant]) -> Iterator[Event]:
        """Run all in turns, every other round the other way round; who fails is left out from then on."""
        yield Narration(
            text=f"{'one after the other' if self.request.rounds == 1 else 'in turns'}: "
            + ", ".join(each.strategy.name for each in contestants)
        )
        out: set[StrategyName] = set()
        for round_ in range(1, self.request.rounds + 1):
            for each in contestants if round_ % 2 else reversed(contestants):
                if each.strategy.name in out:
                    continue
                ended = yield from self._one(each, round_)
                if ended is None:
                    self.left = True
                    return
                yield ended
                self.runs.append(ended)
                if ended.state is EndState.STOPPED:
                    self.stopped = ended
                    return
                if ended.state is EndState.FAILED:
                    out.add(each.strategy.name)

    def _one(self, each: Contestant, round_: int) -> Generator[Event, None, BenchRun | None]:
        """Run a strategy once; None if the operator left."""
        figures = RunFigures()
        name, rounds = each.strategy.name, self.request.rounds
        yield BenchProgress(strategy=name, round=round_, rounds=rounds)
        began = time.monotonic()
        try:
            for event in launching.run(
                each.run, self._lend, self.control, self.store, each.exclude
            ):
                before = figures.step
                figures.take(event)
                if figures.step != before:
                    yield BenchProgress(
                        strategy=name, round=round_, rounds=rounds, step=figures.step
                    )
                if isinstance(event, LinkChanged) and not event.connected:
                    text = f"{event.host}: connection lost ({event.reason}); the run goes on"
                    yield Narration(text=text, severity=Severity.WARN)
        except ConsoleError as error:
            return BenchRun(
                t=time.time(),
                run="",
                strategy=name,
                round=round_,
                rounds=rounds,
                state=EndState.FAILED,
                exit_code=error.exit_code,
                seconds=time.monotonic() - began,
                error=error.message,
            )
        asked = self.control.asked
        if asked is not None and asked.wish is Wish.LEAVE:
            return None
        return figures.told(name, round_, rounds)

    def _result(
        self,
        contestants: list[Contestant],
        sizes: Sizes,
        hosts: tuple[HostName, ...],
        seconds: float,
    ) -> BenchEnded:
        alone = {
            run.round: run.samples_s
            for run in self.runs
            if run.strategy == StrategyName.SINGLE and run.samples_s is not None
        }
        failed = any(run.state is EndState.FAILED for run in self.runs)
        state = EndState.FAILED if failed else EndState.SUCCEEDED
        return BenchEnded(
            what=self.request.what,
            hosts=hosts,
            images=sizes.images,
            batch=sizes.batch,
            epochs=sizes.epochs,
            width=sizes.width,
            precision=sizes.precision,
            rounds=self.request.rounds,
            strategies=tuple(
                result_of(
                    [run for run in self.runs if run.strategy == each.strategy.name],
                    alone,
                    strategy=each.strategy.name,
                    launcher=each.launcher,
                    ranks=each.ranks,
                    devices=each.devices,
                )
                for each in contestants
            ),
            skipped=tuple(self.skipped),
            seconds=seconds,
            state=EndState.STOPPED if self.stopped else state,
            exit_code=self.stopped.exit_code if self.stopped else int(failed),
        )

    def _lend(self, _where: Where) -> AbstractContextManager[Session]:
        return nullcontext(self.session)


_BY_MPI = StrategyName.HOROVOD_MPI.value
