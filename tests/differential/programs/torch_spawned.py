"""Ranks by mp.spawn, by start_processes with fork, and one that raises: what the parent gets, and what is printed."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, path, fails):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    print(rank, total.item(), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if fails and rank == 1:
        raise ValueError("at the end")


def main():
    folder = tempfile.mkdtemp()
    mp.spawn(work, (os.path.join(folder, "a"), False), nprocs=2)
    mp.start_processes(work, (os.path.join(folder, "b"), False), nprocs=2, start_method="fork")
    try:
        mp.spawn(work, (os.path.join(folder, "c"), True), nprocs=2)
    except mp.ProcessRaisedException as error:
        print(type(error).__name__, error.error_index, str(error).splitlines()[-2:])


if __name__ == "__main__":
    main()
