"""Checks that ran programs: imports of torch, and short jobs over all hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from statistics import median

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, warn
from distconsole.checks.engine.rule import HostView, Judge, Rule, hint, host_rule, judge_each, rule
from distconsole.checks.facts.evidence import Outcome, View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.jobs import CollFacts, HorovodCollFacts, MpiCollFacts, MpiSshFacts
from distconsole.checks.facts.node import ImportFacts, OsFacts, TorchFacts
from distconsole.checks.rules.network.ssh import NEEDED_BY
from distconsole.checks.rules.software.engines import WHEELS
from distconsole.checks.rules.software.ranks import (
    CheckedJob,
    judge_end,
    judge_meeting,
    judge_places,
    judge_values,
)
from distconsole.checks.rules.wording import differ
from distconsole.model.names import join_some
from distconsole.model.requests import Level

SLOW_SECONDS = 15.0
SLOW_FACTOR = 4.0
BUSY = 2.0
"""Processes for each processor, over the last minute."""

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


@hint("A local copy of the environment.")
@rule("torch.import", "torch", Level.STANDARD, ImportFacts)
def _import(view: View) -> RuleResults:
    """A torch that cannot be imported, or takes so long on one host that the others give up."""
    # What others do on the machine at this moment says nothing of its disk.
    facts, times = view.of(ImportFacts), {}
    busy = {name: os.busy for name, os in view.of(OsFacts).items() if os.busy > BUSY}
    for name, found in facts.items():
        if not found.present:
            yield NotApplicable("no torch", (name,))
        elif found.error:
            yield fail(
                f"torch cannot be imported on {HERE}: {found.error}"[:300],
                (name,),
                seen=f"import torch: {found.error}",
                hint="pip install --force-reinstall torch==VERSION; for a library that is missing: "
                "LD_LIBRARY_PATH in --setup",
            )
        elif found.late and found.seconds <= SLOW_SECONDS:
            why = f"import torch took longer than the {found.seconds:.1f} s that were left"
            yield NotApplicable(why, (name,), Outcome.TIMED_OUT)
        else:
            times[name] = found.seconds
    for name, seconds in times.items():
        late, others = facts[name].late, sorted(t for other, t in times.items() if other != name)
        if not late and seconds <= max(SLOW_SECONDS, SLOW_FACTOR * median(others or [0.0])):
            continue
        if name in busy:
            why = f"import torch took {seconds:.0f} s, with {busy[name]:.1f} processes a processor"
            outcome = Outcome.TIMED_OUT if late else Outcome.SKIPPED
            yield NotApplicable(why, (name,), outcome)
        else:
            yield warn(
                f"import torch takes {'more than ' if late else ''}{seconds:.0f} s on {name}",
                (name,),
                seen="others: " + join_some(f"{each:.1f} s" for each in others) if others else "",
                expected="a few seconds; ranks that come late make the others' rendezvous time out",
                hint="an environment on a slow or shared disk: copy it to a local one, or read it once "
                "before (find ENV -type f -exec cat {} + >/dev/null)",
            )


@hint("A newer wheel, or the one for the newer CUDA.")
@host_rule("torch.arch", "torch", Level.STANDARD, ImportFacts, GpuFacts)
def _arch(host: HostView) -> RuleResults:
    """A wheel without code for this GPU: `no kernel image is available for execution`."""
    gpus, architectures = host.of(GpuFacts).gpus, host.of(ImportFacts).architectures
    models = {gpu.capability: gpu.name or "" for gpu in gpus if gpu.capability}
    if not models:
        yield NotApplicable("no GPU")
    elif not architectures:
        yield NotApplicable("this torch has no code for GPUs, or does not say for which")
    for capability, model in models.items() if architectures else ():
        if not runs_on(capability, architectures):
            wanted = f"sm_{capability[0]}{capability[1]}"
            yield fail(
                f"torch on {HERE} has no code for its {model} ({wanted})",
                seen=f"built for {' '.join(architectures)}",
                expected=f"{wanted}, or PTX that is older; else: no kernel image is available",
                hint=f"a newer wheel: pip install --upgrade torch --index-url {WHEELS}cu128",
            )


@hint("Take it out of LD_LIBRARY_PATH.")
@rule("nccl.copies", "torch", Level.QUICK, TorchFacts)
def _nccl_copies(view: View) -> RuleResults:
    """A second libnccl on LD_LIBRARY_PATH, or another NCCL loaded on one host than on the others."""
    yield from judge_each(_find_copies)(view)
    imported = view.of(ImportFacts).items()
    yield from differ(
        fail,
        "NCCL",
        {name: found.nccl for name, found in imported if found.nccl},
        seen="torch._C._nccl_version() after the import",
        expected="one version of NCCL on every host; else it hangs, or refuses to start",
        hint="pip install nvidia-nccl-cu12==VERSION; look at LD_LIBRARY_PATH",
    )


def _find_copies(host: HostView) -> RuleResults:
    torch, imported = host.of(TorchFacts), host.find(ImportFacts)
    if torch.cuda is None:
        yield NotApplicable("no NCCL with this torch")
        return
    mapped = imported.nccl_mapped if imported is not None else ()
    copies = {*filter(None, (torch.nccl_library, *torch.nccl_on_path, *mapped))}
    if len(copies) > 1:
        yield warn(
            f"there are {len(copies)} copies of NCCL in the way of torch on {HERE}",
            seen="\n".join(
                [f"with torch: {torch.nccl_library or 'none'}"]
                + [f"by LD_LIBRARY_PATH or LD_PRELOAD: {path}" for path in torch.nccl_on_path[:4]]
                + [f"loaded: {path}" for path in mapped[:4]]
            ),
            expected="the copy that torch came with, on every host",
            hint="take the other one's folder out of LD_LIBRARY_PATH, in --setup",
        )


def runs_on(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Return whether code for ``architectures`` runs on a GPU of this compute capability.

    Binary code runs on its own major version from its minor one on, PTX on everything newer, and
    what has a suffix on exactly its own (CUDA C++ Programming Guide, compute capabilities).
    """
    for found in filter(None, map(_ARCHITECTURE.fullmatch, architectures)):
        kind, suffix, version = found[1], found[4], (int(found[2]), int(found[3]))
        newer = not suffix and version <= capability
        if version == capability or (newer and (kind == "compute" or version[0] == capability[0])):
            return True
    return False


JUDGES = (judge_meeting, judge_places, judge_values, judge_end)


def _judge_job(kind: type[CollFacts], mend: str, *rows: tuple[str, str, str]) -> tuple[Rule, ...]:
    """Return the checks of one job, of each row: name, fault, remedy.

    ``mend`` is the remedy if its ranks have wrong numbers.
    """

    def judge_by(judge: Callable[[CheckedJob], RuleResults]) -> Judge:
        return lambda view: judge(CheckedJob(kind, view, mend))

    return tuple(
        Rule(name, "coll", Level.STANDARD, (kind,), catches, hint, judge_by(judge))
        for judge, (name, catches, hint) in zip(JUDGES, rows, strict=True)
    )


NOT_MET = "See the findings of net.* and os.hostname_bindable."
CRASHED = "Look at the rank's last lines."

TORCH_RULES = _judge_job(
    CollFacts,
    "look at the variables RANK and WORLD_SIZE that the ranks get",
    (
        "coll.init",
        "Ranks that do not meet; names those that did not arrive, within seconds.",
        NOT_MET,
    ),
    (
        "coll.rank_size",
        "Ranks that are not who they should be: world size 1 everywhere, a rank twice.",
        "Look at the variables RANK and WORLD_SIZE of the hosts.",
    ),
    (
        "coll.correct",
        "Wrong sums, and collectives that hang from some size on (MTU, locked memory).",
        "Take the host out; for a hang, look at the size at which it began.",
    ),
    ("coll.ending", "Ranks that crash when the group is taken down.", CRASHED),
)
HOROVOD_RULES = _judge_job(
    HorovodCollFacts,
    "look at the variables HOROVOD_RANK and HOROVOD_SIZE: does --setup change them?",
    (
        "horovod.init",
        "Horovod's ranks, started as `run --launcher horovod` starts them, do not meet; names the missing.",
        NOT_MET,
    ),
    (
        "horovod.rank_size",
        "Horovod's rank, size, local and cross rank are not as planned: every rank has local_rank 0.",
        "Look at the HOROVOD_* variables of the hosts.",
    ),
    (
        "horovod.correct",
        "Wrong sums by Horovod, and collectives of it that hang.",
        "Rebuild Horovod against the torch that is there.",
    ),
    ("horovod.ending", "Ranks that crash in hvd.shutdown().", CRASHED),
)

MPI_RULES = _judge_job(
    MpiCollFacts,
    "look at the variables OMPI_*, PRTE_*, PMIX_*, PMI_*, HYDRA_* and I_MPI_* of the hosts: does --setup "
    "change them?",
    (
        "mpi.launch",
        "mpirun, as `run --launcher mpi` starts it (no ssh between hosts), does not start its ranks: "
        "no daemon on the PATH, MPIs that differ, a network that does not lead back.",
        "Put one MPI first on the PATH of every host by --setup.",
    ),
    (
        "mpi.rank_size",
        "MPI says size 1 everywhere, or a linked program would: the library is another MPI's than mpirun.",
        "Put the right MPI first on PATH and LD_LIBRARY_PATH.",
    ),
    (
        "mpi.correct",
        "Wrong sums by MPI, and an all-reduce that hangs (docker0's address on several hosts).",
        "Include the real network by its subnet: btl_tcp_if_include.",
    ),
    ("mpi.ending", "Ranks that crash in MPI_Finalize.", CRASHED),
)

MPI_HINTS = {
    r"\b(?:orted|prted|hydra_pmi_proxy)\b.*(?:not found|No such file)": "the daemon is not on the PATH that ssh gives: move the export of PATH to the top of "
    "~/.bashrc, or mpirun --prefix",
    "exchange_identification: Connection closed": "an sshd dropped the connection before its version, as for a penalty "
    "(PerSourcePenalties) or when too many log in (MaxStartups); its log says: journalctl -u ssh | grep 'drop connection'",
    "unable to launch the specified application": "the same Python at the same path on all hosts",
}


@hint("Move the export of PATH above the interactive guard of ~/.bashrc, or mpirun --prefix.")
@host_rule("mpi.ssh", "coll", Level.STANDARD, MpiSshFacts)
def _mpi(host: HostView) -> RuleResults:
    """A plain mpirun over ssh, where the first host reaches all others so, that does not start its ranks."""
    facts = host.of(MpiSshFacts)
    places = sorted((group.get("rank"), group.get("world_size")) for group in facts.groups)
    size, text = len(facts.hosts), "\n".join(facts.said)
    met = places == [(rank, size) for rank in range(size)] and facts.exit_code == 0
    if met or not size:
        return
    reason = next((line for line in facts.said if not line.startswith(" ")), "")
    if {world for _, world in places} == {1}:
        reason = "every rank says size 1"
    elif facts.exit_code is None:
        reason = reason or "it did not end in time"
    yield warn(
        f"a plain mpirun over ssh on {host} does not start one rank on each of {size} hosts: "
        f"{reason or f'exit code {facts.exit_code}'}",
        facts.hosts,
        seen="\n".join((f"ranks: {places}", *facts.said)),
        expected=f"ranks 0 to {size - 1} of {size}",
        hint=next(
            (hint for words, hint in MPI_HINTS.items() if re.search(words, text)), NEEDED_BY
        ),
    )
