# ranks: 2
"""Collectives inside compiled functions: whole graphs, breaks that are counted, both spellings."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

dist.init_process_group("gloo")
rank = dist.get_rank()


def functional(x):
    return funcol.wait_tensor(tensor=funcol.all_reduce(x * 2, "sum", dist.group.WORLD)) + 1


def plain(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def gathered(x):
    return funcol.all_gather_tensor(x, 0, dist.group.WORLD).sum()


for function in (functional, plain, gathered):
    for fullgraph in (True, False):
        torch._dynamo.reset()
        counters.clear()
        counter = CompileCounter()
        compiled = torch.compile(function, backend=counter, fullgraph=fullgraph)
        found = compiled(torch.full((4,), float(rank + 1)))
        print(
            rank,
            function.__name__,
            fullgraph,
            found.tolist(),
            counter.frame_count,
            counter.op_count,
            dict(counters["graph_break"]),
        )
dist.barrier()
dist.destroy_process_group()
