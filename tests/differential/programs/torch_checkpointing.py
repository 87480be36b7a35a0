"""Activation checkpointing, gradient accumulation and mixed precision with a scaler; state dictionaries compared."""

import copy
import io

import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)
scaler = torch.amp.GradScaler("cpu")
for at in range(12):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (
            checkpoint(
                model, torch.full((4, 8), 0.1 * at, requires_grad=True), use_reentrant=at % 4 == 0
            )
            .float()
            .square()
            .mean()
            / 2
        )
    scaler.scale(loss).backward()
    if at % 2:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
    print(at, f"{loss.item():.6f}", scaler.get_scale(), scheduler.get_last_lr())
file = io.BytesIO()
torch.save(
    {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "scheduler": scheduler.state_dict(),
    },
    file,
)
again = copy.deepcopy((model, optimizer))
print(len(file.getvalue()), sorted(vars(again[1])), sorted(scheduler.state_dict()))
print(sorted(torch.load(io.BytesIO(file.getvalue()), weights_only=True)["optimizer"]["state"]))
