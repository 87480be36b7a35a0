"""What the JSON calls each group of facts."""

from __future__ import annotations

from distconsole.checks.collective_facts import (
    CollFacts,
    HorovodCollFacts,
    HorovodMpiFacts,
    MpiCollFacts,
)
from distconsole.checks.facts import (
    ClockFacts,
    EnvFacts,
    Facts,
    GpuFacts,
    HorovodFacts,
    MpiFacts,
    OsFacts,
    PythonFacts,
    ShellFacts,
    SshFacts,
    TorchFacts,
)
from distconsole.checks.folder_facts import FolderFacts, SpeedFacts
from distconsole.checks.gpu_facts import GpuLoadFacts
from distconsole.checks.host_facts import (
    BetweenFacts,
    FabricFacts,
    ImportFacts,
    KernelFacts,
    LifeFacts,
    MpiSshFacts,
    NameFacts,
    ProcFacts,
    ShmFacts,
)
from distconsole.checks.net_facts import BandwidthFacts, NetFacts, PortFacts, ReachFacts
from distconsole.checks.script_facts import ScriptFacts
from distconsole.checks.slurm_facts import MungeFacts, SlurmFacts, StepFacts

GROUP_NAMES: dict[type[Facts], str] = {
    SshFacts: "ssh",
    LifeFacts: "life",
    ClockFacts: "clock",
    OsFacts: "os",
    ShellFacts: "shell",
    PythonFacts: "python",
    TorchFacts: "torch",
    HorovodFacts: "horovod",
    EnvFacts: "env",
    MpiFacts: "mpi",
    GpuFacts: "gpu",
    GpuLoadFacts: "gpu_load",
    PortFacts: "port",
    ScriptFacts: "script",
    FolderFacts: "folders",
    SpeedFacts: "speed",
    NameFacts: "names",
    ImportFacts: "import",
    KernelFacts: "kernel",
    FabricFacts: "fabric",
    ProcFacts: "proc",
    ShmFacts: "shm",
    BetweenFacts: "between",
    NetFacts: "net",
    SlurmFacts: "slurm",
    MungeFacts: "munge",
    StepFacts: "slurm_step",
    ReachFacts: "reach",
    BandwidthFacts: "bandwidth",
    CollFacts: "coll",
    HorovodCollFacts: "coll_horovod",
    HorovodMpiFacts: "coll_horovod_mpi",
    MpiCollFacts: "coll_mpi",
    MpiSshFacts: "mpi_ssh",
}
