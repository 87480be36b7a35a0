"""What a run's events let one conclude, in words for a person. It detects nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from distconsole.model.findings import Severity
from distconsole.model.run_events import RunFinding
from distconsole.model.run_summary import FirstFailure
from distconsole.model.time_text import ms_text
from distconsole.rpc.frames import NoteEntry, RestartEntry
from distconsole.runs.detectors.not_finite import NotFinite
from distconsole.runs.detectors.remedies import LEFT_FIRST, remedy
from distconsole.runs.detectors.splits import Split
from distconsole.runs.detectors.stalls import Stall
from distconsole.runs.detectors.stragglers import REST, Straggler
from distconsole.runs.detectors.verify import Disagreement, Kind

NODE_LOST, RANK_LOST = "run.node_lost", "run.rank_lost"
"""Checks that say that a node or a rank is gone; of severity ``warn`` where the run goes on."""

FIRST_FAILURE, STRAGGLER = "run.first_failure", "run.straggler"
NOT_FINITE = "run.not_finite"
UNSOUND = ("run.desync", "run.alone", "run.world", "run.split", "run.same_batch", "run.same_epoch")
"""Checks that say that the ranks do not train one model as they should; that does not pass by itself."""

MAX_RANKS_NAMED = 8
MAX_HOSTS_NAMED = 4
MAX_SUMMARY_CHARS = 240
"""Of an error in a summary; the whole of it is in the traceback."""

_LOOK = (
    "look at what the script does there on this rank alone, and at the host's processors and GPUs "
    "(distconsole top)"
)
STRAGGLER_HINTS = {
    "data": "it waits longer for its batches: look at the DataLoader's num_workers, and at the "
    "host's disk and processors (distconsole top)",
    "forward": f"from its batch to backward it takes longer: {_LOOK}",
    "optimizer": f"its optimizer takes longer: {_LOOK}",
    "step": _LOOK,
    REST: f"{_LOOK}: logging, writing files, a validation",
}
"""Says which part was measured; why it takes longer was not."""


class Left(NamedTuple):
    """The ranks that had ended well before another failed, and their hosts."""

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


def first_failure_finding(run: str, first: FirstFailure, left: Left, t: float) -> RunFinding:
    """Return who failed first, with its traceback in ``seen``."""
    return RunFinding(
        t=t,
        run=run,
        check=FIRST_FAILURE,
        severity=Severity.FAIL,
        hosts=(first.host,),
        rank=first.rank if first.of_rank else UNSET,
        summary=msgspec.structs.replace(first, error=_short(first)).blame,
        seen=first.traceback,
        expected="every rank ends with exit code 0",
        hint="; ".join(
            filter(
                None,
                (
                    _named(remedy(first.error, first.traceback), left),
                    f"distconsole logs {run}" + (f" --rank {first.rank}" if first.of_rank else ""),
                ),
            )
        ),
    )


def _named(advice: str, left: Left) -> str:
    """Return ``advice`` with the ranks by their numbers where it speaks of those that left."""
    if not left.ranks:
        return advice
    who = f"{ranks_text(left.ranks)} on {_and_others(left.hosts, MAX_HOSTS_NAMED)}"
    return advice.replace(LEFT_FIRST, f"{who} left first, with exit code 0")


def restart_finding(
    run: str, first: FirstFailure, left: Left, entry: RestartEntry, t: float
) -> RunFinding:
    """Return who failed first in an attempt that another follows, and what that one goes on from."""
    soon = f" in {entry.pause:.3g} s" if entry.pause else ""
    since = f"with the checkpoint {entry.checkpoint}" if entry.checkpoint else "with no checkpoint"
    told = first_failure_finding(run, first, left, t)
    return msgspec.structs.replace(
        told,
        check="run.restart",
        severity=Severity.WARN,
        summary=f"{told.summary}; restart {entry.restart} of {entry.of}{soon}, {since}",
    )


def _short(first: FirstFailure) -> str:
    error = first.error or f"exit code {first.exit_code}"
    return error if len(error) <= MAX_SUMMARY_CHARS else f"{error[:MAX_SUMMARY_CHARS]}…"


def is_unsound(finding: RunFinding) -> bool:
    """Whether what ``finding`` says makes the training worthless until it is started anew.

    A metric that is no number says so itself, and may be one again; ``seen`` has its value.
    """
    of_gradient = finding.check == NOT_FINITE and not finding.seen
    return finding.check in UNSOUND or of_gradient


def straggler_finding(run: str, host: str, slow: Straggler, t: float) -> RunFinding:
    """Return which rank the others wait for, and in which part of the step."""
    where = {
        "step": "its steps",
        REST: "its steps, outside data, forward, backward and optimizer",
    }.get(slow.part, f"the {slow.part} part of its steps")
    since = f" since about step {slow.since_step:,}" if slow.since_step >= 0 else ""
    return RunFinding(
        t=t,
        run=run,
        check=STRAGGLER,
        severity=Severity.WARN,
        hosts=(host,) if host else (),
        rank=slow.rank,
        summary=f"rank {slow.rank} on {host} is slow{since} in {where}: "
        f"{ms_text(slow.excess_ms)} more than the others, of {ms_text(slow.step_ms)} a step",
        seen=f"{ms_text(slow.own_ms)} there; median of the others {ms_text(slow.median_ms)}",
        expected="less than a tenth of a step between the ranks",
        hint=STRAGGLER_HINTS.get(slow.part, ""),
    )


def split_finding(run: str, split: Split, t: float) -> RunFinding:
    """Return that hosts train one model each."""
    one, other = split.hosts
    return RunFinding(
        t=t,
        run=run,
        check="run.split",
        severity=Severity.WARN,
        hosts=split.hosts,
        rank=split.rank,
        summary=f"{one} and {other} train by themselves: each has a rank {split.rank}",
        expected="one world of ranks over all hosts",
        hint="look where the script's ranks meet (by tcp://127.0.0.1 each host's own do): let it use "
        "MASTER_ADDR, MASTER_PORT, NODE_RANK and NNODES, or give '{master_addr}', "
        "'{master_port}', '{node_rank}' and '{nnodes}' in its arguments",
    )


def stall_finding(run: str, stall: Stall, host_of: Callable[[int], str], t: float) -> RunFinding:
    """Return that ranks live and make no step, with a way to look at the one most likely to blame."""
    told = stall.behind or stall.ranks
    first, hosts = told[0], tuple(dict.fromkeys(filter(None, map(host_of, told))))
    on_host = f" on {host_of(first)}" if len(told) == 1 else ""
    have = "has" if len(told) == 1 else "have"
    after = "" if stall.step is None else f" after step {stall.step:,}"
    if stall.behind:
        summary = (
            f"{ranks_text(told)}{on_host} {have} stopped making steps{after}; "
            f"{_count(len(stall.ranks) - len(told), 'more waits', 'more wait')}, "
            f"at step {stall.farthest or 0:,}"
        )
    elif stall.going or stall.unheard or len(told) == 1:
        summary = f"{ranks_text(told)}{on_host} {have} stopped making steps{after}"
        summary += f"; {_count(stall.going, 'goes on', 'go on')}" if stall.going else ""
        unheard = _count(stall.unheard, "other", "others")
        summary += f"; nothing is heard of {unheard}" if stall.unheard else ""
    else:
        summary = f"all {len(told):,} ranks have stopped making steps{after}"
    pid = stall.pids.get(first)
    look = f"py-spy dump --pid {pid} on {host_of(first)} says where it is; " if pid else ""
    return RunFinding(
        t=t,
        run=run,
        check="run.stall",
        severity=Severity.WARN,
        hosts=hosts,
        rank=first if len(told) == 1 else UNSET,
        summary=summary,
        expected="a step within 30 s, or within ten times the usual time",
        hint=f"{look}distconsole logs {run} --rank {first}; distconsole stop {run}",
    )


def _count(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def not_finite_finding(run: str, found: NotFinite, hosts: tuple[str, ...]) -> RunFinding:
    """Return that a metric is NaN or infinite; ``hosts`` are those of the ranks where that began."""
    ranks = f"all {len(found.ranks):,} ranks" if found.everywhere else ranks_text(found.ranks)
    name, value = found.name, found.point.value
    return RunFinding(
        t=found.t,
        run=run,
        check=NOT_FINITE,
        severity=Severity.WARN,
        hosts=hosts,
        rank=found.ranks[0] if len(found.ranks) == 1 else UNSET,
        summary=f"{name} is {value} at step {found.point.step} on {ranks}",
        seen=f"{name} = {value}",
        expected="a finite number",
        hint="look at the learning rate, at gradient clipping, and at this step's data",
    )


def disagreement_finding(
    run: str, hosts: tuple[str, ...], found: Disagreement, t: float
) -> RunFinding:
    """Return what the ranks' checks of themselves say is wrong; ``hosts`` are those of its ranks."""
    said = _SAID[found.kind](found)
    return RunFinding(
        t=t,
        run=run,
        check=said.check,
        severity=Severity.FAIL if found.certain else Severity.WARN,
        hosts=hosts,
        rank=found.ranks[0] if len(found.ranks) == 1 else UNSET,
        summary=said.summary,
        seen=said.seen,
        expected=said.expected,
        hint=said.hint,
    )


class _Said(NamedTuple):
    check: str
    summary: str
    expected: str
    hint: str
    seen: str = ""


def _parameters_said(found: Disagreement) -> _Said:
    first = f"; first in {found.name}" if found.name else ""
    seen = f"{found.count} of {found.of} differ" if found.of else ""
    if found.step == 0 and not found.certain:
        hint = (
            "begin with equal weights: DistributedDataParallel sends those of rank 0 to all; by "
            "hand, broadcast every parameter after the model is made (or, for Horovod, "
            "broadcast_parameters)"
        )
    else:
        hint = (
            "some update was not the same on all ranks: look for gradients that are not reduced "
            "(no_sync, a part outside the wrapped model), a random choice in the model's code, "
            "or another learning rate on one rank"
        )
    return _Said(
        "run.desync",
        f"{ranks_text(found.ranks)} and {ranks_text(found.others)} have different parameters "
        f"after step {found.step}{first}",
        "equal parameters on all ranks that train one model",
        hint,
        seen,
    )


def _state_said(found: Disagreement) -> _Said:
    return _Said(
        "run.desync",
        f"the optimizer of {ranks_text(found.ranks)} is in another state than that of "
        f"{ranks_text(found.others)} after step {found.step}, with equal parameters",
        "equal optimizer state on all ranks",
        "load the checkpoint of the optimizer on every rank, or broadcast its state",
    )


def _alone_said(found: Disagreement) -> _Said:
    return _Said(
        "run.desync",
        f"{ranks_text(found.ranks)} train each by themselves: no process group is initialised, and "
        f"their parameters differ after step {found.step}",
        "one training over all ranks",
        "call torch.distributed.init_process_group and wrap the model in "
        "DistributedDataParallel, or run it with --nproc 1",
    )


def _world_said(found: Disagreement) -> _Said:
    return _Said(
        "run.world",
        f"{ranks_text(found.ranks)} is in a process group of another shape than planned",
        f"the rank that was planned, in a world of {found.of}",
        "take rank and world size from RANK and WORLD_SIZE, not from the script's own count",
        f"a world of {found.count}",
    )


def _batch_said(found: Disagreement) -> _Said:
    return _Said(
        "run.same_batch",
        f"{ranks_text(found.ranks)} read the same batches (seen until step {found.step})",
        "every rank reads its own share of the data",
        "give the DataLoader a DistributedSampler: sampler=DistributedSampler(dataset)",
    )


def _epoch_said(found: Disagreement) -> _Said:
    return _Said(
        "run.same_epoch",
        f"two passes over the data were in the same order (seen at step {found.step})",
        "another order in every epoch",
        "call sampler.set_epoch(epoch) before each pass over the DataLoader",
    )


def _gradient_said(found: Disagreement) -> _Said:
    of = f" of {found.name}" if found.name else ""
    return _Said(
        NOT_FINITE,
        f"the gradient{of} is not finite at step {found.step} on {ranks_text(found.ranks)}",
        "finite gradients",
        "look for a division by zero, a root or logarithm of 0, and at the learning rate",
    )


_SAID = {
    Kind.PARAMETERS: _parameters_said,
    Kind.STATE: _state_said,
    Kind.ALONE: _alone_said,
    Kind.WORLD: _world_said,
    Kind.BATCH: _batch_said,
    Kind.EPOCH: _epoch_said,
    Kind.GRADIENT: _gradient_said,
}


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Return ``rank 3`` or ``ranks 0, 2, 5 and 7 others``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {_and_others(ranks, MAX_RANKS_NAMED)}"


def _and_others(words: Sequence[object], limit: int) -> str:
    shown, more = ", ".join(map(str, words[:limit])), len(words) - limit
    return f"{shown} and {_count(more, 'other', 'others')}" if more > 0 else shown


def passed_by_finding(run: str, host: str, steps: int, t: float) -> RunFinding:
    """Return how many steps of a lost host do not count, as the run went on without it."""
    return RunFinding(
        t=t,
        run=run,
        check=NODE_LOST,
        severity=Severity.INFO,
        hosts=(host,),
        summary=f"{steps} steps of {host} after it was lost are not counted: the run went on "
        "without it; what it printed is shown",
    )


def note_finding(run: str, host: str, entry: NoteEntry, t: float) -> RunFinding:
    """Return what a node has to say about ``host``."""
    try:
        severity = Severity(entry.severity)
    except ValueError:
        severity = Severity.INFO
    return RunFinding(
        t=t,
        run=run,
        check=entry.check,
        severity=severity,
        hosts=(host,),
        summary=entry.summary,
        seen=entry.seen or "",
        hint=entry.hint or "",
        rank=UNSET if entry.rank is None else entry.rank,
    )


def unplanned_finding(run: str, host: str, what: str, ranks: int, t: float) -> RunFinding:
    """Return that a node tells of what the run of so many ranks cannot have."""
    return RunFinding(
        t=t,
        run=run,
        check="run.unplanned",
        severity=Severity.WARN,
        hosts=(host,),
        summary=f"{host} reports {what}, which this run does not have: its entries are left out",
        expected=f"ranks 0 to {ranks - 1:,}" if ranks > 1 else "rank 0",
        hint=f"look on {host} at which processes write to this run's folder and rings, and how the "
        "script numbers its ranks",
    )


def left_out_finding(run: str, host: str, count: int, t: float) -> RunFinding:
    """Return how much of what a node told was left out."""
    return RunFinding(
        t=t,
        run=run,
        check="run.unplanned",
        severity=Severity.INFO,
        hosts=(host,),
        summary=f"{_count(count, 'entry', 'entries')} of {host} about ranks, hosts or GPUs that this "
        f"run does not have {'was' if count == 1 else 'were'} left out",
    )
