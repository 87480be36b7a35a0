"""What a rank left behind: only what is plainly the hook's is believed, and everything is bounded."""

import json
import os
from pathlib import Path

import pytest

from distconsole_agent.contract.runspec import RankSpec, RunSpec, parse_spec
from distconsole_agent.coordination.blame import MAX_ERROR_CHARS, MAX_TRACEBACK_CHARS
from distconsole_agent.supervisor.failures import (
    EngineSaid,
    Raised,
    describe_exit,
    first_reason,
    read_engine_summary,
    read_raised,
    read_tail,
)
from distconsole_agent.supervisor.killing import count_kills
from distconsole_agent.supervisor.postmortem import UNWATCHED, find_failure
from distconsole_agent.supervisor.processes import Exit, RankProcess
from distconsole_agent.supervisor.spawning import ChildCommand

GOOD = {
    "pid": 7,
    "rank": 3,
    "time_ns": 1_000,
    "type": "ValueError",
    "message": "boom",
    "traceback": "Traceback ...",
}


def note(folder: Path, pid: int, **fields: object) -> None:
    (folder / f"{pid}.json").write_text(json.dumps({**GOOD, "pid": pid, **fields}))


def test_exceptions_come_back_earliest_first(tmp_path: Path) -> None:
    note(tmp_path, 7, time_ns=2_000)
    note(tmp_path, 8, time_ns=1_000, message="")
    assert [(r.pid, r.error) for r in read_raised(str(tmp_path))] == [
        (8, "ValueError"),
        (7, "ValueError: boom"),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", json.dumps({**GOOD, "time_ns": "now"}), json.dumps({**GOOD, "time_ns": -1}),
     json.dumps({**GOOD, "time_ns": True}), json.dumps({**GOOD, "type": 1, "message": None}), "[" * 60_000,
     json.dumps({**GOOD, "traceback": "x" * 70_000})],
)  # fmt: skip
def test_what_is_not_the_hooks_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "7.json").write_text(text)
    (tmp_path / "7.json.tmp").write_text(json.dumps(GOOD))
    (tmp_path / "seven.json").write_text(json.dumps(GOOD))
    assert read_raised(str(tmp_path)) == []


def test_a_field_of_another_type_costs_no_more_than_itself(tmp_path: Path) -> None:
    note(tmp_path, 7, rank="3", message=5, traceback=None, retried="yes")
    assert read_raised(str(tmp_path)) == [Raised(7, -1, 1_000, "ValueError", "")]


def test_links_pipes_and_folders_are_not_followed_and_keep_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "other").write_text(json.dumps(GOOD))
    (tmp_path / "7.json").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / "8.json")
    (tmp_path / "9.json").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert read_raised(str(tmp_path)) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert read_raised(str(tmp_path / "missing")) == []
    note(tmp_path, 10)
    for name in ("rank-0-1", "rank-1-2"):
        (tmp_path / name).symlink_to(tmp_path)  # the folder itself leads nowhere
    assert [each.pid for each in read_raised(str(tmp_path))] == [10]


def test_long_texts_are_cut(tmp_path: Path) -> None:
    note(tmp_path, 7, message="m" * 20_000, traceback="t" * 20_000 + "end", rank="x")
    (raised,) = read_raised(str(tmp_path))
    assert len(raised.error) == MAX_ERROR_CHARS
    assert len(raised.traceback) == MAX_TRACEBACK_CHARS
    assert raised.traceback.endswith("end")
    assert raised.rank == -1


CHAIN = """noise
Traceback (most recent call last):
  File "old.py", line 1, in <module>
OldError: handled long ago
more noise
[rank1]: Traceback (most recent call last):
[rank1]:   File "a.py", line 1, in <module>
[rank1]: ConnectionResetError: gone
[rank1]:
[rank1]: During handling of the above exception, another exception occurred:
[rank1]:
[rank1]: Traceback (most recent call last):
[rank1]:   File "a.py", line 3, in <module>
[rank1]:     raise TrainError
[rank1]: TrainError: step failed
terminate called without an active exception
"""


def test_the_last_traceback_is_taken_with_its_chain_and_without_prefix(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(CHAIN)
    told = read_tail(str(tmp_path / "err"))
    assert told.error == "TrainError: step failed"
    lines = told.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[2] == "ConnectionResetError: gone"
    assert lines[-1] == "TrainError: step failed"
    assert "OldError" not in told.traceback


def test_what_bash_measures_by_time_is_no_reason(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(
        "torchrun: not found\n\nreal\t0m0.028s\nuser\t0m0.003s\nsys\t0m0.000s\n"
    )
    assert read_tail(str(tmp_path / "err")).error == "torchrun: not found"


def test_without_a_traceback_the_last_lines_are_told(tmp_path: Path) -> None:
    (tmp_path / "err").write_bytes(b"x" * 200_000 + b"\nstep 1\rstep 2\r\nno \xff space\n\n")
    told = read_tail(str(tmp_path / "err"))
    assert told.error == "no \ufffd space"
    assert told.traceback.endswith("step 2\nno \ufffd space")
    assert len(told.traceback) <= MAX_TRACEBACK_CHARS
    assert read_tail(str(tmp_path / "none")).error == ""


SETPGID = (
    "[node1:00393] plm:ssh: Warning: setpgid(397,397) failed in parent with errno=Permission "
    "denied(13)"
)


@pytest.mark.parametrize(
    "warning",
    ["[W1121 22:54:59.984676664 socket.cpp:207] [c10d] The hostname cannot be got.", SETPGID],
    ids=["torch", "mpirun"],
)
def test_a_warning_is_not_why_a_rank_ended(tmp_path: Path, warning: str) -> None:
    (tmp_path / "err").write_text(f"no space left\n{warning}\n")
    assert read_tail(str(tmp_path / "err")) == ("no space left", f"no space left\n{warning}")
    (tmp_path / "err").write_text(f"{warning}\n")
    assert read_tail(str(tmp_path / "err")) == ("", warning)


def test_ends_in_words() -> None:
    assert describe_exit(3, None, False) == "exited with code 3"
    assert describe_exit(137, 9, True) == "killed by SIGKILL (out of memory?)"
    assert describe_exit(137, 9, False) == "killed by SIGKILL"
    assert describe_exit(137, 9, None) == "killed by SIGKILL (for memory? that is not known)"
    assert describe_exit(152, 24, None) == "killed by SIGXCPU (limit of CPU time: ulimit -t?)"
    assert describe_exit(139, 11, None) == "killed by SIGSEGV"
    assert describe_exit(163, 35, False) == "killed by signal 35"


# Which exception explains which end

S = 10**9


def spec(engine_ranks: bool = True, ranks: int = 1) -> RunSpec:
    return parse_spec(
        {
            "run": "r",
            "secret": "00",
            "node_index": 0,
            "nodes": [{"host": "a", "address": "x", "ranks": [4, 5]}],
            "ranks": [
                {"rank": 4 + i, "local_rank": i, "argv": ["x"], "env": {}} for i in range(ranks)
            ],
            "engine_ranks": engine_ranks,
        }
    )


def ended(folder: Path, code: int, signal: int | None = None, rank: int = 4) -> RankProcess:
    command = ChildCommand(("x",), {}, "/", None, "", str(folder / "err"))
    process = RankProcess(RankSpec(rank, rank - 4, ("x",), {}), command)
    process.pid, process.started_ns = 50, 1000 * S
    process.ended = Exit(code, signal, 2000 * S)
    return process


def find(folder: Path, process: RankProcess, of: RunSpec, stopped_ns: int | None = None):  # type: ignore[no-untyped-def]
    return find_failure(of, process, str(folder), stopped_ns, count_kills())


def test_a_kill_is_told_with_what_is_known_of_it(tmp_path: Path) -> None:
    (tmp_path / "err").write_text("a last word\n")
    process = ended(tmp_path, 137, 9)
    process.peak_bytes = 3 << 30
    found = find(tmp_path, process, spec())
    assert found.error == "killed by SIGKILL"
    said, held, counted, *_ = found.traceback.splitlines()
    assert (said, held) == ("a last word", "the process held 3.0 GiB of memory at most")
    assert "since the ranks started: 0 on this host" in counted
    other = find(tmp_path, ended(tmp_path, 139, 11), spec())
    assert "the kernel has killed" not in other.traceback


def test_the_exceptions_time_counts_not_the_ends(tmp_path: Path) -> None:
    note(tmp_path, 50, time_ns=1990 * S)
    assert find(tmp_path, ended(tmp_path, 1), spec()).t_ns == 1990 * S


@pytest.mark.parametrize("error", ["RuntimeError: Connection closed by peer", "ValueError: boom"])
def test_an_unwatched_victim_is_not_said_to_have_failed_first(tmp_path: Path, error: str) -> None:
    (tmp_path / "err").write_text(f"Traceback (most recent call last):\n{error}\n")
    of = spec(ranks=2)._replace(watch=False)
    before = "" if "boom" in error else UNWATCHED
    assert find(tmp_path, ended(tmp_path, 1), of).error == before + error


def test_an_exception_below_a_rank_explains_its_end(tmp_path: Path) -> None:
    note(tmp_path, 51, time_ns=1980 * S, rank=5, message="in a worker")
    note(tmp_path, 50, time_ns=1990 * S, message="of the parent")
    found = find(tmp_path, ended(tmp_path, 1), spec(engine_ranks=False))
    assert (found.rank, found.error) == (5, "ValueError: in a worker")


def test_an_old_exception_or_another_ranks_explains_nothing(tmp_path: Path) -> None:
    note(tmp_path, 51, time_ns=1100 * S, rank=4)  # of a child
    assert find(tmp_path, ended(tmp_path, 137, 9), spec()).error == "killed by SIGKILL"
    note(tmp_path, 61, time_ns=1990 * S, rank=5)
    note(tmp_path, 50, time_ns=900 * S)  # a reused pid, from before this rank
    assert find(tmp_path, ended(tmp_path, 3), spec(ranks=2)).error == "exited with code 3"


@pytest.mark.parametrize("signal", [9, 15])
def test_a_rank_that_had_raised_before_our_signal_has_failed(tmp_path: Path, signal: int) -> None:
    note(tmp_path, 50, time_ns=1990 * S)
    process = ended(tmp_path, 128 + signal, signal)
    found = find(tmp_path, process, spec(), stopped_ns=1995 * S)
    assert (found.exit_code, found.signal, found.error) == (1, None, "ValueError: boom")
    assert found.traceback == "Traceback ..."
    assert find(tmp_path, process, spec(), stopped_ns=1985 * S) is None


def test_an_end_by_our_signal_or_with_zero_is_no_failure(tmp_path: Path) -> None:
    assert find(tmp_path, ended(tmp_path, 143, 15), spec(), stopped_ns=1995 * S) is None
    assert find(tmp_path, ended(tmp_path, 0), spec()) is None


def test_an_abort_keeps_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "err").write_text("terminate called\n  what():  Connection closed by peer\n")
    found = find(tmp_path, ended(tmp_path, 134, 6), spec())
    assert found.error == "what():  Connection closed by peer, then killed by SIGABRT"


# What torchrun says, whose own exit code is always 1

SUMMARY = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
sh FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:01
  host      : a
  rank      : 4 (local_rank: 0)
  exitcode  : -9 (pid: 70)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 70
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : a
  rank      : 5 (local_rank: 1)
  exitcode  : 7 (pid: 71)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""  # noqa: W291


def test_torchruns_summary_names_the_rank_and_its_code(tmp_path: Path) -> None:
    (tmp_path / "err").write_text("Failures:\nnoise\n" + SUMMARY)
    assert read_engine_summary(str(tmp_path / "err")) == [
        EngineSaid(5, 7, None),
        EngineSaid(4, 137, 9),
    ]
    (tmp_path / "rank-5.err").write_text("no such file\n")
    found = find(tmp_path, ended(tmp_path, 1), spec(engine_ranks=False))
    assert (found.rank, found.exit_code, found.error) == (5, 7, "no such file")


def test_of_a_log_below_torchrun_only_this_attempts_lines_count(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(SUMMARY)
    (tmp_path / "rank-5.err").write_text("of the attempt before\n")
    process = ended(tmp_path, 1)
    process.logged = {"rank-5.err": (tmp_path / "rank-5.err").stat().st_size}
    found = find(tmp_path, process, spec(engine_ranks=False))
    assert (found.rank, found.exit_code, found.error) == (5, 7, "exited with code 7")


def test_an_exception_below_torchrun_keeps_the_exit_code_of_its_rank(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(SUMMARY)
    note(tmp_path, 70, time_ns=1990 * S, rank=4)
    found = find(tmp_path, ended(tmp_path, 1), spec(engine_ranks=False))
    assert (found.rank, found.exit_code, found.signal) == (4, 137, 9)


def test_who_noticed_a_death_below_torchrun_is_not_blamed_for_it(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(SUMMARY)
    (tmp_path / "rank-5.err").write_text("")
    note(tmp_path, 70, time_ns=1990 * S, rank=4, message="Connection closed by peer")
    found = find(tmp_path, ended(tmp_path, 1), spec(engine_ranks=False))
    assert (found.rank, found.exit_code, found.error) == (5, 7, "exited with code 7")


@pytest.mark.parametrize("text", ["", "\nFailures:\n", "\nFailures:\n  rank      : x\n"])
def test_an_engine_without_a_summary_has_its_own_exit_code(tmp_path: Path, text: str) -> None:
    (tmp_path / "err").write_text(text)
    assert find(tmp_path, ended(tmp_path, 3), spec(engine_ranks=False)).exit_code == 3


def test_what_torchrun_itself_raises_only_repeats_its_summary(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(SUMMARY)
    note(tmp_path, 50, time_ns=1990 * S, rank=-1, message="sh FAILED")
    for stopped_ns in (None, 1995 * S):
        found = find(tmp_path, ended(tmp_path, 1), spec(engine_ranks=False), stopped_ns)
        assert (found.rank, found.exit_code, found.t_ns) == (5, 7, 1990 * S)
    assert find(tmp_path, ended(tmp_path, 1), spec(engine_ranks=False), 1985 * S) is None


@pytest.mark.parametrize(
    ("how", "exit_code", "number", "error"),
    [
        ("exit code 7", 7, None, "exited with code 7"),
        ("signal SIGKILL", 137, 9, "killed by SIGKILL"),
    ],
)
def test_the_end_of_a_spawned_rank_is_its_own_not_its_parents(
    tmp_path: Path, how: str, exit_code: int, number: int | None, error: str
) -> None:
    note(tmp_path, 50, time_ns=1990 * S, rank=5, message=f"process 1 terminated with {how}")
    found = find(tmp_path, ended(tmp_path, 1), spec(engine_ranks=False))
    assert (found.rank, found.exit_code, found.signal) == (5, exit_code, number)
    assert (found.error, found.traceback.splitlines()[0]) == (error, "Traceback ...")


def test_a_spawner_that_saw_a_victim_first_does_not_hide_the_cause(tmp_path: Path) -> None:
    note(tmp_path, 72, time_ns=1988 * S, rank=6, message="no such layer")
    note(tmp_path, 71, time_ns=1989 * S, rank=5, message="Connection closed by peer")
    victim = "Connection closed by peer (in spawned process 0, train.py:3)"
    note(tmp_path, 50, time_ns=1990 * S, rank=-1, message=victim)
    found = find(tmp_path, ended(tmp_path, 1), spec(engine_ranks=False))
    assert (found.rank, found.error.partition(": ")[2]) == (6, "no such layer")
    cause = "no such layer (in spawned process 1, train.py:3)"
    note(tmp_path, 50, time_ns=1990 * S, rank=-1, message=cause)
    found = find(tmp_path, ended(tmp_path, 1), spec(engine_ranks=False))
    assert found.error.partition(": ")[2] == cause


def test_a_torchrun_that_is_killed_is_not_taken_for_its_rank(tmp_path: Path) -> None:
    by_torchrun = spec(engine_ranks=False)._replace(launcher="torchrun")
    found = find(tmp_path, ended(tmp_path, 137, signal=9), by_torchrun)
    assert found.error == "torchrun killed by SIGKILL"


def test_what_is_retried_fails_a_stopped_run_only_if_the_shims_retry(tmp_path: Path) -> None:
    """Another host's rank, which failed of it, may have ended sooner than the stop."""
    (tmp_path / "err").write_text("")
    note(tmp_path, 70, time_ns=1990 * S, rank=4, retried=True)
    once = spec(engine_ranks=False)
    assert find(tmp_path, ended(tmp_path, 1), once, 1995 * S) is None
    assert find(tmp_path, ended(tmp_path, 1), once).rank == 4
    restarted = once._replace(max_restarts=2)
    assert find(tmp_path, ended(tmp_path, 1), restarted, 1995 * S).rank == 4
    assert find(tmp_path, ended(tmp_path, 1), restarted, 1985 * S) is None


BY_WORKER = """Traceback (most recent call last):
  File "/job/train.py", line 12, in <module>
    for x in loader: pass
  File "/venv/lib/python3.11/site-packages/torch/_utils.py", line 794, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
  File "/job/data.py", line 9, in __getitem__
    raise ValueError("bad sample")
  File "/venv/lib/python3.11/site-packages/PIL/Image.py", line 3, in open
    fail()
ValueError: bad sample
"""


@pytest.mark.parametrize("chained", [False, True])
def test_the_headline_is_the_last_exception_of_a_worker(tmp_path: Path, chained: bool) -> None:
    traceback = BY_WORKER.replace(
        "Original ", f"Original {TRACE}KeyError: 'x'\n{CAUSE}" if chained else "Original "
    )
    _, _, message = traceback.partition("\nValueError: ")  # of the first exception of the type
    note(tmp_path, 7, message=message.strip(), traceback=traceback)
    (raised,) = read_raised(str(tmp_path))
    assert raised.error == "ValueError: bad sample (in DataLoader worker process 0, data.py:9)"
    assert raised.traceback == traceback


TRACE = 'Traceback (most recent call last):\n  File "/job/data.py", line 7, in load\n    x\n'
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"


def test_of_a_written_chain_the_outer_exception_is_the_headline(tmp_path: Path) -> None:
    traceback = f"{BY_WORKER}{CAUSE}{TRACE}RuntimeError: training failed\n"
    note(tmp_path, 7, type="RuntimeError", message="training failed", traceback=traceback)
    assert read_raised(str(tmp_path))[0].error == "RuntimeError: training failed"


@pytest.mark.parametrize(
    ("kind", "begin", "where", "head"),
    [
        (
            "Process",
            "-- Process 1 terminated with the following error:",
            "in spawned process 1",
            "",
        ),
        ("Checkpoint", "CheckpointException ranks:dict_keys([3])", "rank 3", " (RANK 3)"),
    ],
)
def test_the_headline_is_what_a_spawned_rank_or_one_of_a_checkpoint_raised(
    tmp_path: Path, kind: str, begin: str, where: str, head: str
) -> None:
    inner = f"{begin}\n{TRACE.replace('last):', f'last):{head}')}mine.Broken: no\ntwo\n"
    note(tmp_path, 7, type=kind, message=inner.strip(), traceback=f"{TRACE}{kind}: \n\n{inner}")
    assert read_raised(str(tmp_path))[0].error == f"mine.Broken: no ({where}, data.py:7)\ntwo"


@pytest.mark.parametrize("traceback", ["", "Traceback", "x" * 9000, TRACE, f"{TRACE}\n"])
def test_a_wrapper_without_its_cause_is_the_headline(tmp_path: Path, traceback: str) -> None:
    message = f"Caught ValueError in DataLoader worker process 0.\nOriginal {TRACE}"
    note(tmp_path, 7, message=message, traceback=traceback)
    assert read_raised(str(tmp_path))[0].error.startswith("ValueError: Caught ValueError in")


def test_without_the_hook_the_log_tells_what_a_worker_raised(tmp_path: Path) -> None:
    text = "".join(f"[rank1]: {line}\n" for line in BY_WORKER.splitlines())
    for said in (BY_WORKER, text):
        (tmp_path / "err").write_text(f"noise\n{said}more noise\n")
        told = read_tail(str(tmp_path / "err"))
        assert told.error == "ValueError: bad sample"
        assert told.traceback == BY_WORKER.rstrip()


RULE = "-" * 74
SLOTS = f"""{RULE}
There are not enough slots available in the system to satisfy the 3
slots that were requested by the application:

  echo

Either request fewer slots for your application, or make more slots
available for use.

  4. If none of a hostfile, the --host command line parameter, or an
     RM is present, Open MPI defaults to the number of processor cores
{RULE}
"""
FILE = f"""{RULE}
mpirun was unable to find the specified executable file, and therefore
did not launch the job.  This error was first reported for process
rank 0; it may have occurred for other processes as well.
{RULE}
"""
NO_FILE = "mpirun was unable to find the specified executable file, and therefore did not launch the job."
WARNED = f"""{RULE}
WARNING: No preset parameters were found for the device.

  Local host: node1
{RULE}
{FILE}"""
MPICH = """\
[mpiexec@node1] match_arg (/mpich-4.0.3/src/pm/hydra/utils/args/args.c:166): unrecognized argument x
[mpiexec@node1] HYDU_parse_array (/mpich-4.0.3/src/pm/hydra/utils/args/args.c:181): argument matching returned error
"""
INTEL = (
    "[proxy:0:0@node1] HYD_spawn (../src/pm/i_hydra/libhydra/spawn/hydra_spawn.c:177): "
    "execvp error on file nosuchprog (No such file or directory)\n"
)
SSH = f"""ssh: connect to host 10.90.130.2 port 22: Connection refused
{RULE}
ORTE was unable to reliably start one or more daemons.
This usually is caused by:
{RULE}
"""
RAISED = """Traceback (most recent call last):
  File "train.py", line 1, in <module>
ValueError: boom
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            SLOTS,
            "There are not enough slots available in the system to satisfy the 3 slots that were requested by the application",
        ),
        (FILE, NO_FILE),
        (WARNED, NO_FILE),
        (MPICH, "unrecognized argument x"),
        (INTEL, "execvp error on file nosuchprog (No such file or directory)"),
        (SSH, "ssh: connect to host 10.90.130.2 port 22: Connection refused"),
        (
            "mpirun: Error: unknown option \"--x\"\nType 'mpirun --help' for usage.\n",
            'mpirun: Error: unknown option "--x"',
        ),
        (RAISED, "ValueError: boom"),
        (f"{RULE}\nWARNING: only that.\n{RULE}\n", "WARNING: only that."),
        (f"\n{RULE}\n", ""),
        (f"{SETPGID}\n", ""),
        (f"{SETPGID}\nmpirun: Error: no\n", "mpirun: Error: no"),
    ],
)
def test_an_mpiruns_reason_is_its_first_full_sentence(text: str, reason: str) -> None:
    """As Open MPI 4.1 to 5.0.11, MPICH 4 and Intel MPI print them."""
    assert first_reason(text) == reason
