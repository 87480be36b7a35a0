"""Step hooks of the script's own, eager and compiled: which run, how often, in which order, and what is traced of them."""

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

told = []
register_optimizer_step_pre_hook(lambda *_: told.append("global pre"))
register_optimizer_step_post_hook(lambda *_: told.append("global post"))
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
optimizer.register_step_pre_hook(lambda *_: told.append("own pre"))
optimizer.register_step_post_hook(lambda *_: told.append("own post"))


def train():
    weight.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


train()
print(told)
told.clear()
counter = CompileCounterWithBackend("aot_eager")
step = torch.compile(optimizer.step, backend=counter)
for _ in range(3):
    weight.square().sum().backward()
    step()
    optimizer.zero_grad()
print(told, counter.frame_count, weight.tolist())
print(optimizer.step.__name__, optimizer.step(lambda: torch.tensor(1.0)))
