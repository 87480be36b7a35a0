"""The options of the programs that start distributed jobs, as far as a pasted command needs them told apart, and
what each means for the launch.

Sources: torch/distributed/run.py and launch.py (2.13), horovod/runner/launch.py (0.28), mpirun(1) of
Open MPI 4 and 5, MPICH's and Intel's Hydra (``mpiexec -help``), srun(1) of Slurm 22.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.model.requests import LauncherName, PassArgs

Table = Mapping[str, tuple[int, str]]
"""By option, dashes left and underscores for those within: how many values follow, and what it means.

An empty meaning: nothing that a check looks at.
"""


@dataclass(frozen=True, slots=True)
class Starter:
    """A program that starts ranks; ``dashes``: letters after one dash are options; ``glued``: ``-N2``."""

    name: str
    options: Table
    dashes: bool = True
    glued: str = ""


def _table(**groups: str) -> dict[str, tuple[int, str]]:
    """Return a table from groups of names: ``ranks_1`` holds what takes one value and means ``ranks``."""
    found: dict[str, tuple[int, str]] = {}
    for group, names in groups.items():
        meaning, _, values = group.rpartition("_")
        found.update({name: (int(values), meaning) for name in names.split()})
    return found


TORCHRUN = Starter(
    "torchrun",
    _table(
        per_host_1="nproc_per_node nproc",
        nnodes_1="nnodes",
        address_1="master_addr",
        port_1="master_port",
        endpoint_1="rdzv_endpoint",
        backend_1="rdzv_backend",
        standalone_0="standalone",
        max_restarts_1="max_restarts",
        module_0="module m",
        command_0="no_python",
        script_0="run_path",
        own_env_0="use_env",
        nothing_1="node_rank rdzv_id rdzv_conf monitor_interval start_method role log_dir redirects r "
        "tee t local_addr local_ranks_filter logs_specs event_log_handler numa_binding "
        "signals_to_handle duplicate_stdout_filters duplicate_stderr_filters",
        nothing_0="virtual_local_rank",
    ),
)

HOROVODRUN = Starter(
    "horovodrun",
    _table(
        ranks_1="np num_proc n",
        hosts_1="H hosts",
        hostfile_1="hostfile",
        nic_1="network_interface network_interfaces nics",
        mpi_0="mpi",
        gloo_0="gloo",
        mpi_arguments_1="mpi_args",
        elastic_1="min_np min_num_proc max_np max_num_proc host_discovery_script slots_per_host slots "
        "reset_limit elastic_timeout",
        nothing_1="p ssh_port i ssh_identity_file start_timeout output_filename binding_args "
        "config_file fusion_threshold_mb cycle_time_ms cache_capacity timeline_filename "
        "autotune_log_file autotune_warmup_samples autotune_steps_per_sample "
        "autotune_bayes_opt_max_samples autotune_gaussian_process_noise log_level "
        "stall_check_warning_time_seconds stall_check_shutdown_time_seconds num_nccl_streams "
        "thread_affinity gloo_timeout_seconds blacklist_cooldown_range",
        nothing_0="verbose disable_cache tcp prefix_output_with_timestamp autotune no_autotune "
        "hierarchical_allreduce no_hierarchical_allreduce hierarchical_allgather "
        "no_hierarchical_allgather timeline_mark_cycles no_timeline_mark_cycles no_stall_check "
        "stall_check jsrun mpi_threads_disable no_mpi_threads_disable log_with_timestamp "
        "log_without_timestamp log_hide_timestamp no_log_hide_timestamp",
    ),
    dashes=False,
)

MPIRUN = Starter(
    "mpirun",
    _table(
        ranks_1="np n c",
        per_host_1="N npernode ppn perhost ranks_per_proc",
        map_1="map_by",
        one_a_host_0="pernode",
        hosts_1="H host hosts",
        hostfile_1="hostfile machinefile f machine default_hostfile",
        export_1="x",
        env_2="env genv",
        mca_2="mca gmca",
        workdir_1="wdir wd",
        mca_nic_1="iface",
        nothing_2="prtemca pmixmca gprtemca gpmixmca",
        nothing_1="bind_to rank_by output_filename prefix timeout launcher rf rankfile path tune am "
        "report_state_on_timeout output_directory output dvm stdin max_restarts s rmk bootstrap "
        "envlist genvlist cpu_set cpu_list cpus_per_proc cpus_per_rank personality runtime_options "
        "display tmpdir rsh_agent pmi_port slot_list sf xterm",
        nothing_0="allow_run_as_root oversubscribe nooversubscribe tag_output timestamp_output "
        "report_bindings display_map display_allocation display_devel_map bynode byslot bycore "
        "bysocket nolocal use_hwthread_cpus v q quiet verbose l prepend_rank genvall genvnone envall "
        "envnone enable_recovery bind_to_core bind_to_socket bind_to_none merge_stderr_to_stdout "
        "leave_session_attached do_not_launch continuous index_argv_by_rank novm report_events "
        "get_stack_traces show_progress",
    ),
    dashes=False,
)

SRUN = Starter(
    "srun",
    _table(
        nnodes_1="N nodes",
        ranks_1="n ntasks",
        per_host_1="ntasks_per_node",
        hosts_1="w nodelist",
        slurm_export_1="export",
        workdir_1="D chdir",
        nothing_1="p partition A account t time J job_name x exclude mpi c cpus_per_task o output e "
        "error i input mem mem_per_cpu mem_per_gpu gres G gpus gpus_per_node gpus_per_task "
        "gpus_per_socket C constraint q qos m distribution W wait cpu_bind gpu_bind mem_bind hint "
        "network open_mode jobid d dependency reservation L licenses S core_spec B "
        "extra_node_info F nodefile ntasks_per_core ntasks_per_socket ntasks_per_gpu r relative T "
        "threads threads_per_core cores_per_socket sockets_per_node task_epilog task_prolog "
        "signal comment container_image container_mounts container_workdir container_name "
        "tres_per_task tres_bind cluster M clusters deadline priority export_file slurmd_debug "
        "cpu_freq accel_bind het_group acctg_freq bcast compress max_threads",
        nothing_0="l label u unbuffered Z no_allocate O overcommit Q quiet v verbose X "
        "disable_status E preserve_env H hold pty overlap exact exclusive s oversubscribe "
        "no_container_mount_home container_mount_home multi_prog spread_job use_min_nodes "
        "no_container_remap_root container_remap_root wait_all_nodes k no_kill K kill_on_bad_exit",
    ),
    glued="NnwDcptGAJoeimCqxrK",
)

STARTERS = {
    "torchrun": TORCHRUN,
    "horovodrun": HOROVODRUN,
    "mpirun": MPIRUN,
    "mpiexec": MPIRUN,
    "mpiexec.hydra": MPIRUN,
    "orterun": MPIRUN,
    "prterun": MPIRUN,
    "srun": SRUN,
}
"""By the program's name."""


def foreign_word(words: Sequence[str]) -> str:
    """Return the first of ``words`` that mpirun or horovodrun takes as one option, and we as several letters."""
    for word in words:
        name = word.lstrip("-").replace("-", "_")
        if re.fullmatch(r"-[A-Za-z][\w-]+", word) and any(
            name in each.options for each in STARTERS.values() if not each.dashes
        ):
            return word
    return ""


@dataclass(frozen=True, slots=True)
class Pasted:
    """What a command says; what it does not is empty.

    Attributes:
        starter: The program that starts the ranks, as it was typed.
        per_host: Ranks on each host, or ``gpu``; ``ranks`` are those of all hosts.
        hosts: As ``--hosts`` takes them; ``hostfile`` as ``--hostfile`` does.
        env: What is set in every rank; of the names in ``exported`` the value is that of the shell.
        address: Where the ranks are told to meet, and at which ``port``.
    """

    script: str = ""
    arguments: tuple[str, ...] = ()
    starter: str = ""
    module: bool = False
    launcher: LauncherName = LauncherName.AUTO
    python: str = ""
    per_host: str = ""
    ranks: int | None = None
    nnodes: str = ""
    hosts: str = ""
    hostfile: str = ""
    env: tuple[tuple[str, str], ...] = ()
    exported: tuple[str, ...] = ()
    workdir: str = ""
    nic: str = ""
    address: str = ""
    port: int | None = None
    pass_args: PassArgs | None = None
    max_restarts: int | None = None
    ours: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def noting(self, note: str) -> Pasted:
        return replace(self, notes=(*self.notes, note))

    def setting(self, name: str, value: str) -> Pasted:
        """Return it with one more variable; the rendezvous is read from some of them."""
        with_it = replace(self, env=(*self.env, (name, value)))
        if name == "MASTER_ADDR":
            return replace(with_it, address=value)
        if name == "MASTER_PORT":
            return replace(with_it, port=port_number(name, value))
        return with_it


def port_number(option: str, value: str) -> int | None:
    """Return the port; None for 0, which means any; raises UsageError if it is none."""
    if not re.fullmatch(r"\d{1,5}", value) or int(value) > 65535:
        raise UsageError(f"{option} {value} is not a port", "a number from 1 to 65535")
    return int(value) or None


Meanings = list[tuple[str, str, tuple[str, ...]]]
"""Options given: what it means, as it was typed, and its values."""


def split_options(starter: Starter, words: list[str]) -> tuple[Meanings, list[str]]:
    """Split into options with values and what is behind them; raises UsageError for unknown ones."""
    found: Meanings = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return found, words[at + 1 :]
        if not word.startswith("-") or word == "-":
            break
        typed, equals, value = word.partition("=")
        values, meaning, glued = _find_option(starter, typed, word)
        if glued:
            found.append((meaning, typed, (glued,)))
            at += 1
        elif equals:
            found.append((meaning, typed, (value,)))
            at += 1
        else:
            given = tuple(words[at + 1 : at + 1 + values])
            if len(given) < values:
                raise UsageError(f"{starter.name} {typed} lacks its value", f"{typed} VALUE")
            found.append((meaning, typed, given))
            at += 1 + values
    return found, words[at:]


def _find_option(starter: Starter, typed: str, word: str) -> tuple[int, str, str]:
    """Return an option's values, its meaning, and the value that is written at it."""
    options = starter.options
    name = typed.lstrip("-").replace("-", "_")
    one_dash = typed.startswith("-") and not typed.startswith("--")
    if name in options and (len(name) == 1 or not one_dash or not starter.dashes):
        return *options[name], ""
    if one_dash and word[1:2] in starter.glued and word[1:2] in options:
        return *options[word[1]], word[2:]
    if "=" in word:
        return 1, "nothing", ""
    near = nearest(name, options)
    long = "--" if near and len(near) > 1 else "-"
    raise UsageError(
        f"{starter.name} has no option {typed} that is known here, so what follows it cannot be told "
        "apart",
        f"did you mean {long}{near.replace('_', '-')}?" if near else "leave it out for the check",
    )


def split_words(text: str) -> list[str]:
    """Return the words of ``text`` as a shell has them; raises UsageError if a quote is open."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the command cannot be split: {error}", "close the quote") from None


Meaning = Callable[[Pasted, str, str], Pasted]
"""From what is known, the option as it was typed and its value, to what is known then."""


def apply(found: Pasted, meaning: str, option: str, values: tuple[str, ...]) -> Pasted:
    """Return ``found`` with what one option means; raises UsageError for a value that cannot be."""
    if meaning in PAIRS and len(values) == 2:
        return found.setting(PAIRS[meaning] + values[0], values[1])
    if meaning in AS_TYPED:
        changes: dict[str, Any] = {meaning: values[0]}
        return replace(found, **changes)
    reader = MEANINGS.get(meaning)
    return found if reader is None else reader(found, option, values[0] if values else "")


def _map(found: Pasted, _option: str, value: str) -> Pasted:
    each = re.fullmatch(r"ppr:(\d+):node(:.*)?", value)
    return replace(found, per_host=each[1]) if each else found


def _export(found: Pasted, _option: str, value: str) -> Pasted:
    name, equals, text = value.partition("=")
    if equals:
        return found.setting(name, text)
    return replace(found, exported=(*found.exported, name))


def _slurm_export(found: Pasted, _option: str, value: str) -> Pasted:
    for part in value.split(","):
        name, equals, text = part.partition("=")
        found = found.setting(name, text) if equals else found
    return found


def _mpi_arguments(found: Pasted, option: str, value: str) -> Pasted:
    options, _ = split_options(MPIRUN, split_words(value))
    for meaning, typed, values in options:
        found = apply(found, meaning, f"{option} {typed}", values)
    return found


def _nic(found: Pasted, option: str, value: str) -> Pasted:
    first, comma, _ = value.partition(",")
    found = replace(found, nic=first)
    return found.noting(f"{option} names several, of which {first} is taken") if comma else found


def _endpoint(found: Pasted, option: str, value: str) -> Pasted:
    match = re.fullmatch(r"\[?([^\[\]]*?)\]?(?::(\d+))?", value)
    if match is None:
        raise UsageError(f"{option} {value} is not HOST:PORT", "such as: server1:29400")
    return replace(
        found, address=match[1], port=port_number(option, match[2]) if match[2] else None
    )


def _number(option: str, value: str, least: int = 1) -> int:
    if not re.fullmatch(r"\d{1,6}", value) or int(value) < least:
        raise UsageError(f"{option} {value} is not a number from {least}", "such as: 2")
    return int(value)


def _per_host(found: Pasted, option: str, value: str) -> Pasted:
    if value == "cpu":
        raise UsageError(f"{option} cpu: a rank a processor is not known here", "give a number")
    gpu = value in ("gpu", "auto")
    return replace(found, per_host="gpu" if gpu else str(_number(option, value)))


PAIRS: Mapping[str, str] = {"env": "", "mca": "OMPI_MCA_"}
"""Options of a name and a value, and what the variable of that name begins with."""

MEANINGS: Mapping[str, Meaning] = {
    "ranks": lambda found, option, value: replace(found, ranks=_number(option, value)),
    "per_host": _per_host,
    "one_a_host": lambda found, _, __: replace(found, per_host="1"),
    "map": _map,
    "nnodes": lambda found, _, value: replace(found, nnodes=value.replace("-", ":")),
    "max_restarts": lambda found, option, value: replace(
        found, max_restarts=_number(option, value, 0)
    ),
    "export": _export,
    "slurm_export": _slurm_export,
    "mca_nic": lambda found, _, value: found.setting("OMPI_MCA_btl_tcp_if_include", value),
    "mpi_arguments": _mpi_arguments,
    "mpi": lambda found, _, __: replace(found, launcher=LauncherName.MPI),
    "nic": _nic,
    "port": lambda found, option, value: replace(found, port=port_number(option, value)),
    "endpoint": _endpoint,
    "elastic": lambda found, option, value: found.noting(
        f"{option} {value}: only the hosts that are there are checked"
    ),
}
AS_TYPED = frozenset({"hosts", "hostfile", "workdir", "address"})
"""Meanings that are fields of a command, which hold the value."""
