"""A run in a Slurm job of its own: submitted, waited for, started again when Slurm requeues it, given back.

``--dry-run`` shows it before there is a node: what only Slurm knows has a name that stands for it.
"""

from __future__ import annotations

import ipaddress
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from msgspec import UNSET

from distconsole.config.hostfile import read_list
from distconsole.config.load import load_config
from distconsole.config.ranges import RangeError
from distconsole.errors import ConsoleError, UnavailableError, UsageError
from distconsole.launch.choose import command_lines
from distconsole.launch.place import PreparedLaunch, elastic_in_job
from distconsole.launch.plan import SHOWN_RUN_DIR, NodeFacts, Plan, new_run_id
from distconsole.launch.planner import plan_launch, read_launch
from distconsole.launch.script import refuse_our_flags
from distconsole.launch.show import dry_run_text
from distconsole.launch.slurm import srun
from distconsole.launch.slurm.submit import (
    UNUSED_SECONDS,
    Options,
    read_options,
    submit_command,
    words_of,
)
from distconsole.model.addresses import Interface
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import Event, Narration, TextMade, warn
from distconsole.model.findings import Severity
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run
from distconsole.model.run_events import EndState, PlanMade, RunEnded, RunEvent
from distconsole.operations.control import Control, end_before_start
from distconsole.operations.sessions import SessionSource, narrate
from distconsole.rpc.link import NodeLink
from distconsole.session import Session

SHOWN_JOB, SHOWN_NODE, SHOWN_NIC, SHOWN_PYTHON = "JOB", "NODE", "NIC", "python3"
SHOWN_NETWORK = ipaddress.ip_network("198.18.0.0/15")
"""Reserved for tests of networks (RFC 2544)."""

CHECKPOINT_SECONDS = 10.0
ENDING_SECONDS, ENDING_PAUSE_SECONDS = 120.0, 0.3
"""Longest time until Slurm reports whether it restarts a job whose run has failed."""
TICK_SECONDS = 0.05
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, PAUSE_GROWTH = 0.1, 10.0, 1.2
"""A queue is asked ever more rarely: slurmctld is everybody's."""
OVER_SECONDS = 5.0
"""Seconds between questions to Slurm whether the job is over, while no node answers."""

RESTART_VARIABLE, CHECKPOINT_VARIABLE = "DISTCONSOLE_RESTART", "DISTCONSOLE_CHECKPOINT"
"""As the shims set them for ``--max-restarts`` (``restarts.py`` of the agent)."""

NOT_ONE_JOB = {
    **dict.fromkeys(("-a", "--array"), "one run for each index, or a job file by --emit sbatch"),
    **dict.fromkeys(("-W", "--wait"), "leave it out: without --detach, run waits for the end"),
    "--test-only": "--dry-run prints what would be submitted",
    "--wrap": "leave it out: the job runs run's own SCRIPT",
    ":": "salloc starts a heterogeneous job, and in it: distconsole run",
}
"""Words of sbatch with which it submits no job, several, or returns only at the end; and the replacement."""

UNSEEN = "Slurm job {job} is over, and its nodes let nobody in who could read how the run ended"


@contextmanager
def submit(
    request: Run,
    sessions: SessionSource,
    control: Control,
    exclude: Sequence[str],
    again: RunId | None = None,
) -> Iterator[SubmittedRun]:
    """Submit a job with the options of ``--slurm``; if an error ends the body before a run has begun, cancel it.

    Raises ConsoleError if it cannot be submitted. An error of the body gets a hint if the job cannot be cancelled.
    """
    run, named, command = _prepare(request, exclude)
    with _login(request, sessions, list(named)) as link:
        job = str(srun.ask_slurm(link, do="submit", argv=command).get("job"))
        if not job.isdigit():
            raise UnavailableError(
                f"{link.host.name} submitted a job and did not say which", "squeue"
            )
        submitted = SubmittedRun(request, run, named, job, link, sessions, control, again)
        try:
            yield submitted
        except ConsoleError as error:
            error.hint = "\n".join(filter(None, (error.hint, submitted.give_back())))
            raise
        except BaseException:
            submitted.give_back()
            raise


def show_submission(request: Run, exclude: Sequence[str]) -> Iterator[Event]:
    """Yield the plan, with names that stand for what only Slurm knows, and its text.

    Raises ConsoleError as submitting it would, as far as that can be seen from here.
    """
    run, named, submit = _prepare(request, exclude)
    options = read_options(words_of(request.slurm))
    plan = plan_launch(_expect_hosts(read_launch(request), options, named, run))
    yield plan.event(time.time())
    yield from narrate(plan.notes)
    if not request.json:
        said = command_lines(request.command)
        yield TextMade(text="\n".join([*said, _submission_text(plan, submit, options)]))


def _expect_hosts(
    launch: PreparedLaunch, options: Options, named: Mapping[str, int | None], run: str
) -> PreparedLaunch:
    """Return the launch on nodes as ``--slurm`` asks for them; ``named`` are those of ``--hosts``, with slots."""
    request, where = launch.request, launch.request.where
    names = list(named) or [f"{SHOWN_NODE}{index}" for index in range(options.nodes or 1)]
    hosts = tuple(
        Host(
            HostName(name),
            slots=named.get(name),
            python=where.python,
            setup=where.setup,
            container=where.container,
        )
        for name in names
    )
    ranks = options.tasks_a_node or options.gpus_a_node or 1
    nic = SHOWN_NIC if request.nic in (None, "auto") else str(request.nic)
    facts = {
        host.name: NodeFacts(
            python=where.python or SHOWN_PYTHON,
            cpus=options.cpus * ranks,
            interfaces=(Interface(nic, str(SHOWN_NETWORK[at]), SHOWN_NETWORK.prefixlen),),
            boot_id=host.name,
        )
        for at, host in enumerate(hosts, start=1)
    }
    gpus = dict.fromkeys(names, options.gpus_a_node or 0)
    state = srun.JobState(
        "PENDING", nodes=tuple(names), tasks_a_node=options.tasks_a_node, gpus=gpus
    )
    cluster, fitting = srun.fit_hosts(Cluster(hosts), facts, state, request)
    allocation = srun.Allocation(SHOWN_JOB, held=True, run=run)
    return replace(launch, cluster=cluster, facts=fitting, allocation=allocation)


def _submission_text(plan: Plan, submit: Sequence[str], options: Options) -> str:
    hosts, first = plan.hosts, plan.master.endpoint
    shim = [SHOWN_PYTHON, "agent.pyz", "shim", "--run", SHOWN_RUN_DIR]
    step = srun.step_command(
        SHOWN_JOB, plan.run, hosts, [shim] * len(hosts), plan.slurm_containers
    )
    nodes = ""
    if hosts[0].startswith(SHOWN_NODE):
        known = str(options.nodes) if options.nodes else "as many as it gives, shown for one"
        nodes = f"{hosts[0]} and so on for the nodes that Slurm chooses ({known}), "
    addresses = f"{first.address} and so on and {first.nic} for their addresses"
    return "\n".join(
        [
            f"# submitted; the job's script waits, at most {UNUSED_SECONDS // 60} min, for the words that start the run",
            shlex.join(submit),
            "",
            f"# {SHOWN_JOB} stands for the job's number, {nodes}{addresses} and interfaces",
            f"# on {hosts[0]}, as a child of that script, once the nodes are there",
            shlex.join(step),
            "",
            "# on each node, below that node's task of srun",
            dry_run_text(plan),
        ]
    )


def _prepare(
    request: Run, exclude: Sequence[str]
) -> tuple[RunId, dict[str, int | None], list[str]]:
    """Return the run's id, the hosts of ``--hosts`` with their slots, and the sbatch that submits its job.

    Raises UsageError for options that a submitted job cannot have, and names them.
    """
    _refuse_before_submitting(request)
    refuse_our_flags(request)
    try:
        named = {host.name: host.slots for host in read_list(request.where.hosts or "")}
    except RangeError as error:
        raise UsageError(f"--hosts: {error}") from None
    run = new_run_id(request)
    return run, named, submit_command(request.slurm, run, list(named), exclude)


def _refuse_before_submitting(request: Run) -> None:
    if request.where.hostfile is not None or request.where.cluster is not None:
        raise UsageError(
            "--slurm chooses its nodes itself, or takes those of --hosts",
            "leave --hostfile and --cluster out",
        )
    if request.may_lose_hosts:  # before the job waits in the queue
        raise UsageError(*elastic_in_job(request.nnodes))
    words = words_of(request.slurm)
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if name in NOT_ONE_JOB:
            raise UsageError(f"--slurm submits one job and follows it: {name}", NOT_ONE_JOB[name])
    if request.detach and read_options(words).requeue:
        raise UsageError(
            "--slurm with --requeue needs the console when Slurm starts the job again, and --detach leaves",
            "leave one of them out; --emit sbatch writes a job that needs no console",
        )


@contextmanager
def _login(request: Run, sessions: SessionSource, named: Sequence[str]) -> Iterator[NodeLink]:
    where = request.submits_from
    if where is None and shutil.which("sbatch") is not None:
        here = Host(HostName(socket.gethostname()), local=True)
        with Session(load_config(), Cluster((here,))) as session:
            yield session.link(here.name)
        return
    if where is None and named:
        where = replace(request.where, hosts=named[0], hostfile=None, cluster=None)
    if where is None:
        raise UsageError(
            "--slurm: there is no sbatch on this machine",
            "--slurm-login HOST names a host that has Slurm's commands",
        )
    with sessions(where) as session:
        yield session.link(session.cluster.hosts[0].name)


@dataclass
class SubmittedRun:
    """A run in a job that was submitted for it, and that Slurm may requeue.

    Attributes:
        run: The id of the next start; the job is named after the first.
        named: The hosts of ``--hosts``, with their slots.
        link: To a host that has Slurm's commands.
        code: The run whose code is taken again; None before the first start.
        used: Whether a run of ours has begun in the job, and ends it by itself.
        number: How many starts there were before.
        state: The job's state at the present start; None before the first.
        ended: The end of the present start's run.
        over: Whether Slurm has answered that the job is over, and ``ask_at`` the time to ask it again.
        last: The run before and the host of its first rank, while its checkpoint is not known.
        news: Variables that the next start gets.
    """

    request: Run
    run: RunId
    named: Mapping[str, int | None]
    job: str
    link: NodeLink
    sessions: SessionSource
    control: Control
    code: RunId | None = None
    used: bool = False
    number: int = 0
    state: srun.JobState | None = None
    ended: RunEnded | None = None
    over: bool = False
    ask_at: float = 0.0
    clock: Callable[[], float] = time.monotonic
    last: tuple[RunId, HostName] | None = None
    news: tuple[tuple[str, str], ...] = ()

    @property
    def allocation(self) -> srun.Allocation:
        return srun.Allocation(self.job, held=True, run=self.run, state=self.state)

    def next_start(self) -> Generator[Event, None, Run | None]:
        """Wait until the job has nodes; return the request of a run on them, None once there is no start to come.

        Raises ConsoleError if the job ends before, or Slurm does not answer.
        """
        if self.state is not None:
            if not self._is_requeued(self.state):
                return None
            yield self._prepare_next(self.state)
        state = yield from self._wait_for_nodes()
        if state is None:
            assert self.control.asked is not None
            yield Narration(text=f"cancelling Slurm job {self.job}")
            yield end_before_start(self.run, self.control.asked)
            return None
        yield Narration(text=f"Slurm job {self.job} has {', '.join(state.nodes)}")
        if self.last is not None and self.last[1] in state.nodes:
            path = self._learn_checkpoint()
            if path is not None:
                yield Narration(text=f"the checkpoint of the start before is {path}")
        self.state, self.ended, self.over, self.ask_at = state, None, False, 0.0
        words = [
            f"{node}:{slots}" if (slots := self.named.get(node)) else node for node in state.nodes
        ]
        where = replace(self.request.where, hosts=",".join(words), hostfile=None, cluster=None)
        kept = tuple(pair for pair in self.request.env if pair[0] not in dict(self.news))
        return replace(self.request, where=where, slurm=None, env=(*kept, *self.news))

    def watch(self, events: Iterator[Event]) -> Iterator[Event]:
        """Pass the events of a start on, and keep its end; raises ConsoleError if the first start fails."""
        try:
            for event in events:
                of_run = isinstance(event, RunEvent)
                self.used |= of_run and not isinstance(event, PlanMade | RunEnded)
                if isinstance(event, RunEnded) and event.error is UNSET:
                    self.ended = event
                yield event
        except ConsoleError as error:
            if not self.number:
                raise
            yield Narration(text=f"not started again: {error.message}", severity=Severity.FAIL)
        if self.over:
            yield warn(UNSEEN.format(job=self.job))
        self.used = self.used or self.request.detach

    def is_over(self) -> bool:
        """Return whether the job has ended since its start, or will be started once more; asks Slurm rarely."""
        if not self.over and self.clock() >= self.ask_at and self.state is not None:
            with suppress(ConsoleError):
                self.over = self._starts_again(self.state.restarts) is not None
            self.ask_at = self.clock() + OVER_SECONDS
        return self.over

    def give_back(self) -> str:
        """Cancel a job in which nothing was started; return why it could not be cancelled, or nothing."""
        if self.used:
            return ""
        try:
            self.link.connect()  # again, where the connection is why there is nothing to start
            srun.ask_slurm(self.link, do="cancel", job=self.job)
        except ConsoleError as error:
            return (
                f"Slurm job {self.job} could not be cancelled ({error.message}): it gives its nodes back "
                f"{UNUSED_SECONDS // 60} min after it gets them; at once: scancel {self.job} on {self.link.host.name}"
            )
        return ""

    def _is_requeued(self, state: srun.JobState) -> bool:
        """Return whether the run failed and Slurm starts its job once more; waits for Slurm's answer."""
        may_be = self.control.asked is None and read_options(words_of(self.request.slurm)).requeue
        if self.ended is None or self.ended.state is not EndState.FAILED or not may_be:
            return False
        if not self._wait_for_requeue(state.restarts):
            self.used = self.used and self.control.asked is None
            return False
        return True

    def _prepare_next(self, state: srun.JobState) -> Narration:
        """Keep the checkpoint for the next start; return its announcement."""
        assert self.ended is not None
        run = RunId(self.ended.run)
        self.number += 1
        self.used = False
        self.code = self.code or run
        self.last = (run, HostName(state.nodes[0]))
        path = self._learn_checkpoint()
        self.run = new_run_id(self.request)
        since = f"with the checkpoint {path}" if path else "with no checkpoint that is known"
        return warn(f"Slurm requeued job {self.job}: start {self.number + 1} follows, {since}")

    def _learn_checkpoint(self) -> str | None:
        """Keep the checkpoint for the next start: that of the last one, or of one before it.

        A host may refuse logins between two starts, and is asked again at the next.
        """
        found = self._ask_checkpoint(*self.last) if self.last is not None else None
        self.last = None if found is not None else self.last
        path = found or dict(self.news).get(CHECKPOINT_VARIABLE)
        told = ((RESTART_VARIABLE, str(self.number)), (CHECKPOINT_VARIABLE, path or ""))
        self.news = tuple(pair for pair in told if pair[1])
        return path

    def _ask_checkpoint(self, run: RunId, host: HostName) -> str | None:
        try:
            with self.sessions(replace(self.request.where, hosts=host)) as session:
                path = session.link(host).request(
                    "slurm", CHECKPOINT_SECONDS, do="checkpoint", run=run
                )["path"]
        except (ConsoleError, KeyError):
            return None
        return path if isinstance(path, str) else None

    def _wait_for_nodes(self) -> Generator[Event, None, srun.JobState | None]:
        said, pause, job = "", FIRST_PAUSE_SECONDS, self.job
        while self.control.asked is None:
            state = srun.ask_state(self.link, job)
            if state.state == srun.RUNNING_STATE and state.nodes:
                return state
            if state.state in srun.ENDED_STATES:
                raise UnavailableError(
                    f"Slurm job {job} ended before it started anything: {state.state}",
                    f"on {self.link.host.name}: scontrol show job {job}",
                )
            why = f" ({state.reason})" if state.reason else ""
            told = f"Slurm job {job} is {state.state}{why}"
            if told != said and (said or why):
                yield Narration(text=f"{told}; Ctrl-C cancels it")
            said = told
            self._pause(pause)
            pause = min(pause * PAUSE_GROWTH, LONGEST_PAUSE_SECONDS)
        return None

    def _wait_for_requeue(self, restarts: int) -> bool:
        """Wait until the job has ended, or will be started again; return which."""
        deadline = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < deadline and self.control.asked is None:
            try:
                starts_again = self._starts_again(restarts)
            except ConsoleError:
                return False
            if starts_again is not None:
                return starts_again
            self._pause(ENDING_PAUSE_SECONDS)
        return False

    def _starts_again(self, restarts: int) -> bool | None:
        """Return True if Slurm starts the job once more, False if it has ended, None as long as that is open."""
        state = srun.ask_state(self.link, self.job)
        waits = state.state in srun.WAITING_STATES or state.restarts > restarts
        if waits and state.state != srun.ENDING_STATE:
            return True
        return False if state.state in srun.ENDED_STATES else None

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.control.asked is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(TICK_SECONDS, left))
