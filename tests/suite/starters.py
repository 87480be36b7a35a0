"""The launchers of the table of ends, and one script for each: an ordinary training, with nothing of ours in it.

A script's arguments are what its rank 2 does in its fourth step, and how many steps there are;
where it raises, that is behind the last one, and all of them train.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from suite.console import Console
from suite.lean_torch import LEAN_TORCH

MARKED = 2
"""The rank that breaks, on node2."""

NEVER = 4000
"""Steps of a training that does not end by itself in the time of a test."""

WHAT = {
    "raises": "raise ValueError('no such layer')",
    "exits": "sys.exit(7)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "faults": "ctypes.string_at(0)",
    "hangs": "print('hangs', flush=True); time.sleep(300)",
}
"""What a rank can do, as the line of the script that does it."""

HEAD = """
import ctypes, os, signal, subprocess, sys, time
what, steps = sys.argv[1], int(sys.argv[2])
if what == "lacks":
    sys.path.insert(0, os.path.expanduser("~/lib"))
    import only_on_node1

def work(rank, reduce, wrap=None):
    subprocess.Popen(["setsid", "sleep", "4321"])
    if what == "raises":
        learn(wrap)
        reduce()  # by now every rank has made all its steps
        if rank == 2:
            fault()
        return reduce()
    # Without an optimizer: that alone imports for a second.
    for step, _ in enumerate(batches()):
        reduce()
        # In one write: ranks that the script spawns share their output.
        sys.stdout.write(f"{rank}: {step}\\n")
        sys.stdout.flush()
        time.sleep(0.05)
        if (rank, step) == (2, 3):
            fault()

def fault():
WHAT
"""

TORCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def batches():
    data = TensorDataset(torch.ones(4 * steps, 4), torch.ones(4 * steps, 1))
    return DataLoader(data, batch_size=4, num_workers=1)

def learn(wrap):
    model, optimizer = wrap(torch.nn.Linear(4, 1))
    for inputs, wanted in batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        time.sleep(0.05)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(model))  # Gloo's thread aborts Python's end if it frees a gradient
"""

BARE = (
    HEAD
    + """
import socket
e = os.environ

def batches():
    subprocess.Popen(["sleep", "4321"])
    return range(steps)

def met(rank, world):
    if rank == 0:
        with socket.create_server(("", 29876)) as server:
            return [server.accept()[0] for _ in range(world - 1)]
    while True:
        try:
            return [socket.create_connection(("node1", 29876))]
        except OSError:
            time.sleep(0.05)

def train(rank, world):
    others = met(rank, world)

    def hear():
        for each in others:
            if not each.recv(1):
                raise ConnectionError("connection closed by peer")

    def say():
        for each in others:
            each.sendall(b".")

    def reduce():
        for half in (hear, say) if rank == 0 else (say, hear):
            half()

    work(rank, reduce)
"""
)
"""Ranks without a library, which costs each of them 1.5 seconds of a core to import.

They wait for each other at every step and break when one is gone, and each has two children, like
those of a training; nobody counts their steps.
"""

BARE_ENV = (
    BARE
    + """
train(int(e.get("RANK") or e["HOROVOD_RANK"]), int(e.get("WORLD_SIZE") or e["HOROVOD_SIZE"]))
"""
)

BARE_SPAWN = (
    BARE
    + """
import multiprocessing

def spawned(local_rank):
    train(int(e["NODE_RANK"]) + local_rank, 3)

if __name__ == "__main__":
    of = multiprocessing.get_context("spawn")
    local_ranks = range(1 + int(e["NODE_RANK"]))
    children = [of.Process(target=spawned, args=(local_rank,)) for local_rank in local_ranks]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(any(child.exitcode for child in children))
"""
)

LIGHT = """
import os, subprocess, time
e = os.environ
rank = int(e.get("RANK") or e.get("HOROVOD_RANK") or e["NODE_RANK"])
subprocess.Popen(["setsid", "sleep", "4321"])
print(f"{rank}: 3", flush=True)
time.sleep(600)
"""
"""Ranks that only live: many such runs fit on one machine."""

GLOO = (
    HEAD
    + TORCH
    + """
import torch.distributed as dist

def reduce():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))  # as in learn

def wrap(model):
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: dist.all_reduce(weight.grad))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

def train(**place):
    dist.init_process_group("gloo", **place)
    work(dist.get_rank(), reduce, wrap)
    dist.barrier()
    dist.destroy_process_group()
"""
)

MAIN = '\nif __name__ == "__main__":  # Python 3.14 starts workers by forkserver, which imports the script\n    train()\n'

ENV = LEAN_TORCH + GLOO + MAIN

DDP = (
    LEAN_TORCH
    + GLOO
    + """
def wrap(model):
    model = torch.nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)
"""
    + MAIN
)
"""One launcher's ranks are wrapped as most are."""

SPAWN = (
    LEAN_TORCH
    + GLOO.replace(
        "num_workers=1", "num_workers=0"
    )  # which a spawned rank spawns, with a torch each
    + """
import torch.multiprocessing as mp

def spawned(local_rank):
    e = os.environ
    master = f"tcp://{e['MASTER_ADDR']}:{e['MASTER_PORT']}"
    train(init_method=master, rank=int(e["NODE_RANK"]) + local_rank, world_size=3)

if __name__ == "__main__":
    spawning = mp.spawn(spawned, nprocs=1 + int(os.environ["NODE_RANK"]), join=False)
    for child in spawning.processes if what == "raises" else ():
        child.join()  # under load all have ended before torch looks, and it names the first of them
    while not spawning.join():
        pass
"""
)

HOROVOD = (
    LEAN_TORCH
    + HEAD
    + TORCH
    + """
import horovod.torch as hvd

def reduce():
    hvd.allreduce(torch.ones(1))

def wrap(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    named = model.named_parameters()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=named)

def train():
    hvd.init()
    work(hvd.rank(), reduce, wrap)
"""
    + MAIN
)

AT_EXIT = (
    "Horovod ends the others' collectives at a rank's exit, before the rank has its exit code"
)
LIMITS = {("horovod", "exits"): AT_EXIT, ("mpi", "exits"): AT_EXIT}
"""What a launcher cannot do, and why; docs/guide/restarts.md has the same."""


class Engine(NamedTuple):
    """A program between the shim and the ranks, and what is said when it is killed.

    ``program`` is how its command line begins, as a regular expression.
    """

    program: str
    told: str


@dataclass(frozen=True, slots=True)
class Starter:
    """A launcher as the table uses it: three ranks on two hosts.

    Attributes:
        name: What ``--launcher`` takes.
        marks: What it needs.
        text: How its script joins the others.
        hosts: As ``--hosts`` takes them.
        world: How many ranks there are.
        engines: Of each host, what the shim starts there in place of ranks.
        first_of_node2: The first rank that the plan has for node2.
    """

    name: str
    marks: tuple[str, ...]
    text: str
    hosts: str = "node1:2,node2:1"
    world: int = 3
    engines: tuple[Engine | None, Engine | None] = (None, None)
    first_of_node2: int = MARKED

    def light(self) -> "Starter":
        """Return the same launcher with ranks that only live, one a host where it spawns none."""
        world = 2 if self.name == "single" else self.world
        return replace(self, text=LIGHT, world=world)

    def bare(self) -> "Starter":
        """Return the same launcher for a test of what does not depend on the ranks' own library."""
        return replace(self, text=BARE_SPAWN if self.name == "single" else BARE_ENV)

    def script(self, folder: Path) -> str:
        """Write its script, and return where."""
        cases = "".join(f"    if what == {name!r}: {line}\n" for name, line in WHAT.items())
        path = folder / "train.py"
        path.write_text(self.text.replace("WHAT\n", cases))
        return str(path)

    def lines(self, console: Console, rank: int) -> list[str]:
        """Return the numbers of the steps that a rank printed.

        Those of ranks that a script spawned are nobody's, so they begin with the rank.
        """
        whole = [event for event in console.of("log") if not event.get("transient")]
        lines = [event["line"] for event in whole if event["stream"] == "out"]
        return [line.partition(": ")[2] for line in lines if line.startswith(f"{rank}: ")]

    def asked(self, folder: Path, login: str, what: str, steps: int) -> list[str]:
        """Return the words behind ``distconsole``; ``login`` is where Slurm's commands are."""
        how = ["--launcher", self.name]
        if self.name == "slurm":
            how = ["--slurm", "-N2", "--slurm-login", login]
        # Longer than any end may take: who needed it was not ended by a signal.
        how += ["--grace", "40", "--lost-after", "40", "--json"]
        return ["run", *how, self.script(folder), what, str(steps)]


SHIM = r"\S+python\S* .*pyz shim"
TORCHRUN = Engine(r"\S+ -m torch\.distributed\.run", "torchrun killed by SIGKILL")
PARENT = Engine(r"\S+ \S+train\.py", "killed by SIGKILL")
KILLED = "killed by SIGKILL (for memory? that is not known)"
MPIRUN = Engine(r"(mpirun|\S*prterun) .*--host", f"mpirun {KILLED}")
ORTED = Engine(r"\S*(orted|prted) ", f"mpirun's daemon on node2 {KILLED}")
SRUN = Engine("srun --jobid", "srun was killed by SIGKILL")

STARTERS = {
    each.name: each
    for each in (
        Starter("torch", ("torch_ranks",), DDP),
        Starter("torchrun", ("torch_ranks",), ENV, engines=(TORCHRUN, TORCHRUN)),
        Starter(
            name="single",
            marks=("torch_ranks",),
            text=SPAWN,
            hosts="node1,node2",
            engines=(PARENT, PARENT),
            first_of_node2=1,
        ),
        Starter("horovod", ("horovod",), HOROVOD),
        Starter("mpi", ("mpi", "horovod"), HOROVOD, engines=(MPIRUN, ORTED)),
        Starter(name="slurm", marks=("slurm", "torch_ranks"), text=ENV, engines=(SRUN, None)),
    )
}
