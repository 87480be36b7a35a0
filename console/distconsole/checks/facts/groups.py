"""What the JSON calls each group of facts."""

from __future__ import annotations

from distconsole.checks.facts.collectives import (
    CollFacts,
    HorovodCollFacts,
    HorovodMpiFacts,
    MpiCollFacts,
)
from distconsole.checks.facts.folders import FolderFacts, SpeedFacts
from distconsole.checks.facts.gpu import GpuLoadFacts
from distconsole.checks.facts.host import (
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
from distconsole.checks.facts.network import BandwidthFacts, NetFacts, PortFacts, ReachFacts
from distconsole.checks.facts.node import (
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
from distconsole.checks.facts.script import ScriptFacts
from distconsole.checks.facts.slurm import MungeFacts, SlurmFacts, StepFacts

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
