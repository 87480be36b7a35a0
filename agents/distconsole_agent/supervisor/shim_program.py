"""The shim as a program: reads its run's spec, becomes a subreaper, and lives until the run has ended."""

from __future__ import annotations

import os
import signal
import sys
import warnings

from distconsole_agent.contract.runspec import MPI, RunSpec, SpecError, read_spec
from distconsole_agent.node_folder.node_owner import keep_from_cleaners, keep_node_dir
from distconsole_agent.supervisor.runlog import claim
from distconsole_agent.supervisor.shim import Shim
from distconsole_agent.supervisor.spawning import become_subreaper
from distconsole_agent.system.descriptors import raise_limit
from distconsole_agent.system.loop import Loop


def main(argv: list[str]) -> int:
    """Be the shim of the run in ``--run DIR``; return the exit code."""
    if len(argv) != 2 or argv[0] != "--run":
        sys.stderr.write("usage: shim --run DIR\n")
        return 2
    run_dir = os.path.abspath(argv[1])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A rank is forked beside the reader of its output; the child calls nothing that a thread locks.
    warnings.simplefilter("ignore", DeprecationWarning)
    raise_limit()
    try:
        spec = read_spec(os.path.join(run_dir, "spec.json"))
        # Held open, and so locked, for life.
        node_dir = os.path.dirname(os.path.dirname(run_dir))
        held = (claim(run_dir), keep_node_dir(node_dir), keep_from_cleaners(node_dir))
        os.chdir(run_dir)
        become_subreaper()
    except (SpecError, OSError) as error:
        sys.stderr.write(f"distconsole shim: {error}\n")
        return 1
    loop = Loop()
    shim = _kind(spec)(loop, run_dir, spec)
    try:
        loop.run()
    except Exception:  # noqa: BLE001 - the one guard: ranks must not outlive a broken shim
        import traceback

        shim.crashed(traceback.format_exc())
        return 1
    finally:
        shim.close()
        loop.close()
        for descriptor in held:
            if descriptor is not None:
                os.close(descriptor)
    return shim.exit_code


def _kind(spec: RunSpec) -> type[Shim]:
    # Late: each run needs one of them.
    if spec.below_slurm and spec.launcher == MPI:
        from distconsole_agent.engines.mpi import MpiShim
        from distconsole_agent.engines.slurm_shim import SlurmShim

        class SlurmMpiShim(SlurmShim, MpiShim):
            """A run by mpirun below Slurm. ``processes.py`` keeps Slurm's signals from mpirun and its daemons."""

        return SlurmMpiShim
    if spec.below_slurm:
        from distconsole_agent.engines.slurm_shim import SlurmShim

        return SlurmShim
    if spec.launcher == MPI:
        from distconsole_agent.engines.mpi import MpiShim

        return MpiShim
    if spec.driver:
        from distconsole_agent.engines.elastic_shim import ElasticShim

        return ElasticShim
    return Shim
