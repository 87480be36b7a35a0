"""mpirun on the first node, and its daemons on the others through our shims."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from distconsole.errors import PlanError
from distconsole.launch.engines import HYDRA_FAMILIES, INTEL_MPI
from distconsole.launch.plan import (
    MPI_NAMES,
    PORT,
    RANK_NAMES,
    RUN_DIR,
    NodePlan,
    Plan,
    RankPlacement,
    fill_node,
    threads_env,
)
from distconsole.model.names import Rank

TORCH_NAMES = """\
export RANK="${OMPI_COMM_WORLD_RANK-$PMI_RANK}" WORLD_SIZE="${OMPI_COMM_WORLD_SIZE-$PMI_SIZE}"
export LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK-$MPI_LOCALRANKID}"
export LOCAL_WORLD_SIZE="${OMPI_COMM_WORLD_LOCAL_SIZE-$MPI_LOCALNRANKS}"
"""
"""Sets torch's ``env://`` variables from those of Open MPI or MPICH."""

REPORTING = """\
run="${DISTCONSOLE_RUN_DIR-}"
[ -p "$run/reports" ] || exec "$@"
shm="${DISTCONSOLE_RINGS-}"
[ -z "$shm" ] || export OMPI_MCA_btl_vader_backing_directory="$shm" OMPI_MCA_btl_sm_backing_directory="$shm"
trap : TERM INT QUIT HUP USR1 USR2 ALRM
exec </dev/null >/dev/null 2>&1
sh -c 'echo "started $RANK $LOCAL_RANK $$" 1<>"$DISTCONSOLE_RUN_DIR/reports"; distconsole_log="$DISTCONSOLE_RUN_DIR/pipes/rank-$RANK"; [ -p "$distconsole_log.err" ] || distconsole_log="$DISTCONSOLE_RUN_DIR/logs/rank-$RANK"; exec "$@" >>"$distconsole_log.out" 2>>"$distconsole_log.err"' sh "$@"
code=$?
echo "exited $RANK $code" 1<>"$run/reports"
[ "$code" = 0 ] || exec sleep 100000
"""
"""Gives a rank its own log files, and reports its start and its end to the shim. After a failure it
stays, so that the shims end the run, with the grace of the run, before mpirun kills the other ranks."""

AS_RANK = f"{TORCH_NAMES}{REPORTING}"

LET_SIGNALS_IN = (
    "import os,signal,sys;signal.pthread_sigmask(signal.SIG_SETMASK,());"
    "os.execvp(sys.argv[1],sys.argv[1:])"
)
"""Below Slurm mpirun runs with signals blocked (``processes.py`` of the agent). Open MPI unblocks
them for its ranks (odls_default_module.c); the MPICH family does not, nor does every shell."""

PYTHON = "DISTCONSOLE_PYTHON"
"""Names each host's interpreter if they differ."""

FORCED_OFF = tuple(
    f"SLURM_{name}"
    for name in (
        *("JOBID", "JOB_ID", "NODELIST", "JOB_NODELIST", "NNODES", "JOB_NUM_NODES", "NPROCS"),
        *("NTASKS", "TASKS_PER_NODE", "PROCID", "LOCALID", "NODEID", "STEP_ID", "STEPID"),
    )
)
"""Below Slurm, Open MPI would take the hosts of the allocation instead of the given ones."""


def plan_nodes(plan: Plan) -> tuple[NodePlan, ...]:
    """Return each node's plan: mpirun on node 0; on the others, the daemons that mpirun requests.

    Raises PlanError if mpirun could not tell two of the hosts apart, or not use one of them.
    """
    address, count = Counter(node.endpoint.address for node in plan.nodes).most_common(1)[0]
    if count > 1:
        same = [node.name for node in plan.nodes if node.endpoint.address == address]
        raise PlanError(
            f"{' and '.join(same)} are one machine ({address}), which mpirun cannot tell apart",
            f"name it once, with the ranks of both: --hosts {same[0]}:{len(same)}",
        )
    _refuse_other_folders(plan)
    build = plan.master.facts.engines.mpi
    is_4 = build is not None and not _is_hydra(plan) and build.version.startswith("4.")
    if _has_ipv6(plan) and not is_4:
        # Open MPI 5.0.7's daemons end by SIGSEGV, also by hand; Open MPI 4.1 trains.
        raise PlanError(
            "mpirun starts no ranks between hosts that have IPv6 addresses alone, but for that of Open MPI 4",
            "give --nic an interface with an IPv4 address, or take --launcher torch",
        )
    return tuple(_plan_node(plan, node) for node in plan.nodes)


def _refuse_other_folders(plan: Plan) -> None:
    """mpirun gives its daemons the paths of the first host: without these they die by a signal."""
    folders = {
        node.name: node.host.node_dir or f"/tmp/distconsole-{node.facts.uid}"  # noqa: S108
        for node in plan.nodes
    }
    first = plan.master.name
    for host, folder in folders.items():
        if folder != folders[first]:
            raise PlanError(
                f"mpirun needs the same folder on all hosts: it is {folders[first]} on {first} and "
                f"{folder} on {host}",
                "give all hosts of the cluster one node_dir in distconsole.toml",
            )


def notes(plan: Plan) -> tuple[str, ...]:
    """Return notes on the plan for the user."""
    found = []
    roots = ", ".join(node.name for node in plan.nodes if node.facts.uid == 0)
    if roots and not _is_hydra(plan):
        names = "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        found.append(f"root on {roots}: {names} are set")
    if _has_ipv6(plan):
        found.append("IPv6: Open MPI must be built for it (ompi_info | grep -i ipv6)")
    return tuple(found)


def _has_ipv6(plan: Plan) -> bool:
    return any(":" in node.endpoint.address for node in plan.nodes)


def _plan_node(plan: Plan, node: NodePlan) -> NodePlan:
    env = {
        "MASTER_ADDR": plan.master.endpoint.address,
        "MASTER_PORT": PORT,
        "GROUP_RANK": str(node.index),
        "GROUP_WORLD_SIZE": str(len(plan.nodes)),
        # A Horovod that has Gloo too would guess otherwise.
        "HOROVOD_CONTROLLER": "mpi",
        "HOROVOD_CPU_OPERATIONS": "mpi",
        **threads_env(node),
    }
    if len({each.python for each in plan.nodes}) > 1:
        env[PYTHON] = node.python
    if not _is_hydra(plan):
        env |= _open_mpi_env(plan, node)
    else:
        env["MPICH_INTERFACE_HOSTNAME"] = node.endpoint.address
        if nic := node.endpoint.nic:
            env |= {"FI_TCP_IFACE": nic, "FI_SOCKETS_IFACE": nic}
    filled = fill_node(plan, node, (), env, (*RANK_NAMES, *MPI_NAMES, *FORCED_OFF))
    return replace(filled, ranks=(_mpirun(plan, filled.env),)) if node is plan.master else filled


def _mpirun(plan: Plan, env: dict[str, str]) -> RankPlacement:
    command = _command(plan)
    size = str(plan.world_size)
    # mpirun gives all ranks the same variables, so no node's own number.
    own = ("OMPI_", "PRTE_", "GROUP_RANK", "MPICH_INTERFACE_HOSTNAME")
    names = tuple(name for name in env if not name.startswith(own))
    lets_signals_in: tuple[str, ...] = ()
    if _is_hydra(plan):
        if plan.slurm_job is not None:
            lets_signals_in = (plan.master.python, "-ISc", LET_SIGNALS_IN)
        addresses = [node.endpoint.address for node in plan.nodes]
        hosts = [_with_slots(plan, addresses)]
        if _family(plan) == INTEL_MPI:
            # It takes no number of slots in -hosts: it fills every host as far as it has cores.
            once_a_rank = [node.endpoint.address for node in plan.nodes for _ in range(node.slots)]
            hosts = [",".join(once_a_rank), "-ppn", "1"]
        words = ["mpirun", "-hosts", *hosts, "-n", size, "-localhost", addresses[0]]
        ours = ["-launcher", "ssh", "-launcher-exec", f"{RUN_DIR}/remote"]
        ours += ["-disable-x", "-genvnone"]
        exported = ["-genvlist", ",".join(names)]
    else:
        # Open MPI 5.0.7 and 5.0.8 know no other address of mpirun's own machine in --host.
        addresses = ["127.0.0.1"]
        for node in plan.nodes[1:]:  # colons precede slots there
            address = node.endpoint.address
            addresses.append((node.name if ":" in address else address).replace(":", "-"))
        words = ["mpirun", "--host", _with_slots(plan, addresses), "-np", size]
        words += ["--map-by", "slot", "--bind-to", "none"]
        ours = ["--leave-session-attached"]
        exported = [word for name in names for word in ("-x", name)]
    return RankPlacement(
        rank=Rank(0),
        local_rank=0,
        argv=(*words, *ours, "sh", "-c", _rank_script(plan), "sh", *lets_signals_in, *command),
        env={},
        by_hand=(*words, *exported, "sh", "-c", f'{TORCH_NAMES}exec "$@"', "sh", *command),
    )


def _with_slots(plan: Plan, addresses: Sequence[str]) -> str:
    slots = (node.slots for node in plan.nodes)
    return ",".join(f"{address}:{n}" for address, n in zip(addresses, slots, strict=True))


def _rank_script(plan: Plan) -> str:
    """Return ``AS_RANK``; in a Slurm job with the variables of a task of srun."""
    if plan.slurm_job is None:
        return AS_RANK
    hosts = ",".join(node.name for node in plan.nodes)
    names = {
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), plan.slurm_job),
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), hosts),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(len(plan.nodes))),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), "$WORLD_SIZE"),
        "SLURM_PROCID": "$RANK",
        "SLURM_LOCALID": "$LOCAL_RANK",
        "SLURM_NODEID": "$GROUP_RANK",
    }
    words = (f'{name}="{value}"' for name, value in names.items() if name not in plan.env)
    return f"{TORCH_NAMES}export {' '.join(words)}\n{REPORTING}"


def _command(plan: Plan) -> tuple[str, ...]:
    """Return the words of every rank; differing interpreters are given by a variable."""
    pythons = {node.python for node in plan.nodes}
    if len(pythons) == 1:
        return plan.command(plan.master.python)
    python, *rest = plan.command(plan.master.python)
    if python != plan.master.python:
        return (python, *rest)
    return ("sh", "-c", f'exec "${PYTHON}" "$@"', "sh", *rest)


def _open_mpi_env(plan: Plan, node: NodePlan) -> dict[str, str]:
    """Return Open MPI's parameters as variables, each under its names in versions 4 and 5."""
    env: dict[str, str] = {}
    if node.facts.uid == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        env |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if not node.endpoint.address.startswith("127."):
        # Open MPI 4 reads networks of IPv4 alone.
        each = (node.endpoint.nic if _has_ipv6(plan) else _subnet(node) for node in plan.nodes)
        used = list(dict.fromkeys(each))
        if None not in used and (len(used) == 1 or not _has_ipv6(plan)):
            for name in ("OMPI_MCA_btl_tcp", "OMPI_MCA_oob_tcp", "PRTE_MCA_prte"):
                env[f"{name}_if_include"] = ",".join(map(str, used))
    for prefix, shell in (("OMPI_MCA_", "rsh"), ("PRTE_MCA_", "ssh")):
        env[f"{prefix}plm"] = shell
        env[f"{prefix}plm_{shell}_agent"] = f"{RUN_DIR}/remote"
        env[f"{prefix}plm_{shell}_no_tree_spawn"] = "1"
        base = "orte" if shell == "rsh" else "prte"
        env[f"{prefix}{base}_tmpdir_base"] = f"{RUN_DIR}/engine"
    return env


def _subnet(node: NodePlan) -> str:
    """Return the network of a node's address: names of interfaces may differ between hosts."""
    address = node.endpoint.address
    prefix = next((i.prefix for i in node.facts.interfaces if i.address == address), -1)
    return str(ipaddress.ip_network(f"{address}/{prefix if prefix >= 0 else 32}", strict=False))


def _is_hydra(plan: Plan) -> bool:
    return _family(plan) in HYDRA_FAMILIES


def _family(plan: Plan) -> str:
    build = plan.master.facts.engines.mpi
    return build.family if build is not None else ""
