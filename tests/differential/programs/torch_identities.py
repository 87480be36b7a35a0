"""What a script can see of torch's own functions: names, signatures, identities, copies, pickles, patches of its own."""

import copy
import inspect
import pickle
import unittest.mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
for name in ("all_reduce", "barrier", "broadcast", "init_process_group", "destroy_process_group"):
    function = getattr(dist, name)
    print(
        name,
        function.__module__,
        function.__qualname__,
        inspect.signature(function),
        pickle.loads(pickle.dumps(function)) is function,
    )
for function in (
    torch.autograd.backward,
    torch.Tensor.backward,
    torch.amp.GradScaler.scale,
    torch.amp.GradScaler.update,
    funcol.wait_tensor,
):
    print(
        function.__module__,
        function.__qualname__,
        inspect.signature(function),
        inspect.isfunction(function),
        copy.copy(function) is function,
    )
print(optimizer.step.__func__.__name__, optimizer.step.__qualname__, sorted(vars(type(optimizer))))
work = dist.all_reduce(torch.ones(1), async_op=True)
print(type(work).__name__, work.wait(), work.is_completed())
with unittest.mock.patch("torch.autograd.backward") as mocked:
    model(torch.ones(1, 2)).sum().backward()
print(mocked.call_count, [each for each in dir(torch.autograd) if "distconsole" in each])
scripted = torch.jit.script(torch.nn.Linear(2, 1))
print(
    scripted(torch.ones(1, 2)).shape,
    torch.jit.trace(model, torch.ones(1, 2))(torch.ones(1, 2)).shape,
)
print(torch.export.export(model, (torch.ones(1, 2),)).graph_signature)
dist.destroy_process_group()
