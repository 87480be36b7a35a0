"""What the JSON calls each group of facts."""

from __future__ import annotations

from distconsole.checks.facts import (
    BandwidthFacts,
    ClockFacts,
    CollFacts,
    EnvFacts,
    Facts,
    GpuFacts,
    HorovodCollFacts,
    HorovodFacts,
    MpiCollFacts,
    MpiFacts,
    NetFacts,
    OsFacts,
    PortFacts,
    PythonFacts,
    ReachFacts,
    ShellFacts,
    SshFacts,
    TorchFacts,
)
from distconsole.checks.host_facts import NameFacts, ProcFacts, ShmFacts

GROUP_NAMES: dict[type[Facts], str] = {
    SshFacts: "ssh",
    ClockFacts: "clock",
    OsFacts: "os",
    ShellFacts: "shell",
    PythonFacts: "python",
    TorchFacts: "torch",
    HorovodFacts: "horovod",
    EnvFacts: "env",
    MpiFacts: "mpi",
    GpuFacts: "gpu",
    PortFacts: "port",
    NameFacts: "names",
    ProcFacts: "proc",
    ShmFacts: "shm",
    NetFacts: "net",
    ReachFacts: "reach",
    BandwidthFacts: "bandwidth",
    CollFacts: "coll",
    HorovodCollFacts: "coll_horovod",
    MpiCollFacts: "coll_mpi",
}
