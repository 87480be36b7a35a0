"""NCCL's RAS text, as NCCL's issues 1911 and 1762 quote it, becomes lines of what is wrong; nothing else is asked."""

from __future__ import annotations

import socket
import threading

from distconsole_agent.survey.surveying import ask_ras, read_ras

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
