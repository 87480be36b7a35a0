# ranks: 2
"""A compiled model under DDP, its optimizer compiled, too: graphs and breaks are counted, losses printed."""

import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
)
counter = CompileCounterWithBackend("aot_eager")
compiled = torch.compile(model, backend=counter)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
step = torch.compile(optimizer.step, backend="aot_eager")
for at in range(6):
    loss = compiled(torch.full((4, 8), 0.1 * (at + rank))).square().mean()
    loss.backward()
    step()
    optimizer.zero_grad()
    print(rank, at, f"{loss.item():.9f}")
print(rank, counter.frame_count, counter.op_count, dict(counters["graph_break"]))
dist.destroy_process_group()
