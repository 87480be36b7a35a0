"""Checks of group ``expect``: hosts against the configuration's ``[expect]``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail
from distconsole.checks.engine.rule import HostJudge, HostView, Rule, hint, host_rule
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.jobs import CollFacts, HorovodCollFacts, MpiCollFacts
from distconsole.checks.facts.network import BandwidthFacts, ReachFacts
from distconsole.checks.facts.node import (
    Facts,
    HorovodFacts,
    MpiFacts,
    OsFacts,
    PythonFacts,
    TorchFacts,
)
from distconsole.checks.gather.timings import collectives_of
from distconsole.checks.rules.wording import list_some, size
from distconsole.model.expectation import CollectiveExpectation, Expectation
from distconsole.model.names import join_some
from distconsole.model.reports import CollectiveReport
from distconsole.model.requests import Level

SHM_PATH = "/dev/shm"  # noqa: S108 - the name of a fact

Miss = tuple[str, str, str]
"""The subject, the value there, and the expected one."""


def expects(expected: Expectation, names: Sequence[str]) -> bool:
    return any(getattr(expected, name) not in (None, (), {}) for name in names)


KEYS: dict[str, tuple[str, ...]] = {}
"""By check what has to be expected for it to have something to say."""


def _expect(
    name: str,
    kind: type[Facts],
    *keys: str,
    level: Level = Level.QUICK,
    after: tuple[type[Facts], ...] = (),
) -> Callable[[HostJudge], Rule]:
    """Make a rule of the judge of hosts with an expectation of one of ``keys``."""

    def unless(host: HostView) -> NotApplicable | None:
        if expects(host.expected, keys):
            return None
        return NotApplicable("nothing of it is expected in the configuration")

    KEYS[f"expect.{name}"] = keys
    add_hint = hint(f"[expect] in distconsole.toml: {', '.join(keys)}.")
    make = host_rule(f"expect.{name}", "expect", level, kind, after=after, unless=unless)
    return lambda judge: add_hint(make(judge))


def _report_misses(misses: Sequence[Miss], hint: str) -> RuleResults:
    if misses:
        what, there, wanted = misses[0]
        more = f", and {len(misses) - 1} more" if misses[1:] else ""
        yield fail(
            f"{HERE}: {what} is {there}, expected {wanted}{more}",
            seen=list_some([f"{each[0]}: {each[1]}" for each in misses]),
            expected=list_some([f"{each[0]}: {each[2]}" for each in misses]),
            hint=hint,
        )


def _version_miss(what: str, there: str | None, wanted: str | None) -> list[Miss]:
    """Return the mismatch of a version, if any; a malformed one fits nothing."""
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - most expect nothing
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415

    if wanted is None:
        return []
    try:
        well = SpecifierSet(wanted).contains(Version(there or ""), prereleases=True)
    except InvalidVersion:
        well = False
    return [] if well else [(what, there or "none", wanted)]


def _least(
    what: str, there: float | None, wanted: float | None, show: Callable[[int], str] = size
) -> list[Miss]:
    if wanted is None or (there is not None and there >= wanted):
        return []
    least = "unlimited" if math.isinf(wanted) else show(int(wanted))
    return [(what, "unknown" if there is None else show(int(there)), f"{least} or more")]


@_expect("python", PythonFacts, "python", "packages")
def _python(host: HostView) -> RuleResults:
    """Another Python, or another version of a package, than the configuration expects."""
    found, expected = host.of(PythonFacts), host.expected
    misses = _version_miss("Python", found.version, expected.python)
    for package, wanted in expected.packages.items():
        there = found.packages.get(re.sub(r"[-_.]+", "-", package).lower())
        misses += _version_miss(package, there, wanted)
    hint = "pip install 'PACKAGE…' on the hosts named, or --python PATH"
    yield from _report_misses(misses, hint)


@_expect("torch", TorchFacts, "torch", "cuda", "nccl")
def _torch(host: HostView) -> RuleResults:
    """Another torch, CUDA or NCCL than the configuration expects."""
    found, expected = host.of(TorchFacts), host.expected
    misses = _version_miss("torch", found.version, expected.torch)
    misses += _version_miss("CUDA of torch", found.cuda, expected.cuda)
    misses += _version_miss("NCCL", found.nccl, expected.nccl)
    yield from _report_misses(misses, "pip install 'torch…' on the hosts named")


@_expect("horovod", HorovodFacts, "horovod")
def _horovod(host: HostView) -> RuleResults:
    """Another Horovod than the configuration expects, or none."""
    misses = _version_miss("Horovod", host.of(HorovodFacts).version, host.expected.horovod)
    yield from _report_misses(misses, "distconsole setup builds it against the torch there")


@_expect("mpi", MpiFacts, "mpi")
def _mpi(host: HostView) -> RuleResults:
    """Another MPI than the configuration expects, or none."""
    misses = _version_miss("MPI", host.of(MpiFacts).version, host.expected.mpi)
    yield from _report_misses(misses, "put the right mpirun first on PATH by --setup")


@_expect("gpu", GpuFacts, "gpus", "gpu_model", "gpu_memory", "driver")
def _gpu(host: HostView) -> RuleResults:
    """GPUs that are missing, of another model or with less memory, another driver."""
    found, expected = host.of(GpuFacts), host.expected
    misses = _version_miss("driver", found.driver, expected.driver)
    if expected.gpus is not None and found.count != expected.gpus:
        misses.append(("number of GPUs", str(found.count), str(expected.gpus)))
    for gpu in found.gpus:
        wanted = expected.gpu_model
        if wanted is not None and wanted.lower() not in (gpu.name or "").lower():
            misses.append((f"GPU {gpu.index}", gpu.name or "unknown", wanted))
        misses += _least(f"memory of GPU {gpu.index}", gpu.mem_total, expected.gpu_memory)
    yield from _report_misses(misses, "nvidia-smi; sudo dmesg | grep -i xid")


@_expect("host", OsFacts, "cpus", "memory", "shm", "disk_free", "nofile", "memlock")
def _host(host: HostView) -> RuleResults:
    """Fewer processors, less memory or room, lower limits than the configuration expects."""
    found, expected = host.of(OsFacts), host.expected
    shm = found.filesystems.get(SHM_PATH)
    misses = [
        *_least("number of processors", found.cpus, expected.cpus, str),
        *_least("memory", found.memory.get("total"), expected.memory),
        *_least(SHM_PATH, None if shm is None else shm.free, expected.shm),
        *_least("open files", _limit(found, "nofile"), expected.nofile, str),
        *_least("memory that may be locked", _limit(found, "memlock"), expected.memlock),
    ]
    for path, room in found.filesystems.items():
        if path != SHM_PATH and not room.error:
            misses += _least(f"room in {path}", room.free, expected.disk_free)
    hint = "ulimit in --setup for limits; else make room, or expect less"
    yield from _report_misses(misses, hint)


def _limit(facts: OsFacts, name: str) -> float | None:
    """Return the soft limit; infinity for none, None if unknown."""
    if name not in facts.limits:
        return None
    soft = facts.limits[name][0]
    return math.inf if soft is None else float(soft)


@_expect("rtt", ReachFacts, "rtt_us")
def _rtt(host: HostView) -> RuleResults:
    """Round trips that take longer than the configuration allows."""
    most = host.expected.rtt_us or 0.0
    times = [(edge.target, edge.rtt_us or 0.0) for edge in host.of(ReachFacts).edges]
    slow = [f"{peer} {rtt_us:.0f} us" for peer, rtt_us in times if rtt_us > most]
    if slow:
        yield fail(
            f"round trips of {host} take longer than {most:g} us",
            seen=f"to {join_some(slow)}",
            expected=f"{most:g} us at most",
            hint=f"on {host}: ethtool NIC; power saving, a busy host, a long way",
        )


@_expect(
    *("collectives", CollFacts, "collectives"),
    level=Level.STANDARD,
    after=(HorovodCollFacts, MpiCollFacts),
)
def _collectives(host: HostView) -> RuleResults:
    """Collectives below the bus bandwidth, or above the time, that the configuration expects."""
    timed = collectives_of(host.view)
    for entry in host.expected.collectives:
        fitting = [
            each
            for each in timed
            if each.op == entry.op
            and entry.launcher in ("", each.launcher)
            and entry.bytes in (None, each.bytes)
        ]
        if not fitting:
            what = "" if entry.bytes is None else f" of {size(entry.bytes)}"
            yield NotApplicable(f"{entry.op}{what} was not timed at this level")
        largest = max((each.bytes for each in fitting), default=0)
        for each in fitting:
            if each.bytes == largest:
                yield from _slow(entry, each)


def _slow(entry: CollectiveExpectation, timed: CollectiveReport) -> RuleResults:
    misses: list[Miss] = []
    if entry.busbw_gbs is not None and timed.busbw_gbs < entry.busbw_gbs:
        wanted = f"{entry.busbw_gbs:g} GB/s or more"
        misses.append(("busbw", f"{timed.busbw_gbs:.3g} GB/s", wanted))
    if entry.time_us is not None and timed.time_us > entry.time_us:
        misses.append(("time", f"{timed.time_us:.0f} us", f"{entry.time_us:g} us at most"))
    for name, there, wanted in misses:
        yield fail(
            f"{timed.op} of {size(timed.bytes)} by {timed.launcher}/{timed.backend}: {name} {there}, "
            f"expected {wanted}",
            hint="distconsole check --level full finds the slow pair or host",
        )


@_expect("bandwidth", BandwidthFacts, "pair_gbit_s", level=Level.FULL)
def _bandwidth(host: HostView) -> RuleResults:
    """Pairs below the bandwidth that the configuration expects."""
    least = host.expected.pair_gbit_s or 0.0
    slow = [
        f"{host} -> {each.target}: "
        + ("none" if each.gbit_s is None else f"{each.gbit_s:.3g} Gbit/s")
        for each in host.of(BandwidthFacts).streams
        if (each.gbit_s or 0.0) < least
    ]
    if slow:
        yield fail(
            f"{host} sends below {least:g} Gbit/s to {len(slow)} hosts",
            seen=list_some(slow),
            expected=f"{least:g} Gbit/s or more",
            hint=f"on {host}: ethtool NIC; tc -s qdisc",
        )
