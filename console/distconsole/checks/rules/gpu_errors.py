"""The check of group ``gpu`` on the errors that the kernel's log has of GPUs and NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.checks.evidence import View
from distconsole.checks.facts import GpuFacts
from distconsole.checks.host_facts import KernelEvent, KernelFacts
from distconsole.checks.rule import Rule, Said, Unjudged, fail, info, warn
from distconsole.checks.rules.kernel_log import unreadable
from distconsole.checks.wording import age
from distconsole.checks.xids import xid
from distconsole.model.requests import Level

DAY_SECONDS = 24 * 3600.0


def _xid(view: View) -> Iterator[Said]:
    gpus = view.of(GpuFacts)
    without = tuple(
        name
        for name in view.of(KernelFacts)
        if name not in gpus or not (gpus[name].present or gpus[name].devices)
    )
    if without:
        yield Unjudged(without, "no GPU")
    yield from unreadable(view)
    for name, facts in view.of(KernelFacts).items():
        events = [each for each in facts.events if each.kind in ("xid", "sxid", "off_bus")]
        for event in events:
            yield _xid_told(name, event)


def _xid_told(name: str, event: KernelEvent) -> Said:
    times = f"{event.count} times, last " if event.count > 1 else ""
    when = f"{times}{age(event.age_seconds)} ago"
    fresh = event.age_seconds < DAY_SECONDS
    if event.kind == "sxid":
        return (warn if fresh else info)(
            "gpu.xid",
            f"NVSwitch {event.on} of {name} reported SXid {event.code}, {when}",
            (name,),
            seen=event.text,
            hint="systemctl status nvidia-fabricmanager says whether it was fatal; "
            "a fatal one needs a reset of all GPUs and switches",
        )
    if event.kind == "off_bus":
        return fail(
            "gpu.xid",
            f"GPU {event.on} of {name} fell off the bus, {when}",
            (name,),
            seen=event.text,
            hint=xid(79).remedy.value,
        )
    known = xid(event.code)
    severity = (fail if fresh else warn) if known.hardware else info
    return severity(
        "gpu.xid",
        f"GPU {event.on} of {name} reported Xid {event.code}, {when}: {known.meaning}",
        (name,),
        seen=event.text,
        expected="no Xid that hardware causes",
        hint=known.remedy.value,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "gpu.xid",
        "gpu",
        Level.STANDARD,
        (KernelFacts,),
        "Xid and SXid errors in the kernel's log: a GPU that fell off the bus, bad memory, a bad NVLink.",
        "Reset, reboot or replace, by the number; 13, 31, 43 and 45 come from programs.",
        _xid,
    ),
)
