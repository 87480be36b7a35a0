"""How a run ended, from histories of what its nodes said, the coordinator being on ``a``; and what mends an error."""

from typing import Any

import pytest
from msgspec import UNSET, structs

from distconsole.model.run_events import RunEnded, RunFinding
from distconsole.model.run_summary import FirstFailure
from distconsole.runs.detectors.conclusions import (
    LOOKED_AT_CHARS,
    REMEDIES,
    first_failure_finding,
    remedy,
)
from distconsole.runs.detectors.ranks import RanksSeen
from distconsole.runs.detectors.slowness import Straggler
from distconsole.runs.detectors.stragglers import straggler_finding
from distconsole.runs.reduce import RunReducer
from fakes.run_events import entry

BLAMED = {"rank": 0, "host": "a", "exit_code": 3, "error": "boom", "traceback": ""}
LOST = {"rank": 0, "host": "a", "exit_code": 1, "error": "node a lost", "traceback": ""}

SUCCEEDED: dict[str, Any] = {"state": "succeeded", "exit_code": 0}
FAILED: dict[str, Any] = {"state": "failed", "exit_code": 3, "first_failure": BLAMED}
A_IS_LOST: dict[str, Any] = {"state": "failed", "exit_code": 1, "first_failure": LOST}
STOPPED: dict[str, Any] = {"state": "stopped", "exit_code": 143}

Said = tuple[str, str, dict[str, Any]]


def verdict(host: str, said: dict[str, Any]) -> Said:
    return host, "verdict", said


def end(host: str, said: dict[str, Any]) -> Said:
    known = {key: said[key] for key in ("state", "exit_code")}
    return host, "end", {**known, "seconds": 1.0}


def told(history: list[Said]) -> tuple[RunEnded, list[str]]:
    """Return the run's end, and the summaries of who is blamed."""
    reducer = RunReducer("run-1", ("a", "b", "c"))
    events: list[Any] = []
    for seq, (host, kind, body) in enumerate(history, 1):
        events += reducer.feed(host, entry(kind, seq, float(seq), **body), float(seq))
    events += reducer.lost_for_good(99.0)
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    return ended, [event.summary for event in events if isinstance(event, RunFinding)]


@pytest.mark.parametrize(
    ("history", "state", "exit_code"),
    [
        ([verdict("b", SUCCEEDED), verdict("a", FAILED)], "failed", 3),
        ([verdict("b", FAILED), end("b", FAILED), verdict("a", SUCCEEDED)], "succeeded", 0),
        (
            [verdict("b", A_IS_LOST), verdict("c", A_IS_LOST), verdict("a", STOPPED)],
            "stopped",
            143,
        ),
        ([verdict("a", FAILED), verdict("b", SUCCEEDED), end("b", SUCCEEDED)], "failed", 3),
        # Its agent's word counts as the coordinator's where its shim left none.
        ([verdict("b", SUCCEEDED), end("a", FAILED)], "failed", 3),
    ],
)
def test_only_the_coordinators_word_ends_a_run(
    history: list[Said], state: str, exit_code: int
) -> None:
    ended, _ = told(history)
    assert (ended.state, ended.exit_code) == (state, exit_code)


@pytest.mark.parametrize(
    ("history", "state", "exit_code"),
    [
        ([verdict("b", SUCCEEDED), verdict("c", SUCCEEDED)], "succeeded", 0),
        ([verdict("b", A_IS_LOST), verdict("c", A_IS_LOST)], "failed", 1),
        ([verdict("b", SUCCEEDED), verdict("c", A_IS_LOST)], "failed", 1),
        ([verdict("b", STOPPED), verdict("c", A_IS_LOST)], "failed", 1),
        ([verdict("b", STOPPED), verdict("c", STOPPED)], "stopped", 143),
    ],
)
def test_others_are_heard_once_the_coordinator_is_lost_and_no_order_makes_a_failure_good(
    history: list[Said], state: str, exit_code: int
) -> None:
    for order in (history, history[::-1]):
        ended, _ = told(order)
        assert (ended.state, ended.exit_code) == (state, exit_code)


def test_nobody_but_the_coordinator_blames_while_it_may_be_heard() -> None:
    _, findings = told([verdict("b", A_IS_LOST), verdict("a", FAILED)])
    assert len(findings) == 1
    assert "boom" in findings[0]
    _, findings = told([verdict("b", A_IS_LOST)])
    assert len(findings) == 1
    assert "node a lost" in findings[0]


SAID = [
    (
        "the script ended while torchrun (52) still ran, which was ended with it",
        "put wait at its end",
    ),
    (
        "an error, and the script that started torchrun ended with 0 all the same",
        "set -e at its top",
    ),
    ("train.py: error: unrecognized arguments: --local_rank=1", "--pass-args out"),
    ("train.py: error: unrecognized arguments: --local-rank=0", "--pass-args out"),
    (
        "train.py: error: the following arguments are required: --rank, --world_size",
        "--pass-args torch-launch",
    ),
    (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
        "variable RANK expected, but not set",
        "--launcher torch",
    ),
    ("KeyError: 'LOCAL_RANK'", "--launcher torch"),
    (
        "ValueError: Error initializing torch.distributed using tcp:// rendezvous: rank "
        "parameter missing",
        "--pass-args init-method",
    ),
    ("ModuleNotFoundError: No module named 'timm'", "check --only python"),
    ("Fatal Python error: init_fs_encoding: failed to get the Python codec", "PYTHONPLATLIBDIR"),
    (
        "ImportError: Extension horovod.torch has not been built: mpi_lib_v2.so not found",
        "check --only python",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
        "a smaller batch",
    ),
    (
        "RuntimeError: DataLoader worker (pid 4) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory.",
        "--shm-size",
    ),
    (
        "RuntimeError: unable to write to file </torch_12_34_0>: No space left on device (28)",
        "--shm-size",
    ),
    ("OSError: [Errno 28] No space left on device: 'checkpoint.pt'", "make room"),
    ("OSError: [Errno 24] Too many open files", "ulimit -n"),
    ("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598", "full"),
    ("Connection refused\nRuntimeError: DataLoader worker (pid(s) 8510) exited", "num_workers=0"),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE",
        "holds the port",
    ),
    ("RuntimeError: [enforce fail at device.cc] Unable to find address for: ens9", "--nic"),
    ("torch.AcceleratorError: CUDA error: invalid device ordinal", "LOCAL_RANK for the device"),
    (
        "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000",
        "set_device",
    ),
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "no code for this GPU",
    ),
    ("RuntimeError: CUDA error: device-side assert triggered", "CUDA_LAUNCH_BLOCKING"),
    (
        "RuntimeError: Expected to have finished reduction in the prior iteration before "
        "starting a new one.",
        "find_unused_parameters",
    ),
    (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
        "collective: ALLREDUCE, but Rank 1 is running collective: BROADCAST",
        "only some ranks reach",
    ),
    (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, "
        "OpType=ALLREDUCE) ran for 600031 milliseconds before timing out.",
        "was not over in time",
    ),
    ("[Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 4000 ms", "did not come in time"),
    (
        "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms "
        "for recv operation to complete",
        "was not over in time",
    ),
    (
        "torch.distributed.DistStoreError: wait timeout after 45000ms, keys: /default_pg/0//cpu//0/0",
        "came to init_process_group",
    ),
    (
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 "
        "clients joined.",
        "came to init_process_group: look whether the script sets a world size, MASTER_ADDR",
    ),
    (
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[10.77.0.2]:5512",
        "was closed",
    ),
    ("horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.", "was closed"),
    ("RuntimeError: Gloo connectFullMesh failed with x: Connection refused", "check --only net"),
    (
        "DistNetworkError: … to 7.86.0.0:92 (errno: 101 - Network is unreachable).",
        "address is right",
    ),
    ("terminate called without an active exception, then killed by SIGABRT", "dist.barrier()"),
    ("killed by SIGKILL (out of memory?)", "a smaller batch"),
    ("killed by SIGKILL", "killed nobody for memory there"),
    ("killed by SIGKILL (for memory? that is not known)", "sudo dmesg"),
    ("killed by SIGSEGV", "its last lines say where, with --env PYTHONFAULTHANDLER=1"),
    (
        "CalledProcessError: Command '['git', 'rev-parse', 'HEAD']' returned non-zero exit status 128.",
        "DISTCONSOLE_GIT_COMMIT",
    ),
    ("Command 'git describe' returned non-zero exit status 128.", "DISTCONSOLE_GIT_COMMIT"),
    (
        "RuntimeError: The NVIDIA driver on your system is too old: CUDA driver version is "
        "insufficient for CUDA runtime version",
        "check --only gpu,torch.cuda",
    ),
]


@pytest.mark.parametrize(("error", "told"), SAID, ids=[error[:48] for error, _ in SAID])
def test_a_known_error_has_its_remedy(error: str, told: str) -> None:
    assert told in remedy(error, "")


def test_every_remedy_has_an_example() -> None:
    assert {remedy(error, "") for error, _ in SAID} == {hint for _, hint in REMEDIES}


@pytest.mark.parametrize("error", ["ValueError: labels are below 10", "exited with code 7", ""])
def test_an_error_of_the_script_itself_gets_no_guess(error: str) -> None:
    assert remedy(error, "Traceback (most recent call last):\n  raise ValueError") == ""


def test_the_error_itself_counts_before_what_was_written_around_it() -> None:
    around = "warning: Connection refused\nException ignored: Broken pipe"
    assert "a smaller batch" in remedy("CUDA out of memory", around)


def test_of_very_long_words_the_end_counts() -> None:
    filler = "/dev/shm " * LOOKED_AT_CHARS
    assert "a smaller batch" in remedy("", f"{filler}CUDA out of memory")
    assert remedy("", f"CUDA out of memory {filler}") == ""


def test_the_first_failure_says_what_to_do_and_where_its_log_is() -> None:
    first = FirstFailure(
        rank=2,
        host="node2",
        exit_code=1,
        error="ModuleNotFoundError: No module named 'timm'",
        traceback="",
    )
    hint = first_failure_finding(RanksSeen("r1"), first, (), 0.0).hint
    assert "check --only python" in hint
    assert hint.endswith("distconsole logs r1 --rank 2")
    barrier = "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 4000 ms"
    first = structs.replace(first, rank=0, error=f"{barrier}\nTimed out waiting 4000ms for recv")
    hint = first_failure_finding(RanksSeen("r1"), first, (), 0.0).hint
    assert hint.startswith("the ranks that the error names")
    assert hint.endswith("distconsole logs r1 --rank 3")


def test_who_notices_that_ranks_disagree_has_no_part_in_the_finding() -> None:
    error = "ranks disagree in a collective; rank 3 on node2 noticed it, which of them is wrong is not known: 64 vs 32"
    first = FirstFailure(rank=3, host="node2", exit_code=1, error=error)
    ranks = RanksSeen("r1")
    ranks.hosts[3] = "node2"
    found = first_failure_finding(ranks, first, (), 0.0)
    assert (found.hosts, found.rank) == ((), UNSET)
    lost = first_failure_finding(ranks, structs.replace(first, error="node node2 lost"), (), 0.0)
    assert lost.hosts == ("node2",)


def test_of_many_that_left_first_the_rest_is_counted() -> None:
    first = FirstFailure(rank=9, host="f", exit_code=1, error="Broken pipe", traceback="")
    ranks = RanksSeen("r1")
    ranks.hosts.update(enumerate("abcdeeeee"))
    hint = first_failure_finding(ranks, first, tuple(range(9)), 0.0).hint
    said = "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more on a, b, c, d and 1 more left first"
    assert hint.startswith(said)
    known = "rank 3 had ended before (exited with code 0)"
    first = structs.replace(first, traceback=f"Traceback\nBroken pipe\n{known}")
    assert first_failure_finding(ranks, first, (), 0.0).hint.startswith(f"{known}: look for")
    first = structs.replace(first, error="killed by SIGTERM, perhaps by mpirun", traceback="")
    who = "rank 0 on a left first, with exit code 0; distconsole logs"
    assert first_failure_finding(ranks, first, (0,), 0.0).hint.startswith(who)
    assert first_failure_finding(ranks, first, (), 0.0).hint.startswith("distconsole logs")


GUESSES = [
    ("Connection refused", "cannot reach"),
    ("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer", "left first"),
    ("RuntimeError: CUDA error: device-side assert triggered", "is out of range"),
    ("Watchdog caught collective operation timeout", "did not take part"),
    ("terminate called without an active exception", "the work was done;"),
    (
        "RuntimeError: DataLoader worker (pid 4) is killed by signal: Bus error.",
        "is full or small:",
    ),
    ("system not yet initialized", "the driver does not fit"),
]


@pytest.mark.parametrize(("error", "guess"), GUESSES, ids=[guess for _, guess in GUESSES])
def test_a_hint_states_no_cause_that_the_error_does_not_say(error: str, guess: str) -> None:
    said = remedy(error, "").replace("see whether shared memory (/dev/shm) is full or small:", "")
    assert said
    assert guess not in said


@pytest.mark.parametrize("part", ["data", "forward", "optimizer", "step", "rest"])
def test_a_slow_part_is_no_reason_to_speak_of_heat(part: str) -> None:
    slow = Straggler(rank=1, part=part, own_ms=90.0, median_ms=30.0, step_ms=100.0)
    hint = straggler_finding(RanksSeen("r"), slow, 0.0).hint
    assert "look at" in hint
    assert not any(word in hint for word in ("heat", "clock", "computes slowly", "faster disk"))


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/src/pkg/train.py", "distconsole run -m pkg.train, from the folder above it"),
        ("/src/pkg/a/train.py", "distconsole run -m pkg.a.train, from the folder above it"),
        ("/src/other/train.py", "compare the hosts' packages"),
        ("/tmp/u/runs/a-1/code/train.py", "brings it by --sync; else compare the hosts"),
    ],
)
def test_a_script_that_lacks_its_own_package_is_to_be_started_as_a_module(
    path: str, hint: str
) -> None:
    trace = f'Traceback (most recent call last):\n  File "{path}", line 2, in <module>\n'
    assert hint in remedy("ModuleNotFoundError: No module named 'pkg'", trace)
    assert hint in remedy("ModuleNotFoundError: No module named 'pkg.model'", trace)
    told = remedy("FileNotFoundError: [Errno 2] No such file or directory: 'conf/a.json'", trace)
    assert bool(told) == ("--sync" in hint)
