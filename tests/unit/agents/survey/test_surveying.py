"""What the files say that torchrun gives to each of its ranks for an exception: torch itself writes them.
NCCL's RAS text, as NCCL's issues 1911 and 1762 quote it, becomes lines of what is wrong; nothing else is asked.
"""

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from distconsole_agent.roll_call import ways
from distconsole_agent.survey.processes import SeenProcess
from distconsole_agent.survey.surveying import (
    SERVER_NOT_ASKED,
    _call,
    ask_ras,
    read_errors,
    read_ras,
)
from distconsole_agent.survey.worlds import Rank
from distconsole_agent.system.procfs import Process


def rank_of(pid: int, file: Path | str) -> Rank:
    process = Process(pid, 1, 0, "python3", "S", 0.0, 0)
    return Rank(1, 1, SeenProcess(process, (), {"TORCHELASTIC_ERROR_FILE": str(file)}))


def test_each_rank_has_a_file_of_its_own_whatever_runs_the_same_script_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors.error_handler")
    ranks = []
    for job in (1, 2):
        path = tmp_path / str(job) / "error.json"
        path.parent.mkdir()
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
        errors.ErrorHandler().record_exception(ValueError(f"batch\n\x1b[31m of job {job}"))
        ranks.append(rank_of(job, path))
    assert read_errors(ranks) == {
        str(tmp_path / "1/error.json"): "ValueError: batch [31m of job 1",
        str(tmp_path / "2/error.json"): "ValueError: batch [31m of job 2",
    }


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 9999, '{"message": "words"}', '{"message": {}}'],
    ids=["empty", "list", "deep", "words", "nothing"],
)
def test_what_is_no_error_of_torch_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(text)
    files = (path, tmp_path / "missing", "", "here")
    assert read_errors([rank_of(pid, file) for pid, file in enumerate(files, 1)]) == {}


def test_a_rank_of_a_run_is_not_said_to_lack_the_worker_server_that_a_survey_does_not_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "find_py_spy", lambda _: None)
    with subprocess.Popen(["sleep", "600"]) as process:
        rank = rank_of(process.pid, "")
        rank.seen.told["DISTCONSOLE_RUN_DIR"] = "/nowhere"
        (call,) = _call([rank], 1.0)
        process.kill()
    refused = {each["way"]: each["why"] for each in call["refused"]}
    assert refused["server"] == SERVER_NOT_ASKED
    assert "py-spy is not on this node's PATH" in refused["py-spy"]


MISMATCH = """NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
"""
INCOMPLETE = """Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    0         1         1         1         2         1   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 60004 on node 10.4.109.13 managing GPU 0

#0-0 (b3398875b8b2a063) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 0 managed by process 60004 on node 10.4.109.13

Warnings
========

"""


def test_what_is_wrong_is_a_line_each() -> None:
    (line,) = read_ras(MISMATCH)
    assert line.startswith("#0-0 (fa93daea854b060b) MISMATCH: Communicator ranks have different")
    assert "2 ranks have launched up to operation 641; Rank 12" in line
    assert read_ras(INCOMPLETE) == [
        "INCOMPLETE: Missing communicator data from 1 job process; "
        "Process 60004 on node 10.4.109.13 managing GPU 0",
        "#0-0 (b3398875b8b2a063) INCOMPLETE: Missing communicator data from 1 rank; "
        "Rank 1 -- GPU 0 managed by process 60004 on node 10.4.109.13",
    ]
    assert read_ras(MISMATCH[: MISMATCH.index("#0-0")]) == []
    assert read_ras("\n\n\x00") == []


def serve(answers: dict[bytes, bytes], asked: list[bytes]) -> int:
    """Answer each line of one client as ``answers`` says, and close behind the last; return the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        with listener, listener.accept()[0] as peer, peer.makefile("rb") as lines:
            for line in lines:
                asked.append(line)
                peer.sendall(answers.get(line, b"ERROR\n"))
                if line == b"VERBOSE STATUS\n":
                    return

    threading.Thread(target=talk, daemon=True).start()
    return int(listener.getsockname()[1])


def test_ras_is_asked_in_its_own_protocol() -> None:
    asked: list[bytes] = []
    answers = {
        b"CLIENT PROTOCOL 2\n": b"SERVER PROTOCOL 2\n",
        b"TIMEOUT 2\n": b"OK\n",
        b"VERBOSE STATUS\n": MISMATCH.encode(),
    }
    assert ask_ras(2.0, serve(answers, asked)) == read_ras(MISMATCH)
    assert asked == list(answers)


def test_whoever_else_listens_there_or_nobody_is_no_evidence() -> None:
    asked: list[bytes] = []
    assert ask_ras(2.0, serve({}, asked)) == []
    assert asked == [b"CLIENT PROTOCOL 2\n"]
    assert ask_ras(0.2, 1) == []
