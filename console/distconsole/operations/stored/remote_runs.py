"""What hosts know of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distconsole.errors import RunNotFoundError
from distconsole.model.names import RUN_ID_PATTERN, HostName, RunId, join_some
from distconsole.model.outcome import Failed, failed, succeeded
from distconsole.model.run_summary import RunSummary
from distconsole.rpc.frames import RunKnown, RunsAnswer
from distconsole.rpc.wire import decode_as
from distconsole.runs.store.place import JournalPlace
from distconsole.runs.store.store import meant
from distconsole.session import Session, on_every

RUNS_SECONDS = 15.0
STATES = {"prepared": "running", "lost": "failed"}


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run as ``hosts`` report it, by node: the journals' positions, and entries that they cannot read (``troubles``)."""

    run: RunId
    known: RunKnown
    hosts: tuple[HostName, ...]
    places: dict[HostName, JournalPlace]
    troubles: tuple[tuple[HostName, str], ...] = ()

    @property
    def state(self) -> str:
        """``running``, ``succeeded``, ``failed``, ``stopped``; ``unreadable`` where no host can read it."""
        return STATES.get(self.known.state, self.known.state)


def ask_runs(session: Session, only: Sequence[str] = ()) -> tuple[list[KnownRun], list[Failed]]:
    """Return the runs that hosts (``only`` these) know, newest first, and the hosts that did not say."""
    hosts = [host.name for host in session.cluster.hosts]
    hosts = [name for name in hosts if name in only] or hosts
    outcomes = on_every(
        session, hosts, lambda link: decode_as(link.request("runs", RUNS_SECONDS), RunsAnswer).runs
    )
    placed: dict[str, dict[HostName, RunKnown]] = {}
    for outcome in succeeded(outcomes):
        for known in outcome.value:
            if RUN_ID_PATTERN.match(known.run):
                placed.setdefault(known.run, {})[outcome.host] = known
    runs = [_join_hosts(RunId(run), on_hosts) for run, on_hosts in placed.items()]
    return sorted(runs, key=lambda each: each.known.created, reverse=True), failed(outcomes)


def find_known(runs: Sequence[KnownRun], wanted: str, others: Iterable[str] = ()) -> KnownRun:
    """Return the run that ``wanted`` means: an id, a name, a unique prefix, or ``last``.

    Args:
        others: What else runs are called, of which one may have been meant.

    Raises RunNotFoundError if none does, or a prefix fits several.
    """
    for run in runs:
        if wanted == "last" or (wanted and wanted in (run.run, run.known.name)):
            return run
    fitting = [run for run in runs if run.run.startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise RunNotFoundError(
            f"{wanted} begins the ids of {len(fitting)} runs",
            f"one of: {join_some((run.run for run in fitting), 5)}",
        )
    words = [word for run in runs for word in (run.run, run.known.name) if word]
    raise RunNotFoundError(
        f"neither this machine nor the hosts know a run {wanted}",
        f"{meant(wanted, (*words, *others))}distconsole runs --hosts HOST1,HOST2 lists them",
    )


def summary_of_known(run: KnownRun) -> RunSummary:
    return RunSummary(
        run=run.run,
        name=run.known.name,
        state=run.state,
        started=run.known.created,
        seconds=None,
        script=run.known.script,
        launcher=run.known.launcher,
        world_size=run.known.world_size,
        hosts=tuple(run.hosts),
        origin="elsewhere",
    )


def _join_hosts(run: RunId, on_hosts: dict[HostName, RunKnown]) -> KnownRun:
    in_order = sorted(on_hosts, key=lambda host: on_hosts[host].node_index)
    states = [on_hosts[host] for host in in_order]
    readable = [known for known in states if known.trouble is None] or states
    leading = next(
        (known for known in readable if known.state in ("running", "prepared")), readable[0]
    )
    troubles = tuple((host, each.trouble) for host, each in on_hosts.items() if each.trouble)
    places = {host: JournalPlace(each.last_seq, each.journal) for host, each in on_hosts.items()}
    return KnownRun(run, leading, tuple(in_order), places, troubles)
