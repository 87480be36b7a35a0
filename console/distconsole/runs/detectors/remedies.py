"""What to do about the errors that distributed training dies of most often, by their words.

A hint says as a fact only what the words say; of what else may be the cause it says where to look.

The words are those of PyTorch, NCCL, Gloo, CUDA, Horovod, MPI and Python themselves; each row's
example is kept in ``tests/unit/runs/detectors/test_remedies.py``.
"""

from __future__ import annotations

import re

SENDERS = (
    "a limit of time or memory of the scheduler (Slurm: sacct -j JOB -o state), a container that was "
    "stopped, ulimit -t, earlyoom or systemd-oomd (journalctl -u earlyoom -u systemd-oomd), kill -9"
)
"""Who ends processes by SIGKILL besides the kernel's own out-of-memory killer."""

LOOKED_AT_CHARS = 16 * 1024
"""Of what a rank said: the beginning of its error, and the end of the rest."""

LEFT_FIRST = "the other end of a connection was closed"
"""Replaced by the ranks that had ended well before, where it is known that there were some."""

REMEDIES = (
    (
        r"unrecognized arguments:.{0,400}--local[-_]rank",
        "the script wants no --local_rank: leave --pass-args out; it reads LOCAL_RANK",
    ),
    (
        r"required: (\S+, )*--(local[-_]rank|rank|world[-_]size|init[-_]method)",
        "the script wants its rank as arguments: --pass-args torch-launch (--local_rank R) or "
        "init-method (--init_method … --rank R --world_size N)",
    ),
    (
        r"(rank|world[_ ]size) parameter missing",
        "its --rank and --world_size were not given: --pass-args init-method",
    ),
    (
        r"(error initializing torch\.distributed.*environment variable |KeyError: ')"
        r"(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)",
        "the ranks were not given: start it with --launcher torch, or torchrun",
    ),
    (
        r"(No module named|cannot import name|undefined symbol|Extension horovod\.torch has not "
        r"been built|cannot open shared object file)",
        "compare the hosts' packages: distconsole check --only python,torch,horovod; the rank's "
        "Python is --python, after --setup",
    ),
    (
        r"CUDA out of memory|torch\.OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
        "a smaller batch, or fewer ranks on the GPU; see whose memory it is: distconsole check "
        "--only gpu.clean, or top",
    ),
    (
        r"bus error|out of shared memory|(/dev/shm|</torch_).{0,400}No space left|"
        r"No space left on device.{0,400}shm|posix_fallocate",
        "see whether shared memory (/dev/shm) is full or small: distconsole check --only shm; if so, docker: "
        "--shm-size=8g or --ipc=host, or fewer DataLoader workers",
    ),
    (r"No space left on device", "make room on that host: distconsole check --only disk"),
    (r"Too many open files", "more file descriptors: ulimit -n $(ulimit -Hn), by --setup"),
    (
        r"EADDRINUSE|Address already in use",
        "another process holds the port; leave MASTER_PORT out, so that a free one is taken, or "
        "see who: distconsole check --only port",
    ),
    (
        r"Unable to find address for|no socket interface found|NoValidAddressesFound",
        "no usable interface was found: distconsole check --only env.iface_exists tells whether a "
        "variable names one that this host lacks; leave it out, or give --nic",
    ),
    (
        r"invalid device ordinal",
        "the rank wants a GPU that it cannot see: look whether --nproc is more than the host's GPUs, "
        "CUDA_VISIBLE_DEVICES hides some, or RANK is used where LOCAL_RANK for the device is meant",
    ),
    (
        r"Duplicate GPU detected",
        "two ranks use one GPU: torch.cuda.set_device(LOCAL_RANK) before the first collective",
    ),
    (
        r"no kernel image is available|is not compatible with the current PyTorch",
        "this torch has no code for this GPU: distconsole check --only torch.cuda",
    ),
    (
        r"driver version is insufficient|CUDA_ERROR_SYSTEM_NOT_READY|"
        r"system not yet initialized|Driver/library version mismatch",
        "see driver, library and torch together: distconsole check --only gpu,torch.cuda",
    ),
    (
        r"device-side assert",
        "--env CUDA_LAUNCH_BLOCKING=1 names the line; look at the indices there, such as labels",
    ),
    (
        r"Expected to have finished reduction in the prior iteration",
        "some parameter got no gradient on this rank: "
        "DistributedDataParallel(…, find_unused_parameters=True), or let the loss use it",
    ),
    (
        r"Mismatch between currentRank|Detected mismatch between collectives",
        "the ranks are in different collectives: look for one that only some ranks reach, as "
        "below `if rank == 0`",
    ),
    (
        r"wait timeout after \d+ms, keys: /default_pg/",
        "not all ranks came to init_process_group: look whether the script waits for more than the "
        "run has (a world size of its own in place of WORLD_SIZE), and what the others do before it",
    ),
    (
        r"Watchdog caught collective operation timeout|"
        r"Timed out waiting \d+ms for (send|recv) operation|Wait timeout|stall(ed)? shutdown",
        "a collective was not over in time: look for a rank that hangs, is slow or has fewer steps, and for "
        "a collective below `if rank == 0`; --verify-sync 100 compares the ranks",
    ),
    (
        r"(client socket has timed out|Timed out after \d+ seconds waiting for clients|"
        r"connectFullMesh failed|Connect timeout|unhandled system error|"
        r"Connection refused|No route to host)",
        "a connection was not made; whether ranks can reach each other says distconsole check --only "
        "net,os.hostname,coll",
    ),
    (
        r"Connection (closed by peer|reset by peer)|NCCL remote process exited|"
        r"Horovod has been shut down|Broken pipe",
        f"{LEFT_FIRST}: look for ranks with fewer batches than others, or an early exit",
    ),
    (
        r"terminate called without an active exception",
        "look whether the work was done: a thread of gloo may meet an ending Python after the last "
        "collective; then end the script with dist.barrier(), time.sleep(0.5)",
    ),
    (
        r"killed by SIGKILL \(out of memory\?\)",
        "the kernel killed for memory on that host meanwhile: dmesg | grep -i oom names whom; fewer "
        "DataLoader workers, or a smaller batch",
    ),
    (
        r"killed by SIGKILL$",
        f"the kernel killed nobody for memory there meanwhile, so somebody sent it: {SENDERS}",
    ),
    (
        r"killed by SIGKILL \(for memory",
        f"the kernel for memory (sudo dmesg | grep -i oom on that host), or somebody sent it: {SENDERS}",
    ),
    (
        r"killed by SIGSEGV",
        "--env PYTHONFAULTHANDLER=1 shows where; whether packages fit each other says distconsole "
        "check --only python,torch,horovod",
    ),
)
"""Words that tell an error from others, and what mends it; the first that fits counts."""


def remedy(error: str, traceback: str) -> str:
    """Return what mends the error, or nothing where its words are not known.

    Args:
        error: Its last line, which counts before the rest.
        traceback: Or the last lines that the rank wrote.
    """
    for said in (error[:LOOKED_AT_CHARS], traceback[-LOOKED_AT_CHARS:]):
        for words, hint in REMEDIES:
            if re.search(words, said, re.IGNORECASE):
                return hint
    return ""
