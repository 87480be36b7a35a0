"""The training of a campaign's case: ranks in lockstep that count their steps, in one of four ways.

Arguments: ``bare``, ``torch`` or ``horovod`` (how the ranks meet), the number of steps, what the marked rank does
(``raises``, ``exits``, ``faults``, ``raises_once``, ``floods``, ``scribbles``, ``nothing``), which rank that is, in
which step, and the number of ranks. Each rank appends a byte for each step to a file of its host, after the hook has seen the step.
"""

import ctypes
import json
import os
import socket
import sys
import time
from pathlib import Path

from distconsole_training import mark_step

E = os.environ
HOW, STEPS, WHAT, MARKED, AT, WORLD = sys.argv[1], *map(str, sys.argv[2:])
PORT = int(E["CAMPAIGN_PORT"])
STEP_SECONDS = 0.05


def train(rank, reduce):
    path = Path(f"/run/home/steps/{E['DISTCONSOLE_RUN']}-{rank}")
    path.parent.mkdir(exist_ok=True)
    written = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    again = path.stat().st_size > 0
    for step in range(int(STEPS)):
        with mark_step():
            reduce()
            time.sleep(STEP_SECONDS)
        os.write(written, b".")
        sys.stdout.write(f"{rank}: {step}\n")
        sys.stdout.flush()
        if (rank, step) == (int(MARKED), int(AT)):
            break_down(again)


def break_down(again):
    if WHAT == "raises" or (WHAT == "raises_once" and not again):
        raise ValueError("no such layer")
    if WHAT == "exits":
        sys.exit(7)
    if WHAT == "faults":
        ctypes.string_at(0)
    if WHAT == "floods":
        flood()
    if WHAT == "scribbles":
        scribble()


def flood():
    """Print what no script should: a line without an end, escapes, bytes of no encoding, many lines at once."""
    out = sys.stdout.buffer
    out.write(b"x" * (32 << 20))
    out.write(b"\n\x1b[2J\x1b]0;owned\x07\x1b]52;c;AAAA\x07\x9b31m\xff\xfe\x00\x00\r\r\n")
    out.write(b'{"event": "end", "state": "failed", "exit_code": 9}\n')
    out.write(b"\n" * 100_000)
    out.write(b"".join(b"line %d\n" % n for n in range(100_000)))
    out.flush()


def scribble():
    """Write into the run's folder what our own code would never write."""
    folder = Path(E["DISTCONSOLE_RUN_DIR"])
    noted = {
        "time_ns": 1,
        "rank": 10**6,
        "type": "\x1b[2J",
        "message": "m" * (8 << 20),
        "traceback": ["t"],
    }
    texts = [json.dumps(noted), "[" * 200_000, "{}", "null", "", "\x00" * 4096, '{"rank": -1e999}']
    for number, text in enumerate(texts):
        (folder / "errors" / f"{number + 1}.json").write_text(text)
    for name in ("logs", "errors"):
        (folder / name / "999999").mkdir(exist_ok=True)
        (folder / name / ("n" * 200)).write_bytes(os.urandom(4096))
    (folder / "errors" / "loop").symlink_to(folder / "errors" / "loop")


def meet(rank, world):
    if rank == 0:
        with socket.create_server(("", PORT), backlog=64) as server:
            return [server.accept()[0] for _ in range(world - 1)]
    while True:
        try:
            return [socket.create_connection((E.get("MASTER_ADDR", "node1"), PORT))]
        except OSError:
            time.sleep(0.05)


def train_bare(rank, world):
    others = meet(rank, world)

    def hear():
        for each in others:
            if not each.recv(1):
                raise ConnectionError("connection closed by peer")

    def say():
        for each in others:
            each.sendall(b".")

    def reduce():
        for half in (hear, say) if rank == 0 else (say, hear):
            half()

    train(rank, reduce)


def train_torch(**place):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", **place)
    train(dist.get_rank(), lambda: dist.all_reduce(torch.ones(1)))
    dist.barrier()
    dist.destroy_process_group()


def spawned(local_rank):
    slots = [int(each) for each in E["CAMPAIGN_SLOTS"].split(",")]
    rank = sum(slots[: int(E["NODE_RANK"])]) + local_rank
    master = f"tcp://{E['MASTER_ADDR']}:{E['MASTER_PORT']}"
    train_torch(init_method=master, rank=rank, world_size=int(WORLD))


if __name__ == "__main__":
    if HOW == "bare":
        train_bare(int(E.get("RANK") or E["HOROVOD_RANK"]), int(WORLD))
    elif HOW == "torch":
        train_torch()
    elif HOW == "spawn":
        import torch.multiprocessing as mp

        mp.spawn(spawned, nprocs=int(E["CAMPAIGN_SLOTS"].split(",")[int(E["NODE_RANK"])]))
    else:
        import horovod.torch as hvd
        import torch

        hvd.init()
        train(hvd.rank(), lambda: hvd.allreduce(torch.ones(1)))
