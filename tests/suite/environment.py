"""Hides the developer's own machine from the tests; it changes nothing outside this process."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PREFIXES = (
    "CUDA_",
    "DISTCONSOLE_",
    "GLOO_",
    "GROUP_",
    "HOROVOD_",
    "LOCAL_",
    "NCCL_",
    "OMPI_",
    "OMP_",
    "PET_",
    "PMIX_",
    "PMI_",
    "ROLE_",
    "SLURM_",
    "TEXTUAL",
    "TMUX",
    "TORCH",
    "XDG_",
)
NAMES = (
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLORTERM",
    "COLUMNS",
    "FORCE_COLOR",
    "HOSTNAME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LINES",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NO_COLOR",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "RANK",
    "SSH_ASKPASS",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "VIRTUAL_ENV",
    "WORLD_SIZE",
)
KEPT = ("TEXTUAL_SNAPSHOT_TEMPDIR",)
"""What the snapshot plugin tells its xdist workers."""
FIXED = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "TERM": "xterm-256color",
    "TZ": "UTC",
}


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` as if nobody had configured anything on this machine."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in KEPT or (name not in NAMES and not name.startswith(PREFIXES))
    }
    programs = str(Path(sys.executable).parent)
    path = kept.get("PATH", os.defpath)
    return {**kept, **FIXED, "PATH": f"{programs}{os.pathsep}{path}"}
