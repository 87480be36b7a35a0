# ranks: 2
"""fully_shard on the CPU, clipped gradients, and a distributed checkpoint that is written and read back."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train(steps):
    for at in range(steps):
        loss = model(torch.full((4, 8), 0.1 * (at + rank))).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(rank, at, f"{loss.item():.6f} {norm.full_tensor().item():.6f}")


train(4)
names = [os.path.join(tempfile.gettempdir(), "checkpoint")]
dist.broadcast_object_list(names)
kept, states = get_state_dict(model, optimizer)
dcp.save({"model": kept, "optimizer": states}, checkpoint_id=names[0])
train(2)
dcp.load({"model": kept, "optimizer": states}, checkpoint_id=names[0])
set_state_dict(model, optimizer, model_state_dict=kept, optim_state_dict=states)
train(2)
dist.destroy_process_group()
