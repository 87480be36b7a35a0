"""Functions of torch that the hook stands before: called, compiled, scripted and looked at as without it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from distconsole_training.records import ENV_ERRORS, ENV_HOOK, ENV_RINGS, ENV_RUN
from suite.warm import WHOLE_TORCH, Warm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Outcome, Runner

COMPILED = """
import re, warnings
import torch, torch.distributed as dist, torch.distributed._functional_collectives as funcol
from torch._dynamo.utils import counters
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.group.WORLD
parameter = torch.ones(2, requires_grad=True)
scaler = torch.amp.GradScaler("cpu")
work = dist.all_reduce(torch.ones(1), async_op=True)
coming = funcol.all_reduce(torch.ones(2), "sum", group)

def functional(x): return funcol.all_reduce(x * 2, "sum", group) + 1
def by_keyword(x): return funcol.wait_tensor(tensor=funcol.all_reduce(x, "sum", group))
def on_its_way(x): return x + coming.wait()
def plain(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1
def asynchronous(x):
    y = x * 2
    dist.all_reduce(y, async_op=True).wait()
    return y
def waits(x):
    work.wait()
    return x + 1
def scales(x): return scaler.scale(outputs=x * 3)
def backward(x):
    torch.autograd.backward(tensors=[(parameter * x).sum()])
    return parameter * 3

REPHRASED = scales, backward  # torch breaks the graph there, and names what it did not trace
def run(function):
    for whole in (True, False):
        torch._dynamo.reset(), counters.clear()
        graphs = []
        def backend(graph, inputs):
            graphs.append(graph.code)
            return graph.forward
        try:
            result = torch.compile(function, backend=backend, fullgraph=whole)(torch.ones(2))
        except torch._dynamo.exc.Unsupported as error:
            result = "Unsupported" if function in REPHRASED else str(error)
        reasons = [reason for reason in counters["graph_break"] if function not in REPHRASED]
        seen = whole, result, len(counters["graph_break"]), reasons, dict(counters["stats"]), graphs
        print(function.__name__, re.sub("0x[0-9a-f]+", "", repr(seen)))

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for function in functional, by_keyword, on_its_way, plain, asynchronous, waits, scales, backward:
        run(function)
print([str(one.message) for one in warned])

class Model(torch.nn.Module):
    def forward(self, x): return functional(x)
print(torch.export.export(Model(), (torch.ones(2),), strict=True).graph_module.code)
dist.destroy_process_group()
"""

SCRIPTED = """
import torch, torch.distributed._functional_collectives
def backward(x: torch.Tensor):
    torch.autograd.backward([x.sum()])
    return x
def waits(x: torch.Tensor):
    return torch.ops._c10d_functional.wait_tensor(x)
for function in (backward, waits):
    print(torch.jit.script(function).code)
x = torch.ones(2, requires_grad=True)
torch.jit.script(backward)(x)
print(x.grad)
"""

LOOKED_AT = """
import copy, inspect, pickle, sys, datetime
import torch, torch.distributed as dist, torch.distributed._functional_collectives as funcol
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
whole = {"wait_tensor": funcol.wait_tensor, "backward": torch.autograd.backward,
    "scale": torch.amp.GradScaler.scale, "update": torch.amp.GradScaler.update,
    "init": dist.init_process_group, "spawn": sys.modules["torch.multiprocessing.spawn"]._wrap,
    "next": torch.utils.data.dataloader._BaseDataLoaderIter.__next__}
for name, function in whole.items():
    print(name, inspect.signature(function), len(inspect.getsource(function)), pickle.dumps(function))
    print(copy.deepcopy(function) is function, type(function), function.__module__, function.__qualname__)
print(type(dist.Work.wait), inspect.isfunction(dist.Work.wait), dist.Work.wait.__doc__)
assert dist.init_process_group is dist.distributed_c10d.init_process_group

x = funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
print(funcol.wait_tensor(tensor=x), torch.ops._c10d_functional.wait_tensor(tensor=torch.ones(1)))
print(dist.all_reduce(torch.ones(1), async_op=True).wait(timeout=datetime.timedelta(seconds=9)))
dist._broadcast_coalesced(process_group=dist.group.WORLD, tensors=[torch.ones(1)], buffer_size=99, src=0)
print(torch.func.vmap(lambda one: funcol.all_reduce(one, "sum", dist.group.WORLD) * 2)(torch.ones(3, 2)))
for call in (funcol.wait_tensor, dist.Work.wait, torch.amp.GradScaler.scale, torch.autograd.backward):
    try:
        call()
    except TypeError as error:
        print(str(error).splitlines()[0].partition("(")[2])
dist.destroy_process_group()
"""

TIMED = """
import torch, torch.distributed as dist, torch.distributed._functional_collectives as funcol
from distconsole_training.torch_hook.torch_patches import watching
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group, noted = dist.group.WORLD, watching[0].waits._ends
begin = lambda: torch.ops._c10d_functional.all_reduce(torch.ones(1), "sum", group.group_name)
compiled = torch.compile(lambda x: funcol.wait_tensor(x) + 1, backend="eager")
compiled(begin())
for wait in (
    lambda: funcol.wait_tensor(begin()),
    lambda: torch.ops._c10d_functional.wait_tensor(begin()),
    lambda: funcol.all_reduce(torch.ones(1), "sum", group) + 1,
    lambda: compiled(begin()),
    lambda: dist.all_reduce(torch.ones(1)),
    lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    lambda: dist._broadcast_coalesced(group, [torch.ones(1)], 9, 0),
):
    watching[0].waits.looks = True
    noted.clear()
    wait()
    print(len(noted))
dist.destroy_process_group()
"""

STAYS_WHOLE = """
import sys, types, torch
from torch.utils.data import DataLoader, TensorDataset
torch._dynamo.reset(), torch._dynamo.utils.counters.clear()
# A compiled optimizer asks this whether a tensor is in a CUDA graph; its import takes a second.
no_graphs = types.SimpleNamespace(get_manager=lambda *_, **__: None)
sys.modules["torch._inductor.cudagraph_trees"] = no_graphs
torch.manual_seed(0)
data = TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
compile = lambda what, **more: torch.compile(what, backend="eager", **more)

def train(compiled):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimize = optimizer.step
    def step(batch):
        loss = ((model(batch[0]) - batch[1]) ** 2).mean()
        loss.backward()
        optimize()
        return loss
    steps = [step]
    if compiled == "model":
        model = compile(model, fullgraph=True)
    else:
        optimize = compile(lambda: optimizer.step())
        steps = [compile(step), step]
    for step in steps:
        for batch in DataLoader(data, batch_size=4):
            print(step(batch).item())

for compiled in ("model", "function, then optimizer"):
    train(compiled)
    counters = torch._dynamo.utils.counters
    print(sorted(counters["graph_break"]), dict(counters["stats"]))
"""

HAS_COMPILED = f"{WHOLE_TORCH}torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1))\n"


@pytest.fixture(scope="module")
def warm_compiling(
    hook_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Warm, Warm]]:
    """Two interpreters that have torch and its compiler: without the hook and with it."""
    bare = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    folder = str(tmp_path_factory.mktemp("warm_compiling"))
    hook = {ENV_RUN: "test-run", ENV_HOOK: str(hook_folder), "PYTHONPATH": str(hook_folder)}
    hook |= {ENV_RINGS: folder, ENV_ERRORS: folder}
    both = Warm(bare, HAS_COMPILED), Warm({**bare, **hook}, HAS_COMPILED)
    yield both
    for each in both:
        each.close()


@pytest.fixture
def compiling(warm_compiling: tuple[Warm, Warm], runner: Runner) -> list[Runner]:
    """Run a script in a fork of the one (it has the hook's variables alone) and of the other."""
    runners = []
    for name, warm in zip(("bare-forks", "watched-forks"), warm_compiling, strict=True):
        (runner.folder / name).mkdir()
        runners.append(type(runner)(runner.folder / name, runner.hook, lambda warm=warm: warm))
    return runners


def unchanged(compiling: list[Runner], script: str) -> Outcome:
    """Assert that the output is the same without the hook and with it; return the watched outcome."""
    bare, watched = (runner.forked(script) for runner in compiling)
    assert (bare.code, watched.code) == (0, 0), watched.err
    first, second = (str(runner.scripts) for runner in compiling)
    assert watched.out == bare.out.replace(first, second)
    assert bare.out
    assert bare.rings == []
    return watched


def test_a_wait_for_other_ranks_is_timed_however_it_is_called(compiling: list[Runner]) -> None:
    ended = compiling[1].forked(TIMED)
    assert ended.out.split() == ["1"] * 7, ended.err
    assert ended.ring.header["guard_errors"] == 0


@pytest.mark.parametrize(
    "script", [COMPILED, SCRIPTED, LOOKED_AT], ids=["compiled", "scripted", "looked at"]
)
def test_a_function_of_torch_is_as_without_the_hook(compiling: list[Runner], script: str) -> None:
    unchanged(compiling, script)


def test_compiled_code_stays_whole(compiling: list[Runner]) -> None:
    ended = unchanged(compiling, STAYS_WHOLE)
    # A compiled optimizer runs no hook of torch. With Python 3.13 and 3.14, torch compiles only what is below the
    # wrapper of a ``step`` that has hooks, and calls them, whoever's they are.
    steps = 9 if (3, 13) <= sys.version_info < (3, 15) else 3
    assert ended.ring.column("samples") == [4] * steps
