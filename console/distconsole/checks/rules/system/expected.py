"""Checks of group ``expect``: hosts against what the configuration's ``[expect]`` says of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from distconsole.checks.engine.rule import (
    Judge,
    NotApplicable,
    Rule,
    RuleResults,
    fail,
)
from distconsole.checks.facts.evidence import View
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
from distconsole.checks.rules.wording import name_hosts, size
from distconsole.model.expectation import CollectiveExpectation, Expectation
from distconsole.model.reports import CollectiveReport
from distconsole.model.requests import Level

GROUP = "expect"
MAX_LISTED = 8
SHM_PATH = "/dev/shm"  # noqa: S108 - the name of a fact

Miss = tuple[str, str, str]
"""What was looked at, what is there, and what is expected."""


def expects(expected: Expectation, names: Sequence[str]) -> bool:
    """Whether one of these attributes is expected to be something."""
    return any(getattr(expected, name) not in (None, (), {}) for name in names)


def report_misses(misses: Mapping[str, Sequence[Miss]], hint: str) -> RuleResults:
    """Yield one finding for all hosts that miss the same in the same way."""
    alike: dict[tuple[Miss, ...], list[str]] = {}
    for name, found in misses.items():
        if found:
            alike.setdefault(tuple(found), []).append(name)
    for found, names in alike.items():
        what, there, wanted = found[0]
        more = f", and {len(found) - 1} more" if found[1:] else ""
        yield fail(
            f"{name_hosts(names)}: {what} is {there}, expected {wanted}{more}",
            names,
            seen="\n".join(f"{each[0]}: {each[1]}" for each in found[:MAX_LISTED]),
            expected="\n".join(f"{each[0]}: {each[2]}" for each in found[:MAX_LISTED]),
            hint=hint,
        )


def on_expecting(names: Sequence[str], judge: Judge) -> Judge:
    """Return ``judge`` for the hosts of which one of ``names`` is expected; the others are said."""

    def judged(view: View) -> RuleResults:
        without = tuple(
            host.name for host in view.hosts if not expects(view.expectation(host.name), names)
        )
        yield NotApplicable("nothing of it is expected in the configuration", without)
        yield from judge(view)

    return judged


def version_miss(what: str, there: str | None, wanted: str | None) -> list[Miss]:
    """Return what is wrong with a version, if anything; one that is no version fits nothing."""
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - most expect nothing
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415

    if wanted is None:
        return []
    try:
        well = bool(there) and SpecifierSet(wanted).contains(
            Version(there or ""), prereleases=True
        )
    except InvalidVersion:
        well = False
    return [] if well else [(what, there or "none", wanted)]


def _least(
    what: str,
    there: float | None,
    wanted: float | None,
    told: Callable[[float], str],
) -> list[Miss]:
    """``there`` may be infinite, for no limit; None where it is not known."""
    if wanted is None or (there is not None and there >= wanted):
        return []
    return [(what, "unknown" if there is None else told(there), f"{told(wanted)} or more")]


def _bytes(value: float) -> str:
    return "unlimited" if math.isinf(value) else size(int(value))


def _count(value: float) -> str:
    return "unlimited" if math.isinf(value) else str(int(value))


def _python(view: View) -> RuleResults:
    facts, misses = view.of(PythonFacts), {}
    for name, found in facts.items():
        expected = view.expectation(name)
        misses[name] = version_miss("Python", found.version, expected.python)
        for package, wanted in expected.packages.items():
            there = found.packages.get(re.sub(r"[-_.]+", "-", package).lower())
            misses[name] += version_miss(package, there, wanted)
    yield from report_misses(misses, "pip install 'PACKAGE…' on the hosts named, or --python PATH")


def _torch(view: View) -> RuleResults:
    misses = {}
    for name, found in view.of(TorchFacts).items():
        expected = view.expectation(name)
        misses[name] = [
            *version_miss("torch", found.version, expected.torch),
            *version_miss("CUDA of torch", found.cuda, expected.cuda),
            *version_miss("NCCL", found.nccl, expected.nccl),
        ]
    yield from report_misses(misses, "pip install 'torch…' on the hosts named")


def _horovod(view: View) -> RuleResults:
    misses = {
        name: version_miss("Horovod", found.version, view.expectation(name).horovod)
        for name, found in view.of(HorovodFacts).items()
    }
    yield from report_misses(misses, "distconsole setup builds it against the torch there")


def _mpi(view: View) -> RuleResults:
    misses = {
        name: version_miss("MPI", found.version, view.expectation(name).mpi)
        for name, found in view.of(MpiFacts).items()
    }
    yield from report_misses(misses, "put the right mpirun first on PATH by --setup")


def _gpu(view: View) -> RuleResults:
    misses: dict[str, list[Miss]] = {}
    for name, found in view.of(GpuFacts).items():
        expected = view.expectation(name)
        misses[name] = version_miss("driver", found.driver, expected.driver)
        if expected.gpus is not None and found.count != expected.gpus:
            misses[name].append(("number of GPUs", str(found.count), str(expected.gpus)))
        for gpu in found.gpus:
            wanted = expected.gpu_model
            if wanted is not None and wanted.lower() not in (gpu.name or "").lower():
                misses[name].append((f"GPU {gpu.index}", gpu.name or "unknown", wanted))
            total = None if gpu.mem_total is None else float(gpu.mem_total)
            misses[name] += _least(
                f"memory of GPU {gpu.index}", total, expected.gpu_memory, _bytes
            )
    yield from report_misses(misses, "nvidia-smi; sudo dmesg | grep -i xid")


def _host(view: View) -> RuleResults:
    misses: dict[str, list[Miss]] = {}
    for name, found in view.of(OsFacts).items():
        expected = view.expectation(name)
        total = found.memory.get("total")
        shm = found.filesystems.get(SHM_PATH)
        misses[name] = [
            *_least("number of processors", float(found.cpus), expected.cpus, _count),
            *_least("memory", None if total is None else float(total), expected.memory, _bytes),
            *_least(SHM_PATH, None if shm is None else float(shm.free), expected.shm, _bytes),
            *_least("open files", _limit(found, "nofile"), expected.nofile, _count),
            *_least(
                "memory that may be locked", _limit(found, "memlock"), expected.memlock, _bytes
            ),
        ]
        for path, room in found.filesystems.items():
            if path != SHM_PATH and not room.error:
                free = float(room.free)
                misses[name] += _least(f"room in {path}", free, expected.disk_free, _bytes)
    yield from report_misses(
        misses, "ulimit in --setup for limits; else make room, or expect less"
    )


def _limit(facts: OsFacts, name: str) -> float | None:
    """Return the soft limit; infinity for none, None where it is not known."""
    if name not in facts.limits:
        return None
    soft = facts.limits[name][0]
    return math.inf if soft is None else float(soft)


def _rtt(view: View) -> RuleResults:
    slow: dict[str, list[str]] = {}
    for name, found in view.of(ReachFacts).items():
        most = view.expectation(name).rtt_us
        for edge in found.edges if most is not None else ():
            if edge.rtt_us is not None and most is not None and edge.rtt_us > most:
                slow.setdefault(name, []).append(f"{edge.target} {edge.rtt_us:.0f} us")
    for name, peers in slow.items():
        yield fail(
            f"round trips of {name} take longer than {view.expectation(name).rtt_us:g} us",
            (name,),
            seen=f"to {', '.join(peers[:MAX_LISTED])}",
            expected=f"{view.expectation(name).rtt_us:g} us at most",
            hint=f"on {name}: ethtool NIC; power saving, a busy host, a long way",
        )


def _bandwidth(view: View) -> RuleResults:
    slow: dict[str, list[str]] = {}
    for name, found in view.of(BandwidthFacts).items():
        least = view.expectation(name).pair_gbit_s
        for stream in found.streams if least is not None else ():
            if least is not None and (stream.gbit_s or 0.0) < least:
                told = "none" if stream.gbit_s is None else f"{stream.gbit_s:.3g} Gbit/s"
                slow.setdefault(name, []).append(f"{name} -> {stream.target}: {told}")
    for name, pairs in slow.items():
        yield fail(
            f"{name} sends below {view.expectation(name).pair_gbit_s:g} Gbit/s to {len(pairs)} hosts",
            (name,),
            seen="\n".join(pairs[:MAX_LISTED]),
            expected=f"{view.expectation(name).pair_gbit_s:g} Gbit/s or more",
            hint=f"on {name}: ethtool NIC; tc -s qdisc",
        )


def _collectives(view: View) -> RuleResults:
    timed = collectives_of(view)
    asked = dict.fromkeys(
        entry for host in view.hosts for entry in view.expectation(host.name).collectives
    )
    for entry in asked:
        hosts = [h.name for h in view.hosts if entry in view.expectation(h.name).collectives]
        fitting = [
            each
            for each in timed
            if each.op == entry.op
            and entry.launcher in ("", each.launcher)
            and entry.bytes in (None, each.bytes)
        ]
        if entry.bytes is None and fitting:
            largest = max(each.bytes for each in fitting)
            fitting = [each for each in fitting if each.bytes == largest]
        if not fitting:
            size_told = "" if entry.bytes is None else f" of {size(entry.bytes)}"
            yield NotApplicable(f"{entry.op}{size_told} was not timed at this level", tuple(hosts))
        for each in fitting:
            yield from _slow(entry, each, hosts)


def _slow(
    entry: CollectiveExpectation, timed: CollectiveReport, hosts: Sequence[str]
) -> RuleResults:
    what = f"{timed.op} of {size(timed.bytes)} by {timed.launcher}/{timed.backend}"
    misses: list[Miss] = []
    if entry.busbw_gbs is not None and timed.busbw_gbs < entry.busbw_gbs:
        misses.append(
            ("busbw", f"{timed.busbw_gbs:.3g} GB/s", f"{entry.busbw_gbs:g} GB/s or more")
        )
    if entry.time_us is not None and timed.time_us > entry.time_us:
        misses.append(("time", f"{timed.time_us:.0f} us", f"{entry.time_us:g} us at most"))
    for name, there, wanted in misses:
        yield fail(
            f"{what}: {name} {there}, expected {wanted}",
            hosts,
            hint="distconsole check --level full finds the slow pair or host",
        )


def _rule(
    name: str,
    level: Level,
    kind: type[Facts],
    keys: tuple[str, ...],
    judge: Judge,
    catches: str,
    after: tuple[type[Facts], ...] = (),
) -> tuple[Rule, tuple[str, ...]]:
    told = ", ".join(keys)
    rule = Rule(
        f"expect.{name}",
        GROUP,
        level,
        (kind,),
        catches,
        f"[expect] in distconsole.toml: {told}.",
        on_expecting(keys, judge),
        after,
    )
    return rule, keys


_ALL = (
    _rule("python", Level.QUICK, PythonFacts, ("python", "packages"), _python,
          "Another Python, or another version of a package, than the configuration expects."),
    _rule("torch", Level.QUICK, TorchFacts, ("torch", "cuda", "nccl"), _torch,
          "Another torch, CUDA or NCCL than the configuration expects."),
    _rule("horovod", Level.QUICK, HorovodFacts, ("horovod",), _horovod,
          "Another Horovod than the configuration expects, or none."),
    _rule("mpi", Level.QUICK, MpiFacts, ("mpi",), _mpi,
          "Another MPI than the configuration expects, or none."),
    _rule("gpu", Level.QUICK, GpuFacts, ("gpus", "gpu_model", "gpu_memory", "driver"), _gpu,
          "GPUs that are missing, of another model or with less memory, another driver."),
    _rule("host", Level.QUICK, OsFacts, ("cpus", "memory", "shm", "disk_free", "nofile", "memlock"),
          _host, "Fewer processors, less memory or room, lower limits than the configuration expects."),
    _rule("rtt", Level.QUICK, ReachFacts, ("rtt_us",), _rtt,
          "Round trips that take longer than the configuration allows."),
    _rule("collectives", Level.STANDARD, CollFacts, ("collectives",), _collectives,
          "Collectives below the bus bandwidth, or above the time, that the configuration expects.",
          (HorovodCollFacts, MpiCollFacts)),
    _rule("bandwidth", Level.FULL, BandwidthFacts, ("pair_gbit_s",), _bandwidth,
          "Pairs below the bandwidth that the configuration expects."),
)  # fmt: skip

RULES: tuple[Rule, ...] = tuple(rule for rule, _ in _ALL)
KEYS: Mapping[str, tuple[str, ...]] = {rule.id: keys for rule, keys in _ALL}
"""By check what has to be expected for it to have something to say."""
