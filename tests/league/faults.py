"""What may go wrong with a training, each a function that every rank calls at one moment; ``job.odd`` is the culprit.

The line where the culprit stands ends in a comment with the fault's name: that is the truth of the table.
"""

import atexit
import ctypes
import fcntl
import multiprocessing
import os
import pdb
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FOREVER = 1e6
MEMORY_BYTES = 300 << 20
FAULTS: dict[str, Callable[[Any], None]] = {}


class LeaveLoopError(Exception):
    """A rank has no batches any more."""


def fault(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Have the training know ``function`` by its name."""
    FAULTS[function.__name__] = function
    return function


def only_odd(function: Callable[[Any], None]) -> Callable[[Any], None]:
    def on_the_odd_one(job: Any) -> None:
        if job.odd:
            function(job)

    FAULTS[function.__name__] = on_the_odd_one
    return function


# A rank that is elsewhere.


@only_odd
def sleeps(job: Any) -> None:
    time.sleep(FOREVER)  # at: sleeps


@only_odd
def computes(job: Any) -> None:
    all(True for _ in iter(int, 1))  # at: computes


@only_odd
def searches(job: Any) -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")  # at: searches


@only_odd
def holds_gil(job: Any) -> None:
    ctypes.PyDLL(None).sleep(1000000)  # at: holds_gil


@only_odd
def waits_for_child(job: Any) -> None:
    subprocess.run(["sleep", "100000"], check=False)  # at: waits_for_child


@only_odd
def waits_for_server(job: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        client.recv(1)  # at: waits_for_server


@only_odd
def opens_pipe(job: Any) -> None:
    path = f"{tempfile.mkdtemp()}/pipe"
    os.mkfifo(path)
    open(path).read()  # noqa: PTH123,SIM115  # at: opens_pipe


@only_odd
def file_lock(job: Any) -> None:
    path = f"{tempfile.mkdtemp()}/lock"
    holder = f"import fcntl,time; f=open({path!r},'w'); fcntl.flock(f,2); print(1,flush=True); time.sleep(1e6)"
    held = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE)
    held.stdout.readline()  # type: ignore[union-attr]
    with open(path, "w") as file:  # noqa: PTH123
        fcntl.flock(file, fcntl.LOCK_EX)  # at: file_lock


@only_odd
def thread_lock(job: Any) -> None:
    lock, taken = threading.Lock(), threading.Event()

    def upload() -> None:
        with lock:
            taken.set()
            time.sleep(FOREVER)

    threading.Thread(target=upload, name="uploader", daemon=True).start()
    taken.wait()
    with lock:  # at: thread_lock
        pass


@only_odd
def empty_queue(job: Any) -> None:
    batches: queue.Queue[int] = queue.Queue()
    batches.get()  # at: empty_queue


@only_odd
def stopped(job: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@only_odd
def disk(job: Any) -> None:
    # A parent is in state D until the child of its vfork has another program: this one never has.
    ctypes.CDLL(None).vfork() or time.sleep(FOREVER)  # at: disk


@only_odd
def no_answer(job: Any) -> None:
    """A file system whose server never answers, in a mount namespace that ends with the rank."""
    libc, folder = ctypes.CDLL(None, use_errno=True), tempfile.mkdtemp()
    job.keep = device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    new_namespace, private = 0x20000, 0x44000
    assert not libc.unshare(new_namespace)
    assert not libc.mount(b"none", b"/", None, private, None)
    assert not libc.mount(b"storage:/data", folder.encode(), b"fuse.sshfs", 0, options)
    open(f"{folder}/labels")  # noqa: PTH123,SIM115  # at: no_answer


@only_odd
def pool_worker_killed(job: Any) -> None:
    """A pool of processes starts another worker, and never learns what became of the dead one's task."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(die, [0])  # at: pool_worker_killed


def die(_task: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@only_odd
def debugger(job: Any) -> None:
    told, _keep = os.pipe()
    session = pdb.Pdb(stdin=os.fdopen(told), stdout=sys.stderr)
    session.set_trace()
    job.keep = (_keep, session)  # at: debugger


@only_odd
def asks(job: Any) -> None:
    told, job.keep = os.pipe()
    os.dup2(told, 0)
    sys.stdin = os.fdopen(0)
    input("go on? ")  # at: asks


# Collectives that do not fit.


@fault
def skips(job: Any) -> None:
    if not job.odd:
        dist.all_reduce(torch.ones(8))
    else:
        time.sleep(FOREVER)  # at: skips


@fault
def skips_and_goes_on(job: Any) -> None:
    if not job.odd:
        dist.all_reduce(torch.ones(8))
    else:
        dist.barrier()  # at: skips_and_goes_on


@only_odd
def one_barrier(job: Any) -> None:
    dist.barrier()  # at: one_barrier


@only_odd
def one_all_reduce(job: Any) -> None:
    dist.all_reduce(torch.ones(8))  # at: one_all_reduce


@only_odd
def one_gathers_objects(job: Any) -> None:
    dist.all_gather_object([None] * job.world, {"loss": 1.0})  # at: one_gathers_objects


@fault
def other_operation(job: Any) -> None:
    if job.odd:
        found = [torch.ones(8) for _ in range(job.world)]
        dist.all_gather(found, torch.ones(8))  # at: other_operation
    else:
        dist.all_reduce(torch.ones(8))


@fault
def other_shape(job: Any) -> None:
    if job.odd:
        dist.broadcast(torch.ones(1 << 20), 0)  # at: other_shape
    else:
        dist.broadcast(torch.ones(8), 0)


@fault
def other_shape_for_horovod(job: Any) -> None:
    import horovod.torch as hvd

    hvd.allreduce(torch.ones(16 if job.odd else 8), name="labels")


@fault
def crossed(job: Any) -> None:
    pair = [job.rank // 2 * 2, job.rank // 2 * 2 + 1]
    all_groups = [
        dist.new_group([first, first + 1]) for first in range(0, job.world, 2) for _ in "ab"
    ]
    one, two = (all_groups[pair[0] + at] for at in (0, 1))
    if job.place == "between":  # used before: by then everybody knows both
        dist.all_reduce(torch.ones(4), group=one)
        dist.all_reduce(torch.ones(4), group=two)
    if job.rank in job.odds:
        one, two = (one, two) if job.rank % 2 else (two, one)
    dist.all_reduce(torch.ones(4), group=one)  # at: crossed
    dist.all_reduce(torch.ones(4), group=two)


@fault
def tensor_parallel(job: Any) -> None:
    groups = [dist.new_group([first, first + 1]) for first in range(0, job.world, 2)]
    if job.odd:
        time.sleep(FOREVER)  # at: tensor_parallel
    dist.all_reduce(torch.ones(4), group=groups[job.rank // 2])


@fault
def no_send(job: Any) -> None:
    (odd,) = job.odds
    if job.odd:
        time.sleep(FOREVER)  # at: no_send
    if job.rank == (odd + 1) % job.world:
        dist.recv(torch.ones(4), odd)


@fault
def no_group(job: Any) -> None:
    if job.odd:
        time.sleep(FOREVER)  # at: no_group
    dist.new_group(list(range(job.world)))


@fault
def background(job: Any) -> None:
    def save() -> None:
        if job.odd:
            time.sleep(FOREVER)
        dist.barrier()

    saver = threading.Thread(target=save, daemon=True)
    saver.start()
    saver.join()  # at: background


@only_odd
def other_tensor(job: Any) -> None:
    import horovod.torch as hvd

    hvd.allreduce(torch.ones(8), name="mine alone")  # at: other_tensor


# A rank that has left the loop.


@only_odd
def fewer_batches(job: Any) -> None:
    raise LeaveLoopError


@only_odd
def evaluates(job: Any) -> None:
    job.evaluate(FOREVER)


@only_odd
def saves(job: Any) -> None:
    job.save(FOREVER)


@only_odd
def raises(job: Any) -> None:
    raise ValueError("no such label: 17")  # at: raises


@only_odd
def raises_and_uploads(job: Any) -> None:
    atexit.register(upload_the_rest)
    raise ValueError("no such label: 17")


def upload_the_rest() -> None:
    time.sleep(FOREVER)  # at: raises_and_uploads


@only_odd
def raises_and_joins(job: Any) -> None:
    threading.Thread(target=time.sleep, args=(FOREVER,)).start()
    raise ValueError("no such label: 17")


@only_odd
def raises_and_meets(job: Any) -> None:
    try:
        raise ValueError("no such label: 17")
    finally:
        dist.barrier()  # at: raises_and_meets


# Death.


@only_odd
def out_of_memory(job: Any) -> None:
    """The kernel kills the process, in a control group of its own that may have little; the runner removes that."""
    groups = (
        "/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup"
    )
    group = Path(tempfile.mkdtemp(prefix="league-", dir=groups))
    name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
    (group / name).write_text(str(MEMORY_BYTES))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    job.keep = [bytearray(1 << 24) for _ in range(1000)]


@only_odd
def killed(job: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@only_odd
def exits(job: Any) -> None:
    os._exit(7)


@only_odd
def segfaults(job: Any) -> None:
    ctypes.string_at(0)


@only_odd
def desync(job: Any) -> None:
    with torch.no_grad():
        next(iter(job.model.parameters())).add_(1e-3)


@only_odd
def not_finite(job: Any) -> None:
    with torch.no_grad():
        next(iter(job.model.parameters())).grad.fill_(float("nan"))
