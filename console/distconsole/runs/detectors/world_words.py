"""What ranks that do not come together as planned let one conclude, in words for a person."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import UNSET

from distconsole.model.findings import Severity
from distconsole.model.run_events import RunFinding
from distconsole.runs.detectors.conclusions import ranks_text
from distconsole.runs.detectors.worlds import Apart, Kind


class _Said(NamedTuple):
    check: str
    summary: str
    expected: str
    hint: str


def apart_finding(run: str, found: Apart, hosts: tuple[str, ...], t: float) -> RunFinding:
    """Return what the ranks' way to their first step shows; ``hosts`` are those of its ranks."""
    said = _SAID[found.kind](run, found)
    return RunFinding(
        t=t,
        run=run,
        check=said.check,
        severity=Severity.WARN,
        hosts=hosts,
        rank=found.ranks[0] if len(found.ranks) == 1 else UNSET,
        summary=said.summary,
        expected=said.expected,
        hint=said.hint,
    )


def _other_world(_run: str, found: Apart) -> _Said:
    asks = "asks" if len(found.ranks) == 1 else "ask"
    ranks = "rank" if found.world == 1 else "ranks"
    return _Said(
        "run.world",
        f"{ranks_text(found.ranks)} {asks} for a world of {found.world} {ranks}, and the run has "
        f"{found.planned}",
        f"a world of {found.planned}",
        "the script's own count of ranks (such as Lightning's devices and num_nodes) and that of "
        "--nproc and --hosts are to agree; WORLD_SIZE has the latter",
    )


def _other_rank(_run: str, found: Apart) -> _Said:
    return _Said(
        "run.world",
        f"{ranks_text(found.ranks[:1])} is rank {found.group_rank} of its process group",
        "each rank has the number that was planned",
        "take the rank from RANK, not from the script's own count",
    )


def _waits(run: str, found: Apart) -> _Said:
    have = "has" if len(found.ranks) == 1 else "have"
    world = f" of a world of {found.world}" if found.world else ""
    waits = (
        f"{ranks_text(found.ranks)} {have} waited for the other ranks{world} for "
        f"{found.seconds:.0f} s"
    )
    if found.missing:
        have = "has" if len(found.missing) == 1 else "have"
        return _Said(
            "run.rendezvous",
            f"{waits}; {ranks_text(found.missing)} {have} not asked for the process group",
            "every rank calls init_process_group, or hvd.init",
            f"see what {ranks_text(found.missing)} does instead: "
            f"distconsole logs {run} --rank {found.missing[0]}",
        )
    return _Said(
        "run.rendezvous",
        f"{waits}; every rank that lives has asked for the process group",
        "the ranks find each other at once",
        "see whether they reach each other: distconsole check --only net,os.hostname,coll; and "
        "whether all ask at one address and port",
    )


def _alone(_run: str, found: Apart) -> _Said:
    if len(found.ranks) == 1:
        made, seems = "made its first step", "it seems to train by itself"
    else:
        made, seems = "made their first steps", "each seems to train by itself"
    return _Said(
        "run.alone",
        f"{ranks_text(found.ranks)} {made} without torch.distributed or Horovod initialised: {seems}",
        "one training over all ranks",
        "if they are to train one model: init_process_group and DistributedDataParallel; if one "
        "process is enough (DataParallel): one host, --nproc 1. Whether they meet in another way is "
        "not seen",
    )


_SAID = {
    Kind.OTHER_WORLD: _other_world,
    Kind.OTHER_RANK: _other_rank,
    Kind.WAITS: _waits,
    Kind.ALONE: _alone,
}
