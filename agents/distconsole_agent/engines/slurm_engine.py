"""The shim of a node of a run by mpirun below Slurm: both kinds at once. It adds nothing to them.

What keeps Slurm's signals from mpirun and its daemons is in ``processes.py``: they are blocked
there, and Open MPI, or the ranks' own wrapper, lets them through to the ranks.
"""

from __future__ import annotations

from distconsole_agent.engines.engine_shim import EngineShim
from distconsole_agent.engines.slurm_shim import SlurmShim


class SlurmEngineShim(SlurmShim, EngineShim):
    """One node of a run by mpirun, as a task of a step."""
