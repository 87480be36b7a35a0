"""Words of the launch form: the hosts, the plan, the last launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET
from rich.text import Text

from distconsole.grammar.secrets import mask_words
from distconsole.launch.plan import PORT, RUN_DIR
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import LaunchKept
from distconsole.model.names import count_text, join_some, ranks_text
from distconsole.model.run_events import GpuSample, NodeSample, PlanMade
from distconsole.model.time_text import date_text
from distconsole.text.tables import Column
from distconsole.tui.launch_form.model import LaunchFormModel, PlanPreview, Trouble
from distconsole.tui.terminal.sanitize import one_line
from distconsole.tui.view_models.hosts import LoadModel
from distconsole.tui.view_models.runs import state_text
from distconsole.tui.widgets.bars import level_bar

BUSY_PERCENT = 5.0
BUSY_SHARE = 0.05
"""Least share of memory, or load, of a GPU in use."""

MEETING = ("MASTER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR")
"""Variables with the ranks' rendezvous address."""

HIDDEN = ("PYTHONUNBUFFERED", PORT, RUN_DIR)
"""Variables and values without information: some are known only at the start."""

INTERFACE = "GLOO_SOCKET_IFNAME"

MOST_HOSTS = 64
"""Hosts whose commands the plan shows one by one."""


@dataclass(frozen=True, slots=True)
class HostChoice:
    """A host in the form's list: its newest samples, the launch's ranks on it, and the error of its connection.

    ``host`` is None unless it is one of the console's own.
    """

    name: str
    chosen: bool
    host: Host | None
    node: NodeSample | None
    gpus: Sequence[GpuSample]
    ranks: tuple[int, ...]
    away: str | None


def host_choices(
    hosts: Sequence[Host],
    chosen: Sequence[str] | None,
    load: LoadModel | None,
    plan: PlanMade | None,
) -> list[HostChoice]:
    known = {str(host.name): host for host in hosts}
    ranks = {each.host: each.ranks for each in plan.hosts} if plan is not None else {}
    others = [name for name in dict.fromkeys(chosen or ()) if name not in known]
    wanted = set(chosen or ())
    load = load or LoadModel()
    gpus: dict[str, list[GpuSample]] = {}
    for gpu in load.gpus.values():
        gpus.setdefault(gpu.host, []).append(gpu)
    return [
        HostChoice(
            name,
            name in wanted,
            known.get(name),
            load.nodes.get(name),
            gpus.get(name, ()),
            ranks.get(name, ()) if name in wanted else (),
            load.lost_because(name) if name in known else None,
        )
        for name in (*known, *others)
    ]


def in_use(gpu: GpuSample) -> bool:
    """True if a GPU has processes, used memory or load."""
    taken = (gpu.mem_used or 0) > BUSY_SHARE * (gpu.mem_total or float("inf"))
    return bool(gpu.strangers) or gpu.rank is not UNSET or taken or (gpu.util or 0) > BUSY_PERCENT


def _mark(row: HostChoice) -> Text:
    style = "faint" if row.away is not None else "good" if row.chosen else ""
    return Text("[x]" if row.chosen else "[ ]", style=style)


def _name(row: HostChoice) -> Text:
    return Text(one_line(row.name), style="faint" if row.away is not None else "")


def _gpus(row: HostChoice) -> Text:
    if row.node is None:
        return Text("")
    if not row.gpus:
        return Text("none", style="faint")
    count, free = len(row.gpus), _free(row)
    return Text(f"{free} of {count}", style="good" if free == count else "warn" if free else "bad")


def _free(row: HostChoice) -> int:
    return sum(not in_use(gpu) for gpu in row.gpus)


def _state(row: HostChoice) -> Text:
    if row.away is not None:
        return Text(f"✗ {one_line(row.away)}", style="bad" if row.chosen else "faint")
    if row.host is None:
        return Text("? none of the console's own hosts", style="note")
    if row.node is None:
        return Text("connecting…", style="faint")
    return Text("● connected", style="good")


def _share(part: float | None, whole: float | None) -> Text:
    if part is None or not whole:
        return Text("")
    percent = 100 * part / whole
    return level_bar(percent, 5).append(f"{percent:>4.0f} %", style="")


def _memory(row: HostChoice) -> Text:
    return _share(row.node.mem_used, row.node.mem_total) if row.node else Text("")


def _slots(row: HostChoice) -> str:
    return "" if row.host is None or row.host.slots is None else str(row.host.slots)


HOST_COLUMNS: list[Column[HostChoice]] = [
    Column("", 3, _mark),
    Column("host", 14, _name),
    Column("GPUs free", 9, _gpus, right=True),
    Column("cpu", 11, lambda row: _share(row.node.cpu if row.node else None, 100), 3),
    Column("memory", 11, _memory, 4),
    Column("slots", 5, _slots, 2, True),
    Column("ranks", 9, lambda row: ranks_text(row.ranks), 1, True),
    Column("state", 16, _state),
]


def _what(row: LaunchKept) -> Text:
    request = row.request
    words = Text(one_line(request.script.rpartition("/")[2] or request.script))
    words.append(
        "".join(f" {one_line(word)}" for word in mask_words(request.arguments)), style="faint"
    )
    return words


def _where(row: LaunchKept) -> str:
    hosts = row.summary.hosts
    names = one_line(",".join(hosts))
    return f"{len(hosts)}: {names}" if len(hosts) > 1 else names


LAUNCH_COLUMNS: list[Column[LaunchKept]] = [
    Column("ended", 11, lambda row: state_text(row.summary)),
    Column("when", 11, lambda row: date_text(row.summary.started, "%m-%d %H:%M"), 1),
    Column("name", 10, lambda row: one_line(row.summary.name), 4),
    Column("launcher", 8, lambda row: row.summary.launcher, 3),
    Column("ranks", 5, lambda row: str(row.summary.world_size), 2, True),
    Column("hosts", 14, _where, 1),
    Column("script", 20, _what),
]


def launch_verdict(
    shown: PlanPreview | None, trouble: Trouble | None, state: str, choices: Sequence[HostChoice]
) -> tuple[str, str, str]:
    """Return tone, mark and words: the launch's error, the awaited step, or the plan on ``choices``."""
    if trouble is not None:
        about = f"{trouble.field.replace('_', '-')}: " if trouble.field else ""
        return "bad", "✗", f"NOT READY  {about}{one_line(trouble.words)}"
    if state or shown is None or shown.plan is None:
        return "note", "…", state
    crowded = [row.name for row in choices if row.gpus and _free(row) < len(row.ranks)]
    used = f"; GPUs in use on {join_some(crowded, 3)}" if crowded else ""
    warned = crowded or any(warns for _, warns in shown.notes)
    tone, mark = ("warn", "▲") if warned else ("good", "●")
    return tone, mark, f"READY  {plan_title(shown.plan)}{used}: {one_line(shown.plan.why)}"


def plan_title(plan: PlanMade) -> str:
    ranks, hosts = count_text(plan.world_size, "rank"), count_text(len(plan.hosts), "host")
    return f"{ranks} by {one_line(plan.launcher)} on {hosts}"


def plan_text(
    shown: PlanPreview | None,
    latest: PlanPreview | None,
    refused: Mapping[str, str],
    *,
    good: bool,
) -> Text:
    """Return the newest plan in words, with the reasons against other launchers."""
    if shown is None or shown.plan is None:
        return Text()
    plan = _plan(shown, shown.plan)
    if refused:
        plan.append("launchers that do not fit\n", style="strong")
    for launcher, why in refused.items():
        plan.append(f"  {one_line(launcher)}: {one_line(why)}\n", style="faint")
    if shown is not latest or latest.error is not None or not good:
        plan.stylize("faint")
    return plan


def _plan(shown: PlanPreview, plan: PlanMade) -> Text:
    text = Text()
    for note, warns in shown.notes:
        mark, style = ("! ", "warn") if warns else ("", "note")
        text.append(f"{mark}{one_line(note)}\n", style=style)
    meeting = next(
        (each.env[name] for each in plan.hosts[:1] for name in MEETING if each.env.get(name)), ""
    )
    if meeting:
        text.append(f"the ranks meet at {one_line(meeting)}")
        text.append(", on a port that is chosen at the start\n")
    common = _common([each.env for each in plan.hosts])
    for each in plan.hosts[:MOST_HOSTS]:
        text.append(one_line(each.host), style="strong")
        ranks = f" {'ranks' if each.ranks[1:] else 'rank'} {ranks_text(each.ranks)}"
        text.append(f"{ranks}  " if each.ranks else "  ")
        command = each.command.partition("\n")[0].replace(PORT, "PORT").replace(RUN_DIR, "RUN_DIR")
        text.append(f"{one_line(command) or 'the first host starts what runs here'}\n")
        own = {name: value for name, value in each.env.items() if name not in common}
        if own:
            text.append(f"  {_assignments(own)}\n", style="faint")
    if plan.hosts[MOST_HOSTS:]:
        text.append(f"and {count_text(len(plan.hosts) - MOST_HOSTS, 'more host')}\n")
    if common:
        text.append("everywhere  ", style="strong")
        text.append(f"{_assignments(common)}\n", style="faint")
    return text


def values_of(cluster: Cluster) -> dict[str, str]:
    held = {"cluster": cluster.name, "ssh_config": cluster.ssh_config}
    for field in ("python", "setup", "container", "transport", "nic", "node_dir"):
        values = {getattr(host, field) for host in cluster.hosts}
        held[field] = values.pop() if len(values) == 1 else "differs by host" if values else None
    return {field: one_line(value) for field, value in held.items() if value}


def taken_values(model: LaunchFormModel, cluster: Cluster | None) -> dict[str, str]:
    """Return the newest plan's values for the form's empty fields, among hosts of ``cluster``."""
    chosen = model.chosen_hosts or ()
    taken = {"hosts": ",".join(chosen)}
    others = any(map(model.draft.text, ("cluster", "hostfile")))
    if cluster is not None and not others and all(map(cluster.host, chosen)):
        taken |= values_of(cluster)
    plan = model.shown.plan if model.shown is not None and not model.blank else None
    if plan is None or not plan.hosts:
        return taken
    ranks = sorted({len(each.ranks) for each in plan.hosts})
    nic = _common([each.env for each in plan.hosts]).get(INTERFACE, "")
    return taken | {
        "launcher": f"auto: {plan.launcher}",
        "nproc": " to ".join(str(each) for each in dict.fromkeys((ranks[0], ranks[-1]))),
        "nnodes": str(len(plan.hosts)),
        "nic": taken.get("nic") or (f"auto: {one_line(nic)}" if nic else ""),
    }


def _common(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first = environments[0] if environments else {}
    return {
        name: value
        for name, value in first.items()
        if all(each.get(name) == value for each in environments)
    }


def _assignments(env: Mapping[str, str]) -> str:
    known = {name: value for name, value in env.items() if not set(HIDDEN) & {name, value}}
    return " ".join(f"{name}={one_line(value)}" for name, value in known.items())
