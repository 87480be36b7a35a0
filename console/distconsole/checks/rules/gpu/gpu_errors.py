"""The check of group ``gpu`` on the errors that the kernel's log has of GPUs and NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.checks.engine.rule import Said, Unjudged, fail, hint, info, rule, warn
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.host import KernelEvent, KernelFacts
from distconsole.checks.facts.node import GpuFacts
from distconsole.checks.rules.gpu.xids import fatal, xid
from distconsole.checks.rules.system.kernel_log import unreadable
from distconsole.model.findings import Severity
from distconsole.model.requests import Level
from distconsole.model.time_text import age_text

DAY_SECONDS = 24 * 3600.0

_GRADES = {Severity.FAIL: fail, Severity.WARN: warn, Severity.INFO: info}


@rule("gpu.xid", "gpu", Level.STANDARD, KernelFacts)
@hint(
    "Reset, reboot or replace, as NVIDIA's catalog says for the number; 13, 31 and 43 come from programs."
)
def _xid(view: View) -> Iterator[Said]:
    """Xid and SXid errors in the kernel's log: a GPU that fell off the bus, bad memory, a bad NVLink."""
    gpus = view.of(GpuFacts)
    without = tuple(
        name
        for name in view.of(KernelFacts)
        if name not in gpus or not (gpus[name].present or gpus[name].devices)
    )
    yield Unjudged(without, "no GPU")
    yield from unreadable(view)
    for name, facts in view.of(KernelFacts).items():
        told = {each.on for each in facts.events if each.kind == "xid" and each.code == 79}
        for event in facts.events:
            # The driver writes of a GPU that fell off the bus twice, with the Xid and without.
            if event.kind in ("xid", "sxid") or (event.kind == "off_bus" and event.on not in told):
                yield _xid_told(name, event)


def _xid_told(name: str, event: KernelEvent) -> Said:
    times = f"{event.count} times, last " if event.count > 1 else ""
    when = f"{times}{age_text(event.age_seconds)} ago"
    fresh = event.age_seconds < DAY_SECONDS
    if event.kind == "sxid":
        grade = (fail if fresh else warn) if fatal(event.text) else info
        return grade(
            f"NVSwitch {event.on} of {name} reported SXid {event.code}, {when}",
            (name,),
            seen=event.text,
            expected="no fatal error of an NVSwitch",
            hint="after a fatal one: end what uses the GPUs, sudo nvidia-smi -r (all GPUs and switches), "
            "sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager names the port",
        )
    if event.kind == "off_bus":
        return fail(
            f"GPU {event.on} of {name} fell off the bus, {when}",
            (name,),
            seen=event.text,
            hint=xid(79).remedy.value,
        )
    known = xid(event.code, event.text)
    grade = _GRADES[known.severity] if fresh or known.severity is Severity.INFO else warn
    return grade(
        f"GPU {event.on} of {name} reported Xid {event.code}, {when}: {known.meaning}",
        (name,),
        seen=event.text,
        expected="no Xid that hardware causes",
        hint=known.remedy.value,
    )


RULES = (_xid,)
