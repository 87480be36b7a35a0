"""Scripts of several processes: every rank has a ring of its own, nobody else has one."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distconsole_agent.contract.runspec import RankSpec, parse_spec
from distconsole_agent.supervisor.failures import read_raised
from distconsole_agent.supervisor.killing import count_kills
from distconsole_agent.supervisor.postmortem import VANISHED, find_failure, find_hidden
from distconsole_agent.supervisor.processes import Exit, RankProcess
from distconsole_agent.supervisor.spawning import ChildCommand
from distconsole_agent.system import steady
from distconsole_training.records import WAIT
from suite.lean_torch import LEAN_TORCH
from suite.programs import free_port

if TYPE_CHECKING:
    from conftest import Outcome, Runner


def rendezvous(world_size: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world_size),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def by_rank(ended: Outcome) -> dict[int, Any]:
    assert all(ring.header["guard_errors"] == 0 for ring in ended.rings)
    return {ring.header["rank"]: ring for ring in ended.rings}


PLACED = ("rendezvous", "init_process_group")
MEETS = ["interpreter", "import_torch", *PLACED, "first_step"]

TRAIN = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(steps=3):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(steps * 4, 4), torch.randn(steps * 4, 1))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(data, batch_size=4):
        loss = ((model(batch[0]) - batch[1]) ** 2).mean()
        loss.backward()
        optimizer.step()

def join(rank, world, port):
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    train()
    torch.distributed.destroy_process_group()
"""

LATE = f"""{LEAN_TORCH}
import os, sys, time
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rank):
        ctx.rank = rank
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.3 * ctx.rank)
        return gradient, None

def join(rank, port):
    global model  # a group that DDP is the last to hold ends with the GIL held, for which Gloo's thread may wait
    torch.distributed.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:" + port, rank=rank, world_size=2)
    linear = nn.Linear(4, 4)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), linear))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (batch,) in DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4):
        Late.apply(model(batch), rank).square().mean().backward()
        time.sleep(0.3 * (1 - rank))
        torch.distributed.all_reduce(torch.zeros(1))
        optimizer.step()
    torch.distributed.destroy_process_group()
"""


@pytest.mark.torch_ranks
def test_each_rank_says_how_long_it_waits_for_the_other_and_where(runner: Runner) -> None:
    ended = runner.watched(
        LATE
        + """
from distconsole_training.torch_hook import waits
waits.LATE_NS = 10**9  # a busy machine may stop a rank between a step's end and its look
torch.multiprocessing.start_processes(join, (sys.argv[1],), nprocs=2, start_method="fork")
""",
        command=lambda script: [sys.executable, str(script), str(free_port())],
    )
    assert ended.seen == (0, "", "")
    for rank, ring in by_rank(ended).items():
        waits = [row for row in ring.rows if row["kind"] == WAIT]
        assert [row["step"] for row in waits] == [0, 1, 2, 3]
        for wait in waits[1:]:
            # Rank 0 waits in backward for the gradients, rank 1 then in the all-reduce.
            rest = wait["seconds"] - wait["forward"] - wait["backward"]
            assert (wait["backward"] > 0.2) is (rank == 0)
            assert (rest > 0.2) is (rank == 1)
            assert wait["optimizer"] == wait["data"] == 0
        assert all(row["backward"] > 0.2 for row in ring.steps[1:]), "both are as long there"


@pytest.mark.torch_ranks
def test_spawned_ranks_are_known_by_their_process_group(runner: Runner) -> None:
    ended = runner.watched(
        LEAN_TORCH
        + TRAIN
        + """
if __name__ == "__main__":
    torch.multiprocessing.spawn(join, args=(2, int(sys.argv[1])), nprocs=2)
    print("both")
""",
        env={"RANK": "6", **rendezvous(1)},
        command=lambda script: [sys.executable, str(script), str(free_port())],
    )
    assert ended.seen == (0, "both\n", "")
    rings = by_rank(ended)
    assert sorted(rings) == [0, 1]
    for ring in rings.values():
        assert ring.header["world_size"] == 2
        assert ring.column("samples") == [4, 4, 4]
        assert ring.phases == MEETS
        assert ring.worlds == [(phase, 2, ring.header["rank"]) for phase in PLACED]
        assert not ring.is_alone


@pytest.mark.torch_ranks
def test_forked_ranks_have_rings_of_their_own(runner: Runner) -> None:
    ended = runner.watched(
        LEAN_TORCH
        + TRAIN
        + """
if __name__ == "__main__":
    context = torch.multiprocessing.get_context("fork")
    ranks = [context.Process(target=join, args=(rank, 2, int(sys.argv[1]))) for rank in range(2)]
    for rank in ranks: rank.start()
    for rank in ranks: rank.join()
    print([rank.exitcode for rank in ranks])
""",
        command=lambda script: [sys.executable, str(script), str(free_port())],
    )
    assert ended.seen == (0, "[0, 0]\n", "")
    rings = by_rank(ended)
    assert sorted(rings) == [0, 1]
    assert all(len(ring.steps) == 3 for ring in rings.values())


def test_a_child_without_a_rank_does_not_borrow_its_parents(runner: Runner) -> None:
    ended = runner.watched(
        LEAN_TORCH
        + TRAIN
        + """
train(2)
child = os.fork()
if child == 0:
    train(4)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
train(2)
""",
        env={"RANK": "1"},
    )
    assert ended.seen == (0, "", "")
    rings = by_rank(ended)
    assert {rank: len(ring.steps) for rank, ring in rings.items()} == {1: 4, -1: 4}


@pytest.mark.usefixtures("warm")
def test_a_child_that_does_not_train_is_silent(runner: Runner) -> None:
    ended = runner.forked(
        TRAIN
        + f"""
import subprocess
train()
pool = torch.multiprocessing.get_context("fork").Pool(2)
print(pool.map(abs, [-1, 2]))
pool.close(); pool.join()
print(subprocess.run([sys.executable, "-c", {LEAN_TORCH + "print(torch.ones(2).sum())"!r}],
                     capture_output=True, text=True).stdout)
"""
    )
    assert ended.seen == (0, "[1, 2]\ntensor(2.)\n\n", "")
    assert len(ended.ring.steps) == 3


DDP = (
    LEAN_TORCH
    + TRAIN
    + """
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
sampler = torch.utils.data.distributed.DistributedSampler(data)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(data, batch_size=4, sampler=sampler):
    optimizer.zero_grad()
    loss = ((model(batch[0]) - batch[1]) ** 2).mean()
    loss.backward()
    optimizer.step()
    if rank == 1:
        print(loss.item(), flush=True)
if rank == 1:
    raise ValueError("rank one gives up")
torch.distributed.destroy_process_group()
"""
)


@pytest.mark.usefixtures("warm")
def test_a_rank_says_which_world_it_asks_for_while_it_waits(runner: Runner) -> None:
    ended = runner.forked(
        """
import datetime, torch.distributed as dist
try:
    dist.init_process_group("gloo", None, datetime.timedelta(seconds=1), 4)
except Exception as error:
    print(type(error).__name__)
""",
        env={"RANK": "0", **rendezvous(2)},
    )
    assert ended.out == "DistStoreError\n"
    assert ended.ring.worlds == [("rendezvous", 4, 0.0)]
    assert ended.ring.phases[-1] == "rendezvous"


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("before", "alone"),
    [
        ("", True),
        ("import torch.distributed.rpc", True),
        ("torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(),"
         " rank=0, world_size=1)", False),
        ("import types; sys.modules['mpi4py.MPI'] = types.ModuleType('MPI')", False),
    ],
    ids=["nothing", "an import", "a group", "MPI"],
)  # fmt: skip
def test_a_first_step_without_a_group_is_noted(runner: Runner, before: str, alone: bool) -> None:
    ended = runner.forked(TRAIN + f"import torch.distributed\n{before}\ntrain()\n")
    assert ended.code == 0, ended.err
    assert ended.ring.is_alone is alone


TORCHRUN = LEAN_TORCH + "from torch.distributed.run import main; main()"


@pytest.mark.torch_ranks
def test_torchrun_and_its_data_parallel_workers(runner: Runner) -> None:
    ended = runner.watched(
        DDP,
        command=lambda script: [
            sys.executable, "-c", TORCHRUN, "--nproc-per-node=2",
            f"--master-port={free_port()}", "--master-addr=127.0.0.1", str(script),
        ],
    )  # fmt: skip
    assert ended.code == 1
    rings = by_rank(ended)
    assert sorted(rings) == [0, 1]
    assert rings[0].phases == MEETS
    assert rings[1].worlds == [(phase, 2, 1.0) for phase in PLACED]
    assert rings[1].header["local_rank"] == 1
    assert rings[1].column("samples") == [4, 4, 4]
    assert [
        math.isclose(a, float(b), rel_tol=1e-5)
        for a, b in zip(rings[1].column("value"), ended.out.split(), strict=True)
    ] == [True, True, True]
    failures = {error["rank"]: error["message"] for error in ended.errors}
    assert failures[1] == "rank one gives up"


HOROVOD = f"""{LEAN_TORCH}
import horovod.torch as hvd
from torch.utils.data import DataLoader, TensorDataset
hvd.init()
torch.manual_seed(hvd.rank())
data = TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for batch in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    loss = ((model(batch[0]) - batch[1]) ** 2).mean()
    loss.backward()
    optimizer.step()
print(hvd.allreduce(torch.ones(2)))
hvd.shutdown()
"""


@pytest.mark.horovod
def test_horovods_optimizer_makes_one_step_of_two(runner: Runner) -> None:
    pytest.importorskip("horovod")
    ended = runner.unchanged(
        HOROVOD,
        env={"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_RANK": "0",
             "HOROVOD_SIZE": "1"},
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert ended.ring.header["rank"] == 0
    assert ended.ring.column("samples") == [4, 4, 4]
    assert "init_process_group" in ended.ring.phases
    assert ended.ring.worlds == [("init_process_group", 1, 0.0)]
    assert not ended.ring.is_alone


@pytest.mark.horovod
@pytest.mark.mpi
def test_horovod_under_mpi(runner: Runner) -> None:
    pytest.importorskip("horovod")
    ended = runner.watched(
        HOROVOD,
        env={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        command=lambda script: [
            "mpirun", "--oversubscribe", "-np", "2", "--mca", "btl", "self,vader",
            sys.executable, str(script),
        ],
    )  # fmt: skip
    assert ended.code == 0, ended.err
    rings = by_rank(ended)
    assert sorted(rings) == [0, 1]
    assert all(ring.column("samples") == [4, 4, 4] for ring in rings.values())
    assert rings[1].header["local_rank"] == 1


@pytest.mark.usefixtures("warm")
def test_a_fork_while_a_backward_is_going_on(runner: Runner) -> None:
    ended = runner.forked(
        TRAIN
        + """
train()
x = torch.ones(1, requires_grad=True)
def forks(grad):
    child = os.fork()
    if child == 0:
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
y = x * 2
y.register_hook(forks)
y.backward()
train()
"""
    )
    assert ended.seen == (0, "3\n", "")
    assert len(ended.ring.steps) == 6


@pytest.mark.usefixtures("warm")
def test_no_descriptor_beyond_the_ring_stays_open(runner: Runner) -> None:
    ended = runner.forked(
        TRAIN
        + "train(); print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')"
        " if n.isdigit() and os.path.exists(f'/proc/self/fd/{n}')])"
    )
    mine = [word for word in ended.out.split("'") if "rings" in word]
    assert len(mine) == (1 if sys.version_info < (3, 13) else 0)
    assert all(Path(name).name.startswith(str(ended.ring.header["pid"])) for name in mine)


WORKER_RAISES = """
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        try:
            {}["sample"]
        except KeyError as error:
            raise ValueError("bad sample") from error

if __name__ == "__main__":
    for batch in DataLoader(Data(), num_workers=1): pass
"""

CHILD_RAISES = """
import torch.multiprocessing as mp

def main(index):
    raise ValueError("bad rank")

if __name__ == "__main__":
    mp.spawn(main, nprocs=1)
"""


@pytest.mark.torch_ranks
@pytest.mark.parametrize(
    ("script", "headline", "line"),
    [
        (
            WORKER_RAISES,
            "ValueError: bad sample (in DataLoader worker process 0, script.py:{})",
            11,
        ),
        (CHILD_RAISES, "ValueError: bad rank (in spawned process 0, script.py:{})", 5),
    ],
)
def test_the_headline_of_what_torch_only_passes_on_is_what_was_raised(
    runner: Runner, script: str, headline: str, line: int
) -> None:
    ended = runner.watched(LEAN_TORCH + script)
    assert ended.code == 1
    *below, raised = read_raised(str(ended.folder / "errors"))
    assert re.sub(r"\w+\.py", "script.py", raised.error) == headline.format(
        line + LEAN_TORCH.count("\n")
    )
    # A spawned rank notes what it raised itself, and torch tells its parent as if we were not there.
    assert [each.error for each in below] == ["ValueError: bad rank"] * (script is CHILD_RAISES)
    files = re.findall(r'File "(.+)", line', "".join(each.traceback for each in (*below, raised)))
    assert files
    assert not [file for file in files if Path(file).is_relative_to(runner.hook)]


STARTER = """
import os, subprocess, sys
from multiprocessing import get_context
from distconsole_training import report

def breaks():
    report(step=0, loss=1.0)
    raise ConnectionResetError("by peer")

RANK = "from distconsole_training import report; import os, time; report(step=0, loss=1.0); "
BROKEN = "raise ConnectionResetError('by peer')"

def start(rank, work):
    return subprocess.Popen([sys.executable, "-c", RANK + work], env={**os.environ, "RANK": str(rank)})

lives = start(9, "time.sleep(60)") if "lives" in sys.argv else None
for rank, end in enumerate(sys.argv[1:-2]):
    if end == "fork":
        child = os.fork()
        if not child:
            os.environ["RANK"] = str(rank)
            report(step=0, loss=1.0)
            os._exit(0)
        os.waitpid(child, 0)
        continue
    if end == "Process":
        os.environ["RANK"] = str(rank)
        other = get_context("fork").Process(target=breaks)
        other.start()
        other.join()
        continue
    if end == "bash":
        words = [sys.executable, RANK + "os.kill(os.getpid(), 9)"]
        subprocess.call(["bash", "-c", '"$0" -c "$1" & wait $!', *words], env={**os.environ, "RANK": str(rank)})
        continue
    child = start(rank, end)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    if sys.argv[-2] == "taken":
        child.wait()
start(8, BROKEN).wait()
if lives:
    lives.kill()
sys.exit('hides' not in sys.argv)
"""
KILLED, LEFT = "os.kill(os.getpid(), 9)", "os._exit(3)"
ERROR, WELL = "ConnectionResetError: by peer", "exited with code 0"
NEW = sys.version_info >= (3, 13)
"""Whether multiprocessing prints an exception before its finalizers run."""


@pytest.mark.parametrize(
    ("ends", "blamed", "before"),
    [
        ((KILLED, "left", ""), (0, 137, "killed by SIGKILL"), {}),
        ((LEFT, "left", ""), (0, 3, "exited with code 3"), {}),
        (("pass", KILLED, "left", "lives"), (1, 137, "killed by SIGKILL"), {}),
        ((KILLED, "taken", ""), (0, 1, VANISHED), {}),
        (("bash", "taken", ""), (0, 137, "killed by SIGKILL"), {}),
        (("pass", "left", ""), (8, 1, ERROR), {0: WELL}),
        (("pass", "taken", "lives"), (8, 1, ERROR), {0: VANISHED}),
        (("os._exit(0)", "Process", "left", ""), (8 * NEW, 1, ERROR), {0: WELL}),
        (("fork", "taken", ""), (8, 1, ERROR), {}),
        ((KILLED, KILLED, "left", ""), (8, 1, ERROR), {0: VANISHED, 1: "killed by SIGKILL"}),
        ((KILLED, "left", "hides"), (0, 0, "killed by SIGKILL"), {}),
        (("pass", "left", "hides"), (8, 0, ERROR), {}),
    ],
)
def test_a_rank_that_ended_without_a_word_is_blamed_for_a_broken_connection(
    runner: Runner, ends: tuple[str, ...], blamed: tuple[int, int, str], before: dict[int, str]
) -> None:
    """But none that the script killed behind it, or that may have ended well, and none of several: these are named."""
    ended = runner.watched(STARTER, arguments=ends)
    rings, errors, log = (str(ended.folder / name) for name in ("rings", "errors", "err"))
    Path(log).write_text(ended.err)
    starter = RankProcess(RankSpec(0, 0, (), {}), ChildCommand((), {}, "/", None, "", log))
    starter.ended = Exit(ended.code, None, steady.now_ns())
    node = {"host": "a", "address": "x", "ranks": [0]}
    rank = {"rank": 0, "local_rank": 0, "argv": ["x"], "env": {}}
    spec = {"run": "r", "secret": "00", "launcher": "single", "rings": rings, "node_index": 0}
    parsed = parse_spec({**spec, "nodes": [node], "ranks": [rank]})
    found = find_failure(parsed, starter, errors, None, count_kills())
    assert find_hidden(parsed, starter, errors) == (blamed[::2] if found is None else None)
    assert found is None or (found.rank, found.exit_code, found.error) == blamed
    seen = "" if found is None else found.traceback
    told = re.findall(r"^rank (\d) had ended before \((.+)\)$", seen, re.MULTILINE)
    assert {int(rank): words for rank, words in told} == before
