"""A plan in writing: the ``plan`` event, the text of ``--dry-run``, and files for sbatch, torchrun and mpirun.

The files name the variables that may be secret, without their values.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from distconsole.errors import PlanError, UnavailableError
from distconsole.grammar.secrets import mask_env, mask_text, may_be_secret
from distconsole.launch.choose import Choice, command_lines
from distconsole.launch.job import OUTPUT_ENV, PORT, RUN_DIR, Job, option_pairs
from distconsole.launch.launchers.horovod import AGENT
from distconsole.launch.launchers.mpi import PYTHON
from distconsole.launch.launchers.single import fill_place
from distconsole.launch.plan import PreparedLaunch
from distconsole.launch.slurm.submit import read_options, words_of
from distconsole.model.cluster import path_word
from distconsole.model.job import LaunchPlan, NodePlan, ScriptTraits
from distconsole.model.names import count_text
from distconsole.model.requests import Command, EmitKind, LauncherName, PassArgs, Run
from distconsole.model.run_events import PlanMade, PlannedHost
from distconsole.rpc.wire import fill

SHOWN_PORT = "29500"
"""Placeholder for a port not yet found, and the default in files that users may change; torch's own default."""

SHOWN_RUN_DIR = "distconsole-run"
"""Placeholder in the text of ``--dry-run`` for the run's folder, which only a run of ours has."""

SHOWN_AGENT = "distconsole-agent"
"""Placeholder there for our own program on a node."""

FIRST_PORT, PORTS = 15000, 15000
"""A job's number chooses its rendezvous port from here, below the kernels' ephemeral ports."""

_TASKS = ("-n", "--ntasks", "--ntasks-per-node")

TORCH_NAMES = {
    EmitKind.SBATCH: {
        "RANK": "$SLURM_PROCID",
        "LOCAL_RANK": "$SLURM_LOCALID",
        "WORLD_SIZE": "$SLURM_NTASKS",
        "GROUP_RANK": "$SLURM_NODEID",
    },
    EmitKind.MPIRUN: {
        "RANK": "${OMPI_COMM_WORLD_RANK-$PMI_RANK}",
        "LOCAL_RANK": "${OMPI_COMM_WORLD_LOCAL_RANK-$MPI_LOCALRANKID}",
        "WORLD_SIZE": "${OMPI_COMM_WORLD_SIZE-$PMI_SIZE}",
        "LOCAL_WORLD_SIZE": "${OMPI_COMM_WORLD_LOCAL_SIZE-$MPI_LOCALNRANKS}",
    },
    EmitKind.TORCHRUN: {
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "MASTER_PORT": "$((MASTER_PORT + 1 + TORCHELASTIC_RESTART_COUNT))",
    },
}
"""Each engine's sources for torch's ``env://`` variables.

torchrun sets all of them, but not a store for each round: in a common one, restarted ranks find the
addresses of dead ranks.
"""

NODE_NAMES = {
    EmitKind.SBATCH: {"NODE_RANK": "$SLURM_NODEID", "NNODES": "$SLURM_NNODES"},
    EmitKind.MPIRUN: {
        "NODE_RANK": "${OMPI_COMM_WORLD_RANK-$PMI_RANK}",
        "NNODES": "${OMPI_COMM_WORLD_SIZE-$PMI_SIZE}",
    },
}
"""The same for one process a node, such as one that spawns its ranks."""

PLACE_NAMES = ("NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT")
END = "RANK_SCRIPT_ENDS"


def plan_event(plan: LaunchPlan, t: float) -> PlanMade:
    return PlanMade(
        t=t,
        run=plan.run,
        launcher=plan.launcher,
        why=plan.why,
        world_size=plan.world_size,
        hosts=tuple(_plan_event_host(node) for node in plan.nodes),
        name=plan.name,
        script=plan.script,
        starts=plan.starts if plan.starts and plan.watch else UNSET,
    )


def dry_run_text(plan: LaunchPlan, command: Command | None = None) -> str:
    """Return commands to paste into a shell on each host to run the job by hand; ``command``: the pasted one, if any."""
    lines = [
        *command_lines(command),
        f"# {count_text(plan.world_size, 'rank')} by {plan.launcher}: {plan.why}",
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
    commands = dict.fromkeys(mask_text(shlex.join(each)) for each in words)
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
    if node.container:
        lines.append(f"# all of this inside {node.container}, but the setup command before it")
    if node.workdir:
        lines.append(f"cd {shlex.quote(node.workdir)}")
    if node.setup:
        lines.append(mask_text(node.setup))
    if node.unset:
        lines.append(f"unset {' '.join(node.unset)}")
    # Only a run of ours has files in its run's folder.
    env = {k: v for k, v in mask_env(node.env).items() if RUN_DIR not in v}
    lines += [f"export {name}={_word(value)}" for name, value in env.items()]
    commands = []
    for rank in node.ranks:
        own = [f"{name}={_word(value)}" for name, value in rank.env.items()]
        commands.append(mask_text(" ".join([*own, *map(_word, rank.by_hand or rank.argv)])))
    if not commands:
        return [lines[0], "# the first host starts what runs here"]
    if node.driver:
        driver = mask_text(shlex.join(_fill_shown(word) for word in node.driver))
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


def _word(text: str) -> str:
    return shlex.quote(_fill_shown(text))


def _fill_shown(text: str) -> str:
    return fill(text, SHOWN_PORT, SHOWN_RUN_DIR).replace(AGENT, SHOWN_AGENT)


def _fill_names(text: str) -> str:
    """Return a text with our placeholders kept, and the user's as typed."""
    return fill(text, PORT, RUN_DIR)


@dataclass(frozen=True, slots=True)
class _Source:
    """Input of an emitted file; without a plan if Slurm chooses the nodes."""

    request: Run
    env: Mapping[str, str]
    traits: ScriptTraits
    choice: Choice
    folder: str
    plan: LaunchPlan | None

    @property
    def one_a_node(self) -> bool:
        return self.choice.launcher is LauncherName.SINGLE

    @property
    def python(self) -> str:
        return path_word(self.request.where.python or self._planned_python())

    def _planned_python(self) -> str:
        if self.plan is None:
            return "python3"
        node = self.plan.nodes[0]
        words = node.ranks[0].by_hand or node.ranks[0].argv
        if words[0] == "mpirun":  # the rank's own words are behind those of its shell
            words = words[words.index("sh", words.index("-c")) + 1 :]
        return node.env.get(PYTHON, words[0])


def emit(kind: EmitKind, launch: PreparedLaunch, folder: str, plan: LaunchPlan | None) -> str:
    """Return the file's text, for a script that starts in ``folder``; without hosts there is no plan.

    Raises UnavailableError if that starter cannot start the script; PlanError if it cannot place its ranks.
    """
    what = _Source(launch.request, launch.env, launch.traits, launch.choice, folder, plan)
    container = launch.request.where.container or (plan and plan.nodes[0].container)
    if container:
        raise UnavailableError(
            f"--emit {kind} writes a file that enters no container ({container})",
            "leave --container out, and start what is written inside it",
        )
    ours = (LauncherName.TORCH, LauncherName.TORCHRUN, LauncherName.SINGLE, LauncherName.SLURM)
    if what.choice.launcher not in ours and kind is not EmitKind.MPIRUN:
        raise UnavailableError(
            f"--emit {kind} writes torch ranks; the launcher is {what.choice.launcher} ({what.choice.why})",
            "--emit mpirun can",
        )
    match kind:
        case EmitKind.SBATCH:
            return _sbatch(what)
        case EmitKind.MPIRUN:
            return _mpirun(what)
        case EmitKind.TORCHRUN:
            return _torchrun(what)


def _sbatch(what: _Source) -> str:
    options = "\n".join(f"#SBATCH {option}" for option in _sbatch_options(what))
    return f"""#!/bin/bash
# {_title(what)}
# Submit it with: sbatch FILE
{options}

{_exports(what)}
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))
export MASTER_ADDR MASTER_PORT

{_rank_script(what, EmitKind.SBATCH)}
# srun of 22.05 and 23.02 does not take the job's --cpus-per-task for its own.
srun ${{SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"}} --kill-on-bad-exit=1 --mpi=none \\
    bash -c "$rank_script"
"""


def _sbatch_options(what: _Source) -> list[str]:
    request, plan = what.request, what.plan
    name = request.name or posixpath.basename(request.script).removesuffix(".py")
    options = [f"--job-name={shlex.quote(name)}"]
    if plan is not None:
        counts = {len(node.world_ranks) for node in plan.nodes}
        if len(counts) > 1 and not what.one_a_node:
            raise PlanError(
                "sbatch starts as many ranks on every node", "give the hosts equal slots"
            )
        options += [f"--nodes={len(plan.nodes)}", f"--ntasks-per-node={counts.pop()}"]
        if request.where.hosts is not None:
            options.append(f"--nodelist={','.join(node.host for node in plan.nodes)}")
    words = words_of(request.slurm)
    options += _lines_of_options(words)
    if plan is None and not any(word.startswith(_TASKS) for word in words):
        options.append(f"--ntasks-per-node={_ranks_a_node(what, words)}")
    return options


def _lines_of_options(words: Sequence[str]) -> list[str]:
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append([])
        lines[-1].append(word)
    return [shlex.join(line) for line in lines]


def _ranks_a_node(what: _Source, words: Sequence[str]) -> int:
    if what.one_a_node:
        return 1
    if what.request.nproc not in (None, "gpu"):
        return int(str(what.request.nproc))
    return read_options(words).gpus_a_node or 1


def _torchrun(what: _Source) -> str:
    plan = _require_plan(what, EmitKind.TORCHRUN)
    if what.one_a_node:
        raise UnavailableError(
            f"torchrun would start ranks, and {what.choice.why}", "--emit mpirun or sbatch can"
        )
    cases = "\n".join(
        f"    {shlex.quote(node.host)} | {index})"
        f" node_rank={index} ranks={len(node.world_ranks)} address={node.address}{_nic(node.nic)} ;;"
        for index, node in enumerate(plan.nodes)
    )
    hosts = " ".join(node.host for node in plan.nodes)
    body = _rank_script(what, EmitKind.TORCHRUN)
    return f"""#!/bin/bash
# {_title(what)}
# Run it on every host, at about the same time: bash FILE [HOST or node rank]
case "${{1:-$(hostname -s)}}" in
{cases}
    *) echo "usage: bash $0 [HOST or node rank]; the hosts are: {hosts}" >&2; exit 2 ;;
esac

{_exports(what)}
{body}
exec {what.python} -m torch.distributed.run --rdzv-backend static \\
    --nnodes {len(plan.nodes)} --node-rank "$node_rank" --nproc-per-node "$ranks" \\
    --master-addr {plan.nodes[0].address} --master-port {SHOWN_PORT} --local-addr "$address" \\
    --max-restarts {what.request.max_restarts} --no-python bash -c "$rank_script"
"""


def _nic(nic: str | None) -> str:
    return f"; export GLOO_SOCKET_IFNAME={nic} NCCL_SOCKET_IFNAME=={nic}" if nic else ""


def _mpirun(what: _Source) -> str:
    plan = _require_plan(what, EmitKind.MPIRUN)
    counts = [1 if what.one_a_node else len(node.world_ranks) for node in plan.nodes]
    names, size = [node.host for node in plan.nodes], sum(counts)
    slots = [f"{name}:{n}" for name, n in zip(names, counts, strict=True)]
    once_a_rank = [name for name, n in zip(names, counts, strict=True) for _ in range(n)]
    nics = {node.nic for node in plan.nodes}
    nic = nics.pop() if len(nics) == 1 else None
    named = ["MASTER_ADDR", "MASTER_PORT", *OUTPUT_ENV, *what.env]
    open_mpi = (
        f"--host {','.join((f'127.0.0.1:{counts[0]}', *slots[1:]))} -np {size} --bind-to none"
    )
    interfaces = ""
    if nic is not None:
        open_mpi += f" --mca oob_tcp_if_include {nic} --mca btl_tcp_if_include {nic}"
        named += ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
        interfaces = f"export {_nic(nic).partition('export ')[2]}\n"
    named = list(dict.fromkeys(named))
    setup = f"{plan.nodes[0].setup}\n" if plan.nodes[0].setup else ""
    return f"""#!/bin/bash
# {_title(what)}
# Run it on {names[0]}, which must reach the other hosts by ssh without a password.
{setup}{_exports(what)}
export MASTER_ADDR={plan.nodes[0].address} MASTER_PORT={SHOWN_PORT}
{interfaces}if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

{_rank_script(what, EmitKind.MPIRUN)}
case $(mpirun --version 2>&1) in
    *"Intel(R) MPI"*) words="-hosts {",".join(once_a_rank)} -ppn 1 -n {size} -genvlist {",".join(named)}" ;;
    *HYDRA*) words="-hosts {",".join(slots)} -n {size} -genvlist {",".join(named)}" ;;
    *) words="{open_mpi} {" ".join(f"-x {name}" for name in named)}" ;;
esac
# shellcheck disable=SC2086
exec mpirun $words bash -c "$rank_script"
"""


def _require_plan(what: _Source, kind: EmitKind) -> LaunchPlan:
    if what.plan is None:
        raise PlanError(
            f"--emit {kind} needs hosts, and with --slurm there are none yet",
            "leave --slurm out, or --emit sbatch",
        )
    return what.plan


def _title(what: _Source) -> str:
    words = shlex.join((what.request.script, *what.request.arguments)).replace("\n", " ")
    return f"Written by distconsole run --emit for: {words}"


def _exports(what: _Source) -> str:
    lines = []
    for name, value in {**OUTPUT_ENV, **what.env}.items():
        if value and may_be_secret(name):
            lines.append(f': "${{{name}:?is not written here: set it before}}"\nexport {name}')
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join(lines)


def _rank_script(what: _Source, kind: EmitKind) -> str:
    names = (NODE_NAMES if what.one_a_node else TORCH_NAMES).get(kind, {})
    sets = [f'export {name}="{value}"' for name, value in names.items() if name not in what.env]
    setup = what.request.where.setup if what.plan is None else what.plan.nodes[0].setup
    start = [f"cd {shlex.quote(what.folder)} || exit", *filter(None, [setup])]
    text = "\n".join([*sets, *start, f"exec {_command(what)}"])
    return f"read -r -d '' rank_script << '{END}' || true\n{text}\n{END}"


def _command(what: _Source) -> str:
    request = what.request
    job = Job(
        nodes=(),
        script=request.script if request.module else posixpath.join(what.folder, request.script),
        arguments=request.arguments,
        module=request.module,
    )
    shell, *rest = job.command("")
    words = [shell or what.python, *map(shlex.quote, rest)]
    fixed = len(words) - len(request.arguments)
    place = {name: f"'\"${name}\"'" for name in PLACE_NAMES} if what.one_a_node else {}
    given = [fill_place(word, place) for word in words[fixed:]]
    return " ".join([*words[:fixed], *_extra_words(what), *given])


def _extra_words(what: _Source) -> list[str]:
    rank, world = ("NODE_RANK", "NNODES") if what.one_a_node else ("RANK", "WORLD_SIZE")
    values = {
        "local_rank": "$LOCAL_RANK",
        "init_method": "tcp://$MASTER_ADDR:$MASTER_PORT",
        "rank": f"${rank}",
        "world_size": f"${world}",
    }
    kind = what.choice.pass_args
    joint = "=" if kind is PassArgs.TORCH_LAUNCH else " "
    pairs = option_pairs(kind, what.traits, what.request.arguments, values)
    return [f'{option}{joint}"{value}"' for option, value in pairs]
