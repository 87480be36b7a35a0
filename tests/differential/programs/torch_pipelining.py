# ranks: 2
"""Two pipeline stages, four microbatches, GPipe's schedule and 1F1B's."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
for kind in (ScheduleGPipe, Schedule1F1B):
    stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"))
    schedule = kind(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(layers[rank].parameters(), lr=0.1)
    for at in range(3):
        batch, losses = torch.full((8, 4), 0.1 * at), []
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=torch.ones(8, 4), losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        print(rank, kind.__name__, at, [f"{loss.item():.6f}" for loss in losses])
dist.destroy_process_group()
