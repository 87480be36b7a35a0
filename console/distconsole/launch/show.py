"""A plan in writing: the text of ``--dry-run``, and files for sbatch, torchrun and mpirun.

The files name the variables that may be secret, without their values.
"""

from __future__ import annotations

import posixpath
import shlex
from dataclasses import dataclass

from distconsole.errors import PlanError, UnavailableError
from distconsole.grammar.secrets import mask_env, mask_text, may_be_secret
from distconsole.launch.choose import Choice, command_lines
from distconsole.launch.launchers.mpi import PYTHON
from distconsole.launch.launchers.single import fill_place
from distconsole.launch.place import PreparedLaunch
from distconsole.launch.plan import (
    OUTPUT_ENV,
    RUN_DIR,
    SHOWN_PORT,
    NodePlan,
    Plan,
    fill_shown,
    option_pairs,
)
from distconsole.launch.slurm.submit import read_options, words_of
from distconsole.model.cluster import path_word
from distconsole.model.job import ScriptTraits
from distconsole.model.names import count_text
from distconsole.model.requests import Command, EmitKind, LauncherName, PassArgs

FIRST_PORT, PORTS = 15000, 15000
"""A job's number chooses its rendezvous port from here, below the kernels' ephemeral ports."""

_TASKS = ("-n", "--ntasks", "--ntasks-per-node")

TORCH_NAMES = {
    EmitKind.SBATCH: {
        "RANK": "$SLURM_PROCID",
        "LOCAL_RANK": "$SLURM_LOCALID",
        "WORLD_SIZE": "$SLURM_NTASKS",
        "LOCAL_WORLD_SIZE": "$(tr , '\\n' <<< \"$SLURM_GTIDS\" | wc -l)",
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


def dry_run_text(plan: Plan, command: Command | None = None) -> str:
    """Return commands to paste into a shell on each host to run the job by hand; ``command``: the pasted one, if any."""
    lines = [
        *command_lines(command),
        f"# {count_text(plan.world_size, 'rank')} by {plan.launcher}: {plan.why}",
        *(f"# note: {note}" for note in plan.notes),
        f"# port {SHOWN_PORT} stands for one that the first host finds free when the job starts",
    ]
    for node in plan.nodes:
        lines += ["", *_host_lines(plan.workdir, node)]
    return "\n".join(lines) + "\n"


def _host_lines(workdir: str | None, node: NodePlan) -> list[str]:
    first, last = node.world_ranks[0], node.world_ranks[-1]
    ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
    host, address, nic = node.host, node.endpoint.address, node.endpoint.nic
    place = f"{address} on {nic}" if nic else address
    lines = [f"# host {node.index}: {node.name} ({place}), {ranks}"]
    if host.container:
        lines.append(f"# all of this inside {host.container}, but the setup command before it")
    if workdir:
        lines.append(f"cd {shlex.quote(workdir)}")
    if host.setup:
        lines.append(mask_text(host.setup))
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
        driver = mask_text(shlex.join(fill_shown(word) for word in node.driver))
        lines.insert(
            1, f"# in a run of ours ranks are started as this asks, which they lack here: {driver}"
        )
    if node.beside:
        lines.append(f"{fill_shown(node.beside)} & beside=$!")
        lines += [f'{command} & ranks="$ranks $!"' for command in commands]
        return [*lines, "wait $ranks; kill $beside"]
    if len(commands) > 1:
        return [*lines, *(f"{command} &" for command in commands), "wait"]
    return [*lines, *commands]


def _word(text: str) -> str:
    return shlex.quote(fill_shown(text))


@dataclass(frozen=True, slots=True)
class _Source:
    """Input of an emitted file; without a plan if Slurm chooses the nodes."""

    launch: PreparedLaunch
    choice: Choice
    folder: str
    plan: Plan | None

    @property
    def python(self) -> str:
        if self.plan is None or self.launch.request.where.python:
            return path_word(self.launch.request.where.python or "python3")
        node = self.plan.master
        words = node.ranks[0].by_hand or node.ranks[0].argv
        if words[0] == "mpirun":  # the rank's own words are behind those of its shell
            words = words[words.index("sh", words.index("-c")) + 1 :]
        return path_word(node.env.get(PYTHON, words[0]))


def emit(kind: EmitKind, launch: PreparedLaunch, folder: str, plan: Plan | None) -> str:
    """Return the file's text, for a script that starts in ``folder``; without hosts there is no plan.

    Raises UnavailableError if that starter cannot start the script; PlanError if it cannot place its ranks.
    """
    choice = launch.decide()
    container = launch.request.where.container or (plan and plan.master.host.container)
    if container:
        raise UnavailableError(
            f"--emit {kind} writes a file that enters no container ({container})",
            "leave --container out, and start what is written inside it",
        )
    ours = (LauncherName.TORCH, LauncherName.TORCHRUN, LauncherName.SINGLE, LauncherName.SLURM)
    if choice.launcher not in ours and kind is not EmitKind.MPIRUN:
        raise UnavailableError(
            f"--emit {kind} writes torch ranks; the launcher is {choice.launcher} ({choice.why})",
            "--emit mpirun can",
        )
    write = {EmitKind.SBATCH: _sbatch, EmitKind.MPIRUN: _mpirun, EmitKind.TORCHRUN: _torchrun}
    return write[kind](_Source(launch, choice, folder, plan))


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
    request, plan = what.launch.request, what.plan
    name = request.name or posixpath.basename(request.script).removesuffix(".py")
    options = [f"--job-name={shlex.quote(name)}"]
    if plan is not None:
        counts = {node.slots for node in plan.nodes}
        if len(counts) > 1 and not what.choice.one_a_node:
            raise PlanError(
                "sbatch starts as many ranks on every node", "give the hosts equal slots"
            )
        options += [f"--nodes={len(plan.nodes)}", f"--ntasks-per-node={counts.pop()}"]
        if request.where.hosts is not None:
            options.append(f"--nodelist={','.join(plan.hosts)}")
    words = words_of(request.slurm)
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append([])
        lines[-1].append(word)
    options += map(shlex.join, lines)
    if plan is None and not any(word.startswith(_TASKS) for word in words):
        given = None if request.nproc in (None, "gpu") else request.nproc
        ranks = given or read_options(words).gpus_a_node or 1
        options.append(f"--ntasks-per-node={1 if what.choice.one_a_node else ranks}")
    return options


def _torchrun(what: _Source) -> str:
    plan = _require_plan(what, EmitKind.TORCHRUN)
    if what.choice.one_a_node:
        raise UnavailableError(
            f"torchrun would start ranks, and {what.choice.why}", "--emit mpirun or sbatch can"
        )
    cases = "\n".join(
        f"    {shlex.quote(node.name)} | {node.index}) node_rank={node.index}"
        f" ranks={node.slots} address={node.endpoint.address}{_nic(node.endpoint.nic)} ;;"
        for node in plan.nodes
    )
    body = _rank_script(what, EmitKind.TORCHRUN)
    return f"""#!/bin/bash
# {_title(what)}
# Run it on every host, at about the same time: bash FILE [HOST or node rank]
case "${{1:-$(hostname -s)}}" in
{cases}
    *) echo "usage: bash $0 [HOST or node rank]; the hosts are: {" ".join(plan.hosts)}" >&2; exit 2 ;;
esac

{_exports(what)}
{body}
exec {what.python} -m torch.distributed.run --rdzv-backend static \\
    --nnodes {len(plan.nodes)} --node-rank "$node_rank" --nproc-per-node "$ranks" \\
    --master-addr {plan.master.endpoint.address} --master-port {SHOWN_PORT} --local-addr "$address" \\
    --max-restarts {what.launch.request.max_restarts} --no-python bash -c "$rank_script"
"""


def _nic(nic: str | None) -> str:
    return f"; export GLOO_SOCKET_IFNAME={nic} NCCL_SOCKET_IFNAME=={nic}" if nic else ""


def _mpirun(what: _Source) -> str:
    plan = _require_plan(what, EmitKind.MPIRUN)
    counts = [node.slots for node in plan.nodes]
    names, size = plan.hosts, sum(counts)
    slots = [f"{name}:{n}" for name, n in zip(names, counts, strict=True)]
    once_a_rank = [name for name, n in zip(names, counts, strict=True) for _ in range(n)]
    nics = {node.endpoint.nic for node in plan.nodes}
    nic = nics.pop() if len(nics) == 1 else None
    named = ["MASTER_ADDR", "MASTER_PORT", *OUTPUT_ENV, *what.launch.env]
    open_mpi = (
        f"--host {','.join((f'127.0.0.1:{counts[0]}', *slots[1:]))} -np {size} --bind-to none"
    )
    interfaces = ""
    if nic is not None:
        open_mpi += f" --mca oob_tcp_if_include {nic} --mca btl_tcp_if_include {nic}"
        named += ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
        interfaces = f"export {_nic(nic).partition('export ')[2]}\n"
    named = list(dict.fromkeys(named))
    setup = f"{plan.master.host.setup}\n" if plan.master.host.setup else ""
    return f"""#!/bin/bash
# {_title(what)}
# Run it on {names[0]}, which must reach the other hosts by ssh without a password.
{setup}{_exports(what)}
export MASTER_ADDR={plan.master.endpoint.address} MASTER_PORT={SHOWN_PORT}
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


def _require_plan(what: _Source, kind: EmitKind) -> Plan:
    if what.plan is None:
        raise PlanError(
            f"--emit {kind} needs hosts, and with --slurm there are none yet",
            "leave --slurm out, or --emit sbatch",
        )
    return what.plan


def _title(what: _Source) -> str:
    words = shlex.join((what.launch.request.script, *what.launch.request.arguments)).replace(
        "\n", " "
    )
    return f"Written by distconsole run --emit for: {words}"


def _exports(what: _Source) -> str:
    lines = []
    for name, value in {**OUTPUT_ENV, **what.launch.env}.items():
        if value and may_be_secret(name):
            lines.append(f': "${{{name}:?is not written here: set it before}}"\nexport {name}')
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join(lines)


def _rank_script(what: _Source, kind: EmitKind) -> str:
    names = (NODE_NAMES if what.choice.one_a_node else TORCH_NAMES).get(kind, {})
    sets = [
        f'export {name}="{value}"' for name, value in names.items() if name not in what.launch.env
    ]
    setup = what.launch.request.where.setup if what.plan is None else what.plan.master.host.setup
    start = [f"cd {shlex.quote(what.folder)} || exit", *filter(None, [setup])]
    text = "\n".join([*sets, *start, f"exec {_command(what)}"])
    return f"read -r -d '' rank_script << '{END}' || true\n{text}\n{END}"


def _command(what: _Source) -> str:
    request = what.launch.request
    whole = request.script if request.module else posixpath.join(what.folder, request.script)
    plan = Plan(request, what.choice, ScriptTraits(), (), whole, request.arguments)
    shell, *rest = plan.command("")
    words = [shell or what.python, *map(shlex.quote, rest)]
    fixed = len(words) - len(request.arguments)
    place = {name: f"'\"${name}\"'" for name in PLACE_NAMES} if what.choice.one_a_node else {}
    given = [fill_place(word, place) for word in words[fixed:]]
    return " ".join([*words[:fixed], *_extra_words(what), *given])


def _extra_words(what: _Source) -> list[str]:
    rank, world = ("NODE_RANK", "NNODES") if what.choice.one_a_node else ("RANK", "WORLD_SIZE")
    values = {
        "local_rank": "$LOCAL_RANK",
        "init_method": "tcp://$MASTER_ADDR:$MASTER_PORT",
        "rank": f"${rank}",
        "world_size": f"${world}",
    }
    kind = what.choice.pass_args
    joint = "=" if kind is PassArgs.TORCH_LAUNCH else " "
    pairs = option_pairs(kind, what.launch.traits, what.launch.request.arguments, values)
    return [f'{option}{joint}"{value}"' for option, value in pairs]
