"""``bench strategies``: one model under every strategy that can run on the hosts, in turns.

Each is an ordinary run, so whatever holds for ``run`` holds here.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median

from msgspec import UNSET, structs

from distconsole.errors import ConsoleError, PlanError
from distconsole.launch.engines import MPI, refuse_horovod
from distconsole.launch.place import PreparedLaunch
from distconsole.launch.plan import NodeFacts
from distconsole.launch.planner import ask_engines, collect_facts
from distconsole.model.events import (
    BenchEnded,
    BenchProgress,
    BenchResult,
    BenchRun,
    BenchSkipped,
    Event,
    Narration,
    Spread,
    warn,
)
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName
from distconsole.model.requests import Bench, LauncherName, Run, StrategyName
from distconsole.model.run_events import (
    EndState,
    GpuSample,
    LinkChanged,
    Metric,
    PlanMade,
    RunEnded,
    Window,
)
from distconsole.operations.control import Control, Wish
from distconsole.operations.launch import launching
from distconsole.operations.sessions import SessionSource, lend
from distconsole.runs.store.store import RunStore
from distconsole.session import Session, connect_all

RECIPE = "distconsole_training.recipes.cifar10"

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class BenchStrategy:
    """A way to train: the recipe's ``--strategy`` (``word``); ``alone``: one process on the first host."""

    name: StrategyName
    word: str
    launcher: LauncherName
    alone: bool = False
    compression: str = "none"
    env: tuple[tuple[str, str], ...] = ()


_HOROVOD = LauncherName.HOROVOD

STRATEGIES = (
    BenchStrategy(StrategyName.SINGLE, "single", LauncherName.SINGLE, alone=True),
    BenchStrategy(StrategyName.DP, "dp", LauncherName.SINGLE, alone=True),
    BenchStrategy(StrategyName.DDP, "ddp", LauncherName.TORCH),
    BenchStrategy(StrategyName.DDP_FP16, "ddp", LauncherName.TORCH, compression="fp16"),
    BenchStrategy(StrategyName.DDP_BF16, "ddp", LauncherName.TORCH, compression="bf16"),
    BenchStrategy(StrategyName.HOROVOD, "horovod", _HOROVOD),
    BenchStrategy(StrategyName.HOROVOD_FP16, "horovod", _HOROVOD, compression="fp16"),
    BenchStrategy(
        StrategyName.HOROVOD_MPI, "horovod", _HOROVOD, env=(("HOROVOD_CONTROLLER", "mpi"),)
    ),
)
"""In the order of the table; the first is the reference."""

PLAIN = STRATEGIES[2]
"""What says how many ranks there are."""


def fill_sizes(request: Bench, facts: Sequence[NodeFacts]) -> Bench:
    """Return the request with all sizes: those of CIFAR-10 where every host has a GPU, else small ones.

    ``images`` are those of an epoch over all ranks, ``batch`` is what a device reads at once, and
    ``width`` the channels of the first stage.
    """
    on_gpus = all(each.gpus for each in facts)
    images, batch, width = (50_000, 128, 64) if on_gpus else (512, 32, 16)
    return replace(
        request,
        images=request.images or images,
        batch=request.batch or batch,
        width=request.width or width,
    )


def choose_strategies(request: Bench) -> tuple[BenchStrategy, ...]:
    """Return the strategies that ``--only`` and ``--skip`` leave."""
    return tuple(
        each
        for each in STRATEGIES
        if (not request.only or each.name in request.only) and each.name not in request.skip
    )


def find_obstacle(strategy: BenchStrategy, ranks: int, facts: Mapping[HostName, NodeFacts]) -> str:
    """Return why a strategy would be another one on these ranks and hosts, or could not run; else nothing."""
    host, first = next(iter(facts.items()))
    if strategy.name is StrategyName.DP and first.gpus < 2:
        gpus = "one GPU" if first.gpus else "no GPU"
        return f"{host} has {gpus}, and DataParallel needs several: it would be single"
    if not strategy.alone and ranks < 2:
        return "there is one rank, so it would be single (more hosts, or --nproc)"
    without = [name for name, each in facts.items() if not each.gpus]
    if strategy.compression == "bf16" and without:
        return f"gradients in bf16 need GPUs and NCCL; no GPU on {', '.join(without)}"
    return ""


def count_devices(strategy: BenchStrategy, ranks: int, first: NodeFacts) -> int:
    """Return how many devices a strategy trains on; a rank's share of the CPUs counts as one."""
    if strategy.name is StrategyName.DP:
        return first.gpus
    return 1 if strategy.alone else ranks


def strategy_run(
    strategy: BenchStrategy, request: Bench, devices: int, threads: str | None = None
) -> Run:
    """Return the ordinary run that measures a strategy; ``request`` has all sizes (``fill_sizes``).

    ``threads`` are those of a rank in the runs with several; a process alone gets as many for each of its
    ``devices``, so that a speed-up is one over a device.
    """
    alone, env = strategy.alone, strategy.env
    if alone and threads is not None:
        env = (*env, (THREADS, str(int(threads) * devices)))
    options = {
        "strategy": strategy.word,
        "compression": strategy.compression,
        "precision": request.precision.value,
        "data": "generated",
        "limit": request.images,
        "batch": (request.batch or 1) * (devices if alone else 1),
        "epochs": request.epochs,
        "width": request.width,
    }
    words = (word for name, value in options.items() for word in (f"--{name}", str(value)))
    return Run(
        script=RECIPE,
        module=True,
        arguments=tuple(words),
        where=request.where,
        launcher=strategy.launcher,
        nproc=None if alone else request.nproc,
        env=env,
        # Of the caller's own folder the nodes may know nothing, and its modules would be found first.
        workdir="/",
        name=f"bench-{strategy.name}",
        json=True,
    )


SPEED, LOSS, ACCURACY = "images_s", "test_loss", "test_accuracy"
"""Metric that the recipe reports after each epoch."""

HOROVOD_BY_MPI = PreparedLaunch(
    Run(RECIPE, module=True, launcher=LauncherName.MPI), {}, ScriptTraits(horovod=True)
)
"""Whose engines a host must have for Horovod below mpirun."""


def bench(
    request: Bench, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Yield the measurements, ``BenchEnded`` last; raises ConsoleError if no strategy can run."""
    with sessions(request.where) as session:
        connect_all(session)
        hosts = collect_facts(HOROVOD_BY_MPI, session, session.cluster)
        request = fill_sizes(request, list(hosts.facts.values()))
        yield from _Comparison(request, session, control, store, hosts).run()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy that can run here: as which run, on how much, without which hosts."""

    strategy: BenchStrategy
    run: Run
    launcher: str
    ranks: int
    devices: int
    exclude: tuple[str, ...]


@dataclass(slots=True)
class _Comparison:
    """All the runs of one ``bench strategies``."""

    request: Bench
    session: Session
    control: Control
    store: RunStore
    hosts: PreparedLaunch
    skipped: list[BenchSkipped] = field(default_factory=list)
    runs: list[BenchRun] = field(default_factory=list)

    def run(self) -> Iterator[Event]:
        began = time.monotonic()
        candidates = yield from self._find_candidates()
        if not candidates:
            reasons = "; ".join(f"{each.strategy}: {each.reason}" for each in self.skipped)
            raise PlanError("none of the strategies can run here", reasons)
        left = yield from self._run_rounds(candidates)
        if not left:  # else what goes on is a run like any other
            yield self._result(candidates, time.monotonic() - began)

    def _find_candidates(self) -> Generator[Event, None, list[Candidate]]:
        """Plan every strategy as ``run --dry-run`` does; refused ones are left out, with the reason."""
        plain, notes = self._plan(strategy_run(PLAIN, self.request, 1), ())
        yield from notes
        facts = self.hosts.facts
        first, *others = facts
        found = []
        for strategy in choose_strategies(self.request):
            devices = count_devices(strategy, plain.world_size, facts[first])
            run = strategy_run(strategy, self.request, devices, plain.hosts[0].env.get(THREADS))
            exclude = tuple(others) if strategy.alone else ()
            reason = find_obstacle(strategy, plain.world_size, facts)
            try:
                if not reason:
                    plan, _ = self._plan(run, exclude)
                    self._refuse(strategy, plan)
                    size = plan.world_size
                    found.append(Candidate(strategy, run, plan.launcher, size, devices, exclude))
            except PlanError as error:
                reason = error.message
            if reason:
                self.skipped.append(BenchSkipped(strategy=strategy.name, reason=reason))
                yield Narration(text=f"{strategy.name} cannot run here: {reason}")
        return found

    def _plan(self, run: Run, exclude: tuple[str, ...]) -> tuple[PlanMade, list[Narration]]:
        events = list(self._launch(replace(run, dry_run=True), exclude))
        plan = next(event for event in events if isinstance(event, PlanMade))
        return plan, [event for event in events if isinstance(event, Narration)]

    def _refuse(self, strategy: BenchStrategy, plan: PlanMade) -> None:
        if plan.launcher != LauncherName.MPI:
            return
        by_mpi = StrategyName.HOROVOD_MPI
        if strategy.name is not by_mpi:
            raise PlanError(f"Horovod was built without Gloo, so it would be {by_mpi.value}")
        refuse_horovod(ask_engines(self.hosts, self.session).engines, MPI)

    def _run_rounds(self, candidates: list[Candidate]) -> Generator[Event, None, bool]:
        """Run all in turns, odd rounds backwards, without those that fail; return whether the operator left."""
        order = "one after the other" if self.request.rounds == 1 else "in turns"
        yield Narration(text=f"{order}: {', '.join(each.strategy.name for each in candidates)}")
        failed: set[str] = set()
        for round_ in range(1, self.request.rounds + 1):
            for each in candidates if round_ % 2 else reversed(candidates):
                if each.strategy.name in failed:
                    continue
                ended = yield from self._run_one(each, round_)
                if ended is None:
                    return True
                yield ended
                self.runs.append(ended)
                if ended.state is EndState.STOPPED:
                    return False
                if ended.state is EndState.FAILED:
                    failed.add(ended.strategy)
        return False

    def _run_one(self, each: Candidate, round_: int) -> Generator[Event, None, BenchRun | None]:
        """Run a strategy once; None if the operator left."""
        figures = RunFigures()
        name, rounds = each.strategy.name, self.request.rounds
        progress = BenchProgress(strategy=name, round=round_, rounds=rounds)
        yield progress
        began = time.monotonic()
        try:
            for event in self._launch(each.run, each.exclude):
                before = figures.step
                figures.take(event)
                if figures.step != before:
                    yield structs.replace(progress, step=figures.step)
                if isinstance(event, LinkChanged) and not event.connected:
                    yield warn(f"{event.host}: connection lost ({event.reason}); the run goes on")
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
        return figures.result(name, round_, rounds)

    def _result(self, candidates: list[Candidate], seconds: float) -> BenchEnded:
        alone = {
            run.round: run.samples_s
            for run in self.runs
            if run.strategy == StrategyName.SINGLE and run.samples_s is not None
        }
        stopped = next((run for run in self.runs if run.state is EndState.STOPPED), None)
        failed = any(run.state is EndState.FAILED for run in self.runs)
        state = EndState.FAILED if failed else EndState.SUCCEEDED
        sizes = ("images", "batch", "epochs", "width", "precision", "rounds")
        return BenchEnded(
            what="strategies",
            hosts=tuple(HostName(host) for host in self.hosts.facts),
            strategies=tuple(
                strategy_result(
                    [run for run in self.runs if run.strategy == each.strategy.name],
                    alone,
                    strategy=each.strategy.name,
                    launcher=each.launcher,
                    ranks=each.ranks,
                    devices=each.devices,
                )
                for each in candidates
            ),
            skipped=tuple(self.skipped),
            seconds=seconds,
            state=EndState.STOPPED if stopped else state,
            exit_code=stopped.exit_code if stopped else int(failed),
            **{name: getattr(self.request, name) for name in sizes},
        )

    def _launch(self, run: Run, exclude: tuple[str, ...]) -> Iterator[Event]:
        return launching.run(run, lend(self.session), self.control, self.store, exclude)


class RunFigures:
    """Folds the events of one run."""

    def __init__(self) -> None:
        self.run = ""
        self.step: int | None = None
        self.end: RunEnded | None = None
        self._speeds: dict[int, float] = {}
        self._last: dict[str, float] = {}
        self._loads: list[float] = []
        self._waiting_loads: list[float] = []

    def take(self, event: Event) -> None:
        match event:
            case PlanMade():
                self.run = event.run
            case Window():
                self.step = max(event.step, self.step or 0)
                # A GPU counts from the first step to the last: samples after that stay behind.
                self._loads += self._waiting_loads
                self._waiting_loads.clear()
            case GpuSample():
                if self.step is not None and event.util is not None and event.rank is not UNSET:
                    self._waiting_loads.append(event.util)
            case Metric():
                # All ranks give one value for loss and accuracy; a mean of equals may round.
                self._last[event.name] = event.min
                if event.name == SPEED:
                    self._speeds[event.step] = event.value
            case RunEnded():
                self.end = event
            case _:
                pass

    def result(self, strategy: str, round_: int, rounds: int) -> BenchRun | None:
        """Return its result; None if it did not end."""
        end = self.end
        if end is None:
            return None
        failure = None if end.first_failure is UNSET else end.first_failure
        error = "" if failure is None else failure.short_blame
        speeds = [self._speeds[step] for step in sorted(self._speeds)]
        steady = speeds[1:] or speeds
        return BenchRun(
            t=end.t,
            run=end.run,
            strategy=strategy,
            round=round_,
            rounds=rounds,
            state=end.state,
            exit_code=end.exit_code,
            seconds=end.seconds,
            samples_s=median(steady) if steady else None,
            loss=self._last.get(LOSS),
            accuracy=self._last.get(ACCURACY),
            gpu_util=mean(self._loads) if self._loads else None,
            error=error or ("" if end.state is EndState.SUCCEEDED else end.state.value),
        )


def strategy_result(
    runs: Sequence[BenchRun],
    alone: Mapping[int, float],
    *,
    strategy: str,
    launcher: str,
    ranks: int,
    devices: int,
) -> BenchResult:
    """Return a strategy's figures over its rounds.

    ``alone`` has by round the samples a second of ``single``: a ratio is taken within a round.
    """
    good = [run for run in runs if run.state is EndState.SUCCEEDED]
    speedups = [
        run.samples_s / alone[run.round]
        for run in good
        if run.samples_s is not None and alone.get(run.round)
    ]
    return BenchResult(
        strategy=strategy,
        launcher=launcher,
        ranks=ranks,
        devices=devices,
        rounds=len(good),
        seconds=spread(run.seconds for run in good),
        samples_s=spread(run.samples_s for run in good),
        speedup=spread(speedups),
        efficiency=spread(each / devices for each in speedups),
        loss=spread(run.loss for run in good),
        accuracy=spread(run.accuracy for run in good),
        gpu_util=spread(run.gpu_util for run in good),
        error=next((run.error for run in runs if run.error), ""),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the median with the lowest and the highest of the known values; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(median=median(known), lowest=min(known), highest=max(known))
