"""The catalogue as text: ``check --explain`` and docs/checks.md are both made here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from distconsole.checks.engine.catalogue import CATALOGUE, find_rule
from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.model.events import Event, TextMade
from distconsole.model.requests import Explain


def explain(check: str) -> str:
    """Return what one check does, or what those of a group or the beginning of an id catch.

    Raises:
        UsageError: if there is none of this id.
    """
    rule = find_rule(check)
    if rule is None:
        some = [each for each in CATALOGUE if each.group == check or each.id.startswith(check)]
        if check and some:
            width = max(len(each.id) for each in some)
            return "\n".join(f"{each.id:<{width}}  {each.catches}" for each in some)
        near = nearest(check, [each.id for each in CATALOGUE])
        raise UsageError(
            f"there is no check {check}",
            f"did you mean {near}?" if near else "see docs/checks.md",
        )
    needs = ", ".join(kind.group for kind in rule.needs)
    return "\n".join(
        [
            f"{rule.id}   group {rule.group}, from --level {rule.level.value} on",
            f"  catches: {rule.catches}",
            f"  hint:    {rule.hint}",
            f"  reads:   {needs}",
        ]
    )


def explain_check(request: Explain) -> Iterator[Event]:
    """Answer ``check --explain ID``.

    Raises:
        UsageError: if there is no such check.
    """
    yield TextMade(text=explain(request.check))


PROOF = """\
## The outcome

| `outcome` | exit code | means |
|---|---|---|
| `healthy` | 0 | every host was reached, and everything that was asked for was looked at and found well (with `--strict`: also no warning) |
| `failed` (the headline: `not healthy`) | 1 | a failure was found |
| `incomplete` | 1; 3: no host was reached, or one is missing that the launch needs; 130: Ctrl-C; 143: SIGTERM | a part could not be made: a host was not reached or stopped answering, `--budget` was over, the check was cancelled, a question had no answer, or there was nothing to judge on a host, or anywhere of a word of `--only`: no GPU, no Slurm, no check at this level |

Headline, screen, JSON (`outcome`, and `ok` where healthy), JUnit (the last test case, `outcome`) and exit code say the same. A host that
cannot be reached, or dies meanwhile, is a failure (`ssh.*`) whatever `--only` and `--skip` leave. Ctrl-C and SIGTERM print the report of what was
found so far; the second signal ends the program. `--emit-hostfile` names hosts of which everything was looked at and found well, with `--strict` also no warning.

## Connections that fail

The cure follows the system's code: no route to the host or network (`EHOSTUNREACH`, `ENETUNREACH`), no buffer space (`ENOBUFS`), refused
(`ECONNREFUSED`), no answer (`ETIMEDOUT`, or a timeout of the check's own). Pairs of hosts with the same code are one finding. Where
connections fail, the kernel's log of both ends is read once more: if the neighbour table overflowed in the minute before, that is the one cause, and
`gc_thresh3` the cure.

## How the engines are proved

From `--level standard` on three short jobs run over all hosts that reach each other (`--only coll`; `--skip
horovod,mpi` leaves out all that is about those two): torch's process group, Horovod and mpirun, the last two only where every host has them.

* A host whose connections are broken takes part in no job, and the finding names the way, also where only the jobs were asked
  for. After a job that came to nothing all ways are tried once more: one may have broken since, and then that is the finding.
* Horovod's and mpirun's are runs like those of `run --launcher horovod` and `mpi`: the same plan, variables, key-value
  store and our own program in place of ssh. They are in no list of runs here and leave nothing on the hosts. What `run`
  would refuse is said (`info`), with its words.
* The ranks compare rank, size, local and cross rank with the plan, and verify every value of every collective bit for
  bit: inputs are whole numbers that each rank can work out for all others, so there is no tolerance.
* Below mpirun the ranks call MPI's library by themselves (ctypes, Open MPI's and MPICH's ABI): neither mpi4py nor torch is
  needed. It is the library that a program linked with MPI would get, so that of another MPI than mpirun's shows as it
  would there: every rank says size 1.
* At `standard` the jobs go on at the same time unless there are GPUs, so their times mean little. At `full`, and in
  `distconsole bench collectives --launcher torch|horovod|mpi`, they go on one after the other and sweep over all
  operations, 4 B to 64 MiB; where `--budget` is short, large messages are left out and named.
"""


PANEL = """\
## Which interface each engine takes

`net.choices` works out, from what each host says of its interfaces, routes, name and variables, where NCCL, Gloo, Horovod
and Open MPI (ranks and daemons) will listen on each host: as `distconsole run` starts them (it names the interface on every host), and by hand
(what the library finds by itself). The panel stands in the report where something is red, with `--details`, at `--level full`, on the
screen of the check (`I`), and in the JSON as `choices`: `engine, start (run|hand), host, interface, address, how, meets, why`.

* Red (`meets` false) is an address that another host cannot reach: loopback, an address that several hosts have, one
  without a carrier or a route, one that a connection of this check did not reach. Where only a route leads there, a connection is tried.
* `net.choices` itself only says what no other check does: a host's own name that means loopback is `os.hostname_bindable`,
  docker0 everywhere is `net.iface_matrix`.
* Open MPI matches the interfaces of two hosts to as many pairs as there can be and uses all of them at once: one red pair hangs it.
  Its daemons try one address after the other. Horovod's process sets listen at the host's own name whatever it is told.
* horovodrun takes the first of a *set* of common names, so of several it is by chance: `eth0|eth1`.
* What is foretold of Gloo, Horovod and Open MPI is tested against the real ones (`tests/integration/test_check_choices.py`). NCCL's
  rules are those of its source and were not seen at work: the machines that this was made on have no GPU. What MPICH and
  Intel MPI take is not foretold, and the panel says so (`?`): libfabric or UCX, as the library was built, takes what it finds at the start.
  `run` sets MPICH_INTERFACE_HOSTNAME and FI_TCP_IFACE for them, which hold where that is libfabric over TCP.
"""

CURES = """\
## Cures that were tried

Where the cure of a finding is a variable, an interface, a port, a limit or an address, the finding carries it as data
(`cure` in JSON), and at levels standard and full the smallest test that fails is run without the cure and with it
(`proof`; `before:` and `after:` in the text). `--no-prove` leaves that out, `--prove` has it at level quick, too.

* Ranks started as by hand, with nothing that `run` sets: an all-reduce by torch and Gloo (`os.hostname_bindable`,
  `env.*`, `net.nic_names`, `net.choices`) or by mpirun (`net.iface_matrix`, `net.other_networks`), one rank a host on two to eight hosts.
* Ranks started as `run` starts them, on the network that it chose and on another one that all hosts share (`net.mtu`,
  `net.reach_tcp`, `net.asymmetric`, `net.port_ephemeral`), or with another MPI's library first (`mpi.rank_size`, `horovod.mpi`).
  Where no connection comes about at all, one more is tried in place of the ranks without the cure, which would only wait for it.
* A process started as a rank is: open files, limits, TMPDIR, variables (`lim.*`, `tmp.dir`, `env.consistency`).
* A port that is bound (`port.master_free`), a connection (`net.port_ephemeral`, `os.peer_names`).

Both ways run at the same time, and one that hangs is ended soon after the other has done it: at most four checks are
tried, worst first, after everything else, for 40 s each at most and within `--budget`. What does not fail is not claimed
(`could not be made to fail`), and a cure that did not help is no hint any more. What needs GPUs is not tried without them.

`--write-profile [FILE.toml]` puts proven cures into the project's `distconsole.toml`, where `run` finds them: `[run.env]`, and
`nic`, `address` and `setup` of `[hosts.NAME]`. The rest of the file stays as it is. A key that has another value already is
refused with its line, and then nothing is written. A file that was trusted (`distconsole trust`), or needed no trust, stays so. What `run` does by itself is not written; the output says so.

## Expectations

Thresholds come from the hosts themselves. What you expect of them goes into the configuration, for all hosts, for those of a
cluster (`[clusters.NAME.expect]`) or for one (`[hosts."gpu[01-08]".expect]`), and is then a check of group `expect`:

```toml
[expect]
python = "3.11"            # all that begin with it; or a specifier such as ">=3.10,<3.13"
torch = ">=2.4"            # likewise cuda, nccl, horovod, mpi, driver
gpus = 8
gpu_model = "H100"         # a part of the name
gpu_memory = "79GiB"       # likewise memory, shm, disk_free; and cpus = 64
nofile = 65536
memlock = "unlimited"
rtt_us = 100               # at most, to every other host
pair_gbit_s = 80           # at least, to every other host; measured at --level full

[expect.packages]
numpy = ">=2"

[[expect.collectives]]
op = "all_reduce"
bytes = "64MiB"            # as nccl-tests counts; left out: the largest that was timed
busbw_gbs = 10             # at least; or time_us, at most; launcher = "torch", "horovod" or "mpi"
```

Where an absolute value is given, the relative threshold for the same thing is silent.
"""


LAUNCH = """\
## Checking a launch

`check SCRIPT [ARGS…]` and `check -- COMMAND …` check exactly what that launch would use. COMMAND is what one would type: `python
train.py`, `python -m pkg.train`, `torchrun`, `horovodrun`, `mpirun`/`mpiexec`, `srun`, `distconsole run`, with variables before it, `cd DIR
&&`, and `env`, `nohup` or `time`. It is planned as `run` plans it (`run --dry-run` shows the plan), with the options of `run` (before the
script: `--launcher --nproc --nnodes --module --env --env-file --workdir --sync --pass-args --nic`) and the table `[run]` of the
configuration. What is said on the command line goes before what the command says, and that before the configuration.

* From the command are taken: interpreter, script or module, launcher, ranks (`-np` is divided among the hosts, by their slots where they have
  any), hosts where none are given, variables (`-x`, `--export`, `-genv`), MCA parameters (as `OMPI_MCA_*`), interface, and where ranks meet
  (`MASTER_ADDR`, `MASTER_PORT`, `--master_addr`, `--rdzv_endpoint`, `tcp://…`). torchrun's own port is 29500, or 29400 with c10d. An
  unknown option is refused by name.
* The hosts' own Python compiles the script and looks for what it imports; nothing of it runs, no module is imported. Local code is followed from
  file to file (400 files, 32 MiB) and compared by SHA-256. What stands in a function, in `try … except ImportError` or in an `if` is
  optional: it is told (`info`) where only some hosts have it.
* Paths among the arguments are those that begin with `/`, `./` or `../`, and other words that are there on this machine; options named
  like output, save or checkpoint are written to.
* Variables are judged as the ranks would have them, the launch's over the host's. Collectives run with them, on the launch's interface and
  fixed port, with its ranks on each host. Engines that it does not use are left out.
* With `--sync` the code is not there yet: it travels with the question (up to 300 files, 512 KiB of Python) and is left nowhere.

## What is written

A check is read-only, with these exceptions. With a launch a file is made, and loses its name in the same moment, in the working folder, in output
folders and in TMPDIR (`fs.writable`); from `standard` on 4 MiB are written so, and eight small files are made and removed one by one
(`fs.speed`; 64 MiB at `full`). Without a launch that happens at `full` only, in the home and TMPDIR. Data is only read, past the page
cache (O_DIRECT). All of it goes on in a process that is left behind when a filesystem hangs. A folder is slow when it takes five
times as long as on the others (median), measured again alone, and is not fast anyway (100 MiB/s written, 200 MiB/s read, 5 ms a file).
"""


GPUS = """\
## GPUs at work

At rest a healthy GPU slows its PCIe link down, and some use fewer lanes, so a reading at rest can neither accuse nor acquit. From
`--level standard` on each host copies to its GPUs and reads width, generation, replays and reasons for slow clocks meanwhile
(`gpu.pcie_load`, `gpu.nvlink_load`, `gpu.cuda`; `--skip gpu.pcie_load,gpu.nvlink_load,gpu.cuda` leaves it out).

* A GPU gets two bursts of 40 ms in each direction (at most 2 GiB each), one GPU after the other, from pinned memory (32 MiB) next to it;
  then those that NVLink joins copy to each other. Neither torch nor a kernel is used: only CUDA's driver, in a process of its own that is
  killed at its deadline, and at once when the check is given up.
* Only GPUs that nobody uses are touched. One with a process, with more than 512 MiB or with a load whose owner is not to be seen, in an
  exclusive mode, or with MIG is left alone, and the report says so. Each is asked again right before, and whoever comes to it
  while it is measured ends it there. CUDA_VISIBLE_DEVICES holds here as everywhere.
* A fault that most GPUs of a model do not have fails; one that all have (x8 slots, an old board) is a warning. A rate is slow below 60 %
  of the median of GPUs of the model with the same link, or below a quarter of what the lanes carry. A reading that the copies disprove (more
  went through than such a link carries, as in some virtual machines) accuses nobody. Suspects of PCIe are measured
  again, alone on their host, before they are accused. Errors of NVLink count as in DCGM's health checks: a replay or a recovery fails, and so do 100 CRC errors.
* What is read from NVML and CUDA is that of their headers; it was run against stand-ins of both libraries, not on a GPU. Of
  NVLinks of the fifth generation only state, rate and recoveries are judged: their other counters follow other rules.
"""


def reference_page() -> str:
    """Return docs/checks.md."""
    lines = [
        "# The checks",
        "",
        "Made by `python -m distconsole.checks`; a test keeps it true. `--only` and `--skip` take a group,",
        "an id, or the beginning of an id; `check --explain` too.",
        "",
        *PROOF.splitlines(),
        "",
        *PANEL.splitlines(),
        "",
        *CURES.splitlines(),
        "",
        *LAUNCH.splitlines(),
        "",
        *GPUS.splitlines(),
        "",
    ]
    for group, rules in groupby(CATALOGUE, key=lambda rule: rule.group):
        lines += [f"## {group}", "", "| id | from level | catches | hint |", "|---|---|---|---|"]
        for rule in rules:
            cells = (f"`{rule.id}`", rule.level.value, rule.catches, rule.hint)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
