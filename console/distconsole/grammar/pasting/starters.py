"""The options of the programs that start distributed jobs, as far as a pasted command needs them told apart.

Sources: torch/distributed/run.py and launch.py (2.13), horovod/runner/launch.py (0.28), mpirun(1) of
Open MPI 4 and 5, MPICH's and Intel's Hydra (``mpiexec -help``), srun(1) of Slurm 22.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Table = Mapping[str, tuple[int, str]]
"""By option, dashes left and underscores for those within: how many values follow, and what it means.

An empty meaning: nothing that a check looks at.
"""


@dataclass(frozen=True, slots=True)
class Starter:
    """A program that starts ranks.

    Attributes:
        dashes: Whether an option of several letters begins with two dashes only.
        glued: Single letters whose value may follow at once (``-N2``).
    """

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
