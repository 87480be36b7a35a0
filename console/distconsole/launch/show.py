"""A plan as people and programs read it: the ``plan`` event and the text of ``--dry-run``."""

from __future__ import annotations

import shlex

from distconsole.grammar.secrets import mask_env
from distconsole.launch.job import PORT, RUN_DIR, fill
from distconsole.launch.launchers.horovod import AGENT
from distconsole.model.job import LaunchPlan, NodePlan, RankPlacement
from distconsole.model.run_events import PlanMade, PlannedHost

SHOWN_PORT = "29500"
"""Stands in the text of ``--dry-run``, where no port has been found yet; torch's own default."""

SHOWN_RUN_DIR = "distconsole-run"
"""Stands there for the run's folder, which only a run of ours has."""

SHOWN_AGENT = "distconsole-agent"
"""Stands there for our own program on a node."""


def plan_event(plan: LaunchPlan, t: float) -> PlanMade:
    """Return the event for a plan, with values that may be secret hidden."""
    return PlanMade(
        t=t,
        run=plan.run,
        launcher=plan.launcher,
        why=plan.why,
        world_size=plan.world_size,
        hosts=tuple(_plan_event_host(node) for node in plan.nodes),
        name=plan.name,
        script=plan.script,
    )


def dry_run_text(plan: LaunchPlan) -> str:
    """Return what can be pasted into a shell on each host to run the job by hand."""
    lines = [
        f"# {plan.world_size} ranks by {plan.launcher}: {plan.why}",
        *(f"# note: {note}" for note in plan.notes),
        f"# port {SHOWN_PORT} stands for one that the first host finds free when the job starts",
    ]
    for index, node in enumerate(plan.nodes):
        lines += ["", *_host_lines(index, node)]
    return "\n".join(lines) + "\n"


def _plan_event_host(node: NodePlan) -> PlannedHost:
    words = [rank.argv for rank in node.ranks]
    if node.driver:
        words.insert(0, tuple(_fill_shown(word) for word in node.driver))
    commands = dict.fromkeys(shlex.join(each) for each in words)
    own = node.ranks[0].env if len(node.ranks) == 1 else {}
    return PlannedHost(
        host=node.host,
        ranks=tuple(node.world_ranks),
        command="\n".join(map(_fill_names, commands)),
        env={k: _fill_names(v) for k, v in mask_env({**node.env, **own}).items()},
    )


def _host_lines(index: int, node: NodePlan) -> list[str]:
    first, last = node.world_ranks[0], node.world_ranks[-1]
    ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
    nic = f" on {node.nic}" if node.nic else ""
    lines = [f"# host {index}: {node.host} ({node.address}{nic}), {ranks}"]
    if node.workdir:
        lines.append(f"cd {shlex.quote(node.workdir)}")
    if node.setup:
        lines.append(node.setup)
    if node.unset:
        lines.append(f"unset {' '.join(node.unset)}")
    # What lies in the run's folder only a run of ours has.
    env = {k: v for k, v in mask_env(node.env).items() if RUN_DIR not in v}
    lines += [f"export {name}={_word(value)}" for name, value in env.items()]
    commands = [_rank_line(rank) for rank in node.ranks]
    if not commands:
        return [lines[0], "# the first host starts what runs here"]
    if node.driver:
        driver = shlex.join(_fill_shown(word) for word in node.driver)
        lines.insert(
            1, f"# in a run of ours ranks are started as this asks, which they lack here: {driver}"
        )
    if node.beside:
        lines.append(f"{_fill_shown(node.beside)} & beside=$!")
        lines += [f'{command} & ranks="$ranks $!"' for command in commands]
        return [*lines, "wait $ranks; kill $beside"]
    if len(commands) > 1:
        return [*lines, *(f"{command} &" for command in commands), "wait"]
    return [*lines, *commands]


def _rank_line(rank: RankPlacement) -> str:
    env = [f"{name}={_word(value)}" for name, value in rank.env.items()]
    return " ".join([*env, *(_word(word) for word in rank.by_hand or rank.argv)])


def _word(text: str) -> str:
    return shlex.quote(_fill_shown(text))


def _fill_shown(text: str) -> str:
    return fill(text, SHOWN_PORT, SHOWN_RUN_DIR).replace(AGENT, SHOWN_AGENT)


def _fill_names(text: str) -> str:
    """Return a text with our own names left in, and the user's as the user wrote it."""
    return fill(text, PORT, RUN_DIR)
