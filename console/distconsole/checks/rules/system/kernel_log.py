"""Checks of what the kernel's log has, of the machine (group ``os``) and of GPUs and NVSwitches (group ``gpu``).

Numbers, meanings and immediate actions are those of NVIDIA's Xid catalog for A100, H100, B100 and
GB200 (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), in our words; numbers that it
calls unused are left out. What SXid lines say of themselves: Fabric Manager User Guide, appendix D.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from distconsole.checks.engine.results import Grade, NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, only_where, rule
from distconsole.checks.facts.evidence import View, by_key
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.node import KernelEvent, KernelFacts
from distconsole.checks.rules.wording import MAX_LISTED, name_hosts
from distconsole.model.findings import Finding
from distconsole.model.requests import Level
from distconsole.model.time_text import DAY_SECONDS, age_text

HOUR_SECONDS = 3600.0

_KINDS: dict[str, tuple[str, float, str]] = {
    "oom": (
        "memory ran out and the kernel ended {on}",
        HOUR_SECONDS,
        "fewer DataLoader workers or less in memory; a rank ended so shows exit code 137",
    ),
    "nfs": (
        "the NFS server {on} does not answer",
        DAY_SECONDS,
        "whatever touches its folders hangs: findmnt -t nfs,nfs4; then the server",
    ),
    "lustre": ("the connection to a Lustre server was lost", HOUR_SECONDS, "lfs check servers"),
    "neighbours": (
        "the neighbour table overflowed",
        DAY_SECONDS,
        "sudo sysctl -w net.ipv4.neigh.default.gc_thresh3=16384",
    ),
    "conntrack": (
        "the firewall's table of connections was full and it dropped packets",
        DAY_SECONDS,
        "sudo sysctl -w net.netfilter.nf_conntrack_max=1048576",
    ),
    "syn_flood": (
        "more connections came at once than may wait on port {on}",
        HOUR_SECONDS,
        "sudo sysctl -w net.core.somaxconn=4096",
    ),
    "hung": (
        "{on} was stuck in the kernel for minutes",
        HOUR_SECONDS,
        "the log names the function: a filesystem, a disk or a driver that does not answer",
    ),
    "hardware": ("the hardware reported an error", DAY_SECONDS, "sudo ras-mc-ctl --errors"),
    "pcie": ("the PCIe port {on} reported an error", DAY_SECONDS, "lspci -tv; reseat the card"),
    "disk": ("the disk or filesystem {on} failed", DAY_SECONDS, "smartctl -a; findmnt"),
    "link": ("the network link {on} went down", HOUR_SECONDS, "ethtool {on}; another cable"),
    "heat": ("a processor was too hot and slowed down", HOUR_SECONDS, "fans, inlet air"),
}
"""Kind of line -> its meaning, how long it matters, and the remedy."""


unless_unreadable = only_where(
    lambda host: host.of(KernelFacts).source, "the kernel's log is not readable for this user"
)


@hint("The finding has the line and what to do.")
@rule("os.kernel_log", "os", Level.STANDARD, KernelFacts, unless=unless_unreadable)
def _log(view: View) -> RuleResults:
    """What the kernel noted in the last hours: memory that ran out, NFS servers that do not answer, full tables, failing disks and links."""
    facts_of = view.of(KernelFacts)
    alike = by_key(
        ((event.kind, event.on), (name, event))
        for name, facts in facts_of.items()
        for event in facts.events[-MAX_LISTED:]
        if event.kind in _KINDS and event.age_seconds <= _KINDS[event.kind][1]
    )
    for (kind, where), pairs in alike.items():
        events, (meaning, _, mend), on = dict(pairs), _KINDS[kind], where or "a program"
        last = min(events.values(), key=lambda event: event.age_seconds)
        times = f", {last.count} times" if last.count > 1 else ""
        first = next(iter(events))
        source = "dmesg" if facts_of[first].source == "kmsg" else "journalctl -k"
        yield warn(
            f"on {name_hosts(list(events))} {meaning.format(on=on)}, "
            f"{age_text(last.age_seconds)} ago{times}",
            events,
            seen=f"{source}: {events[first].text}",
            hint=mend.format(on=on),
        )


@hint(
    "Reset, reboot or replace, as NVIDIA's catalog says for the number; 13, 31 and 43 come from programs."
)
@host_rule("gpu.xid", "gpu", Level.STANDARD, KernelFacts, unless=unless_unreadable)
def _xid(host: HostView) -> RuleResults:
    """Xid and SXid errors in the kernel's log: a GPU that fell off the bus, bad memory, a bad NVLink."""
    gpus, events = host.find(GpuFacts), host.of(KernelFacts).events
    if gpus is None or not (gpus.present or gpus.devices):
        yield NotApplicable("no GPU")
    told = {each.on for each in events if each.kind == "xid" and each.code == 79}
    for event in events:
        # The driver writes of a GPU that fell off the bus twice, with the Xid and without.
        if event.kind in ("xid", "sxid") or (event.kind == "off_bus" and event.on not in told):
            yield _report_xid(host, event)


def _report_xid(host: HostView, event: KernelEvent) -> Finding:
    times = f"{event.count} times, last " if event.count > 1 else ""
    when = f"{times}{age_text(event.age_seconds)} ago"
    fresh = event.age_seconds < DAY_SECONDS
    if event.kind == "sxid":
        grade = (fail if fresh else warn) if fatal(event.text) else info
        return grade(
            f"NVSwitch {event.on} of {host} reported SXid {event.code}, {when}",
            seen=event.text,
            expected="no fatal error of an NVSwitch",
            hint="after a fatal one: end what uses the GPUs, sudo nvidia-smi -r (all GPUs and switches), "
            "sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager names the port",
        )
    if event.kind == "off_bus":
        return fail(
            f"GPU {event.on} of {host} fell off the bus, {when}",
            seen=event.text,
            hint=xid(79).remedy.value,
        )
    known = xid(event.code, event.text)
    return (known.grade if fresh or known.grade is info else warn)(
        f"GPU {event.on} of {host} reported Xid {event.code}, {when}: {known.meaning}",
        seen=event.text,
        expected="no Xid that hardware causes",
        hint=known.remedy.value,
    )


class Remedy(StrEnum):
    """Who has something to do; the catalog's immediate actions."""

    PROGRAM = "look at the program (compute-sanitizer names the line): the GPU itself is healthy"
    SYMPTOM = "nothing of itself: look at the error before it"
    WATCH = "nothing yet; where it comes again: dcgmi diag -r 3, and the vendor"
    RESTART = "start the program again; where it comes again on this GPU: dcgmi diag -r 3"
    LATER = (
        "start the program again; reset the GPU when that is convenient: sudo nvidia-smi -r -i GPU"
    )
    VENDOR = "jobs may go on; tell the vendor: the GPU has no spare part left for this"
    RESET = (
        "end what uses the GPU, then: sudo nvidia-smi -r -i GPU, or reboot; "
        "where it comes again: dcgmi diag -r 3, and the vendor"
    )
    LINK = (
        "end what uses the GPUs, then: sudo nvidia-smi -r, or reboot; nvidia-smi nvlink -e names the "
        "link, and the cause may be the GPU or switch at its other end"
    )
    DRAIN = "end what uses this GPU and its NVLink peers, then: sudo nvidia-smi -r"
    REBOOT = (
        "restart the machine, by power if need be; where it comes again, reseat or replace the GPU"
    )
    MECHANICS = "connect the GPU's auxiliary power cable"
    REPLACE = (
        "drain the host; sudo nvidia-smi -r -i GPU; where it comes again, have the GPU replaced: "
        "dcgmi diag -r 3 gives the evidence"
    )
    MACHINE = "restart the machine, in a virtual one the guest"


WARNINGS = (Remedy.LATER, Remedy.VENDOR)
NOTES = (Remedy.PROGRAM, Remedy.SYMPTOM, Remedy.WATCH, Remedy.RESTART)
"""All others need repair before the host gets a job."""


@dataclass(frozen=True, slots=True)
class Xid:
    meaning: str
    remedy: Remedy

    @property
    def grade(self) -> Grade:
        """How much a job has to fear of it, when it was reported just now."""
        return warn if self.remedy in WARNINGS else info if self.remedy in NOTES else fail


_COPY = Xid("an exception in a copy engine", Remedy.RESTART)
_VIDEO = Xid("an exception in a video or image decoder", Remedy.RESTART)
_STREAM = Xid("an invalid or corrupted stream of commands", Remedy.PROGRAM)
_NVLINK5 = "an error of an NVLink"

XIDS: dict[int, Xid] = {
    8: Xid("the GPU stopped processing for a program", Remedy.RESTART),
    11: _STREAM,
    13: Xid("an exception in a kernel, as by an access out of bounds", Remedy.PROGRAM),
    25: _STREAM,
    31: Xid("a GPU page fault: an illegal address in a kernel", Remedy.PROGRAM),
    32: Xid("a corrupted stream of commands, mostly by a bad PCIe link", Remedy.RESTART),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _COPY),
    43: Xid("a program ran into a fault of its own and was ended", Remedy.PROGRAM),
    45: Xid("the GPU's work for a program was cleared away, after its end", Remedy.SYMPTOM),
    46: Xid("the GPU stopped processing", Remedy.RESET),
    48: Xid("an uncorrectable memory error", Remedy.RESET),
    54: Xid("its auxiliary power is not connected", Remedy.MECHANICS),
    62: Xid("its microcontroller halted", Remedy.RESET),
    63: Xid("a row of its memory is remapped, or will be at the next reset", Remedy.WATCH),
    64: Xid("a row of its memory could not be remapped", Remedy.REPLACE),
    **dict.fromkeys((60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142), _VIDEO),
    69: Xid("an exception in a kernel's class of commands", Remedy.PROGRAM),
    74: Xid(_NVLINK5, Remedy.LINK),
    79: Xid("the GPU fell off the bus", Remedy.REBOOT),
    80: Xid("corrupted data was sent to it", Remedy.RESTART),
    92: Xid("many corrected memory errors", Remedy.WATCH),
    94: Xid("an uncorrectable memory error that ended one program only", Remedy.LATER),
    95: Xid("an uncorrectable memory error that hit several programs", Remedy.RESET),
    109: Xid("it did not switch between programs in time", Remedy.RESET),
    110: Xid("a security fault, rare unless its hardware fails", Remedy.RESET),
    119: Xid("its system processor (GSP) does not answer", Remedy.RESET),
    120: Xid("its system processor (GSP) failed", Remedy.RESET),
    121: Xid("a corrected error of the link to the Grace processor", Remedy.WATCH),
    136: Xid("an NVLink failed in training", Remedy.LINK),
    137: Xid("an illegal access over NVLink to another GPU's memory", Remedy.PROGRAM),
    140: Xid("an uncorrectable memory error that could not be taken out of use", Remedy.RESET),
    143: Xid("its initialisation failed", Remedy.RESET),
    **dict.fromkeys(range(144, 151), Xid(_NVLINK5, Remedy.LINK)),
    151: Xid("the rotation of its keys failed (confidential computing)", Remedy.MACHINE),
    154: Xid("the driver says what brings the GPU back", Remedy.SYMPTOM),
    155: Xid("an NVLink was taken down on purpose", Remedy.LINK),
    156: Xid("a bad part of it is taken out of use at the next reset", Remedy.RESET),
    157: Xid("a bad part of it could not be taken out of use", Remedy.VENDOR),
    158: Xid("it did not answer in time", Remedy.RESET),
    163: Xid("its power smoothing is off", Remedy.WATCH),
    164: Xid("its power smoothing is nearly worn out", Remedy.WATCH),
    165: Xid("its power smoothing is worn out", Remedy.WATCH),
    168: Xid("it has less memory, as its ECC is off and errors were found", Remedy.WATCH),
    171: Xid("an uncorrectable error in its DRAM (with Xid 48)", Remedy.SYMPTOM),
    172: Xid("an uncorrectable error in its SRAM (with Xid 48)", Remedy.SYMPTOM),
}
UNKNOWN = Xid("see NVIDIA's table of Xid errors", Remedy.WATCH)

_RECOVERY = re.compile(r"recovery action changed.* to 0x(?P<action>[0-9a-f]+)", re.IGNORECASE)
_RECOVERIES = {
    "0": Xid("the driver says that the GPU can be used again", Remedy.SYMPTOM),
    "1": Xid("the driver says that the GPU needs a reset", Remedy.RESET),
    "2": Xid("the driver says that the machine needs a reboot", Remedy.REBOOT),
    "3": Xid("the driver says that all its peer-to-peer traffic must end", Remedy.DRAIN),
    "4": Xid("the driver says that its programs must end, then a reset", Remedy.DRAIN),
}
"""Xid 154 by nvml.h's nvmlDeviceGpuRecoveryAction_t, which the line has in words, too."""


def xid(number: int | None, line: str = "") -> Xid:
    if number == 154 and (found := _RECOVERY.search(line)):
        return _RECOVERIES.get(found["action"], XIDS[154])
    if number in range(144, 151) and "fatal" in line.lower() and not fatal(line):
        return Xid(f"{_NVLINK5}, not fatal", Remedy.WATCH)
    return XIDS.get(number or 0, UNKNOWN)


def fatal(line: str) -> bool:
    """Whether a line of an NVLink or NVSwitch calls its error fatal."""
    return re.search(r"(?<!non)(?<!non-)\bfatal\b", line, re.IGNORECASE) is not None
