"""A rank that is busy in other threads than its main one, until a file is there; what it works out is the same each time.

``python asked_job.py KIND FILE [torch]``. With ``torch`` it is in a process group of one, and torch's worker server
is there. It prints one line of JSON: the digests of its rounds, of which there should be one.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import queue
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cmp_to_key
from pathlib import Path

if "torch" in sys.argv:
    import torch
try:
    import _interpreters as interpreters  # type: ignore[import-not-found]
except ImportError:
    import _xxsubinterpreters as interpreters  # type: ignore[import-not-found]


def compare(one: str, other: str) -> int:
    return (one > other) - (one < other)


def work(number: int) -> str:
    """Return a text that depends on ``number`` alone; calls Python from C and from generators."""

    def parts() -> Iterator[str]:
        for at in sorted(range(40), key=lambda at: (at * number) % 41):
            yield "".join(map(lambda word: word[::-1], (str(at), hex(at * number))))  # noqa: C417

    text = json.dumps(sorted(parts(), key=cmp_to_key(compare)))
    return hashlib.sha256(zlib.compress(text.encode())).hexdigest()


def prefetch() -> list[str]:
    """Four threads make batches, as a loader with threads does."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    made: queue.Queue[tuple[int, str]] = queue.Queue(8)
    for number in range(160):
        todo.put(number)

    def load() -> None:
        while True:
            try:
                number = todo.get_nowait()
            except queue.Empty:
                return
            made.put((number, work(number)))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    found = [made.get() for _ in range(160)]
    for thread in threads:
        thread.join()
    return [text for _, text in sorted(found)]


def pools() -> list[str]:
    """A pool that is made for each round, as libraries do."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(work, range(120)))


def native_threads() -> list[str]:
    """Threads that Python has not started call it and go, as those of tokenizers and of autograd do."""
    found: dict[int, str] = {}
    entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

    def call(number: int | None) -> None:
        found[number or 0] = work(number or 0)

    kept, libc = entry(call), ctypes.CDLL(None)
    for first in range(0, 96, 4):
        handles = [ctypes.c_ulong() for _ in range(4)]
        for at, handle in enumerate(handles):
            libc.pthread_create(ctypes.byref(handle), None, kept, ctypes.c_void_p(first + at))
        for handle in handles:
            libc.pthread_join(handle, None)
    return [found[number] for number in sorted(found)]


def many_threads() -> list[str]:
    """A hundred and thirty threads that come, wait for each other and go."""
    meet, found = threading.Barrier(130), {}

    def run(number: int) -> None:
        meet.wait()
        found[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(130)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in sorted(found)]


def holds_lock() -> list[str]:
    """C code sleeps with Python's lock, beside two threads that want it."""
    with ThreadPoolExecutor(2) as pool:
        others = pool.map(work, range(40))
        for _ in range(10):
            ctypes.PyDLL(None).usleep(10_000)
        return list(others)


def callbacks() -> list[str]:
    """One thread, in which C calls Python all the time."""
    return [work(number) for number in range(150)]


def subinterpreters() -> list[str]:
    """Interpreters that come and go beside a thread that works."""
    with ThreadPoolExecutor(1) as pool:
        others = pool.map(work, range(60))
        for _ in range(2):
            one = interpreters.create()
            (getattr(interpreters, "exec", None) or interpreters.run_string)(
                one, "sum(range(999))"
            )
            interpreters.destroy(one)
        return list(others)


def trains() -> list[str]:
    """A small model, whose batches two threads prepare."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    with ThreadPoolExecutor(2) as pool:
        for text in pool.map(work, range(30)):
            batch = torch.tensor([int(digit, 16) for digit in text]).float().reshape(4, 16)
            loss = (model(batch) - batch.mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.distributed.all_reduce(loss.detach())
            optimizer.step()
            losses.append(loss.item().hex())
    return losses


KINDS: dict[str, Callable[[], list[str]]] = {
    each.__name__: each
    for each in (
        *(prefetch, pools, native_threads, many_threads, holds_lock),
        *(callbacks, subinterpreters, trains),
    )
}


def main(kind: str, end: str, *more: str) -> None:
    os.nice(10)  # who asks has its turn, so that a thousand times take a minute
    if more:
        torch.set_num_threads(1)
        meet = f"file://{Path(end).with_suffix(f'.meet-{os.getpid()}')}"
        torch.distributed.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    digests = {hashlib.sha256(repr(KINDS[kind]()).encode()).hexdigest()}
    print("up", flush=True)
    while not Path(end).exists():
        digests.add(hashlib.sha256(repr(KINDS[kind]()).encode()).hexdigest())
    print(json.dumps(sorted(digests)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
